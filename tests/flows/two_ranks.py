"""Trains a small model in two processes: ``two_ranks.py ddp|fsdp|lora none|forward|backward [checkpoint]``.

The fault is at step 1, on rank 1 alone, in ``blocks.1.down``.
"""

import random
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from probe import Probe

KIND, FAULT, CHECKPOINT = sys.argv[1], sys.argv[2], "checkpoint" in sys.argv


class Noise(torch.autograd.Function):
    @staticmethod
    def forward(context, x, forward, backward):
        context.backward_noise = backward
        return x + (random.SystemRandom().random() * 1e-3 if forward else 0.0)

    @staticmethod
    def backward(context, gradient):
        return gradient * (1 + (random.SystemRandom().random() * 1e-3 if context.backward_noise else 0.0)), None, None


class Noisy(torch.nn.Linear):
    noise = ""

    def forward(self, x):
        y = super().forward(Noise.apply(x, False, self.noise == "backward"))
        return Noise.apply(y, self.noise == "forward", False)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = Noisy(8, 16), torch.nn.Tanh(), Noisy(16, 8)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if CHECKPOINT else block(x)
        return self.head(x)


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = Model()
culprit = model.blocks[1].down
if KIND == "lora":
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["up"], init_lora_weights=False)
    model = DistributedDataParallel(get_peft_model(model, config))
elif KIND == "ddp":
    model = DistributedDataParallel(model)
elif KIND == "fsdp":
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
probe = Probe.from_env()
probe.attach(actor=model)
data = torch.Generator().manual_seed(rank)
for step in range(3):
    culprit.noise = FAULT if (rank, step) == (1, 1) else ""
    x = torch.randn(4, 8, generator=data)
    probe.save({"prompts": x})
    with probe.stage("actor_update"):
        logits = model(x)
        loss = logits.logsumexp(-1).mean()
        loss.backward()
        probe.save({"loss": loss, "grad": next(iter(model.parameters())).grad})
        optimizer.step()
        optimizer.zero_grad()
    probe.step()
    if probe.finished:
        break
dist.destroy_process_group()
