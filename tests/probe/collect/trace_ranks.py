"""A rank of a data parallel training: ``python trace_ranks.py FOLDER KIND TRACE RESULT [MODULE DIRECTION]``.

The environment says which. KIND is ``ddp``, ``fsdp2`` or ``fsdp2-checkpoint``; TRACE is ``none`` or the name of the
dump folder. Of MODULE, rank 1 captures a call; DIRECTION is ``forward`` or ``backward``.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from probe import Probe
from probe.types import CaptureRequest, RunSpec

STEPS = 20


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 16)
        self.relu = torch.nn.ReLU(inplace=True)
        self.down = torch.nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.relu(self.up(self.norm(x))))


class Net(torch.nn.Module):
    def __init__(self, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.layers = torch.nn.ModuleList([Layer() for _ in range(3)])
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.recompute:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        result: torch.Tensor = self.head(x)
        return result


def local(tensor: Any) -> torch.Tensor:
    plain = tensor.detach()
    return (plain.to_local() if hasattr(plain, "to_local") else plain).clone()


def main() -> None:
    folder, kind, trace, result = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
    request = None
    if len(sys.argv) > 5:
        request = CaptureRequest(sys.argv[5], 3, "actor_update", 1, backward=sys.argv[6] == "backward")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    spec = RunSpec(run=trace, dump_path=str(folder / trace), key_data="off", trace=True, capture=request)
    probe = Probe() if trace == "none" else Probe(spec)
    torch.manual_seed(3)
    random.seed(4)
    np.random.seed(5)
    model = Net(kind.endswith("checkpoint"))
    called: Any = model
    if kind == "ddp":
        called = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    probe.attach(actor=called)
    optimizer = torch.optim.AdamW(called.parameters(), lr=1e-2)
    torch.manual_seed(10 + rank)
    gradients = []
    for _ in range(STEPS):
        with probe.stage("actor_update"):
            for _ in range(2):
                called(torch.randn(3, 4, 8)).square().mean().backward()
            gradients.append([local(one.grad) for one in called.parameters()])
            torch.nn.utils.clip_grad_norm_(called.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        probe.step()
    probe.close()
    found = {
        "weights": [local(one) for one in called.parameters()],
        "gradients": gradients,
        "random": torch.get_rng_state(),
    }
    torch.save(found, folder / f"{result}.rank{os.environ['RANK']}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
