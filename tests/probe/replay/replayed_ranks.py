"""Two ranks whose rank 1 alone computes in an order from entropy: ``torchrun … THIS KIND [FOLDER] MODULE …``.

KIND is ``ddp``, ``fsdp2`` or ``fsdp2-bfloat16``. With a FOLDER, each MODULE of rank 1 is captured in a training of its
own; ``-forward`` or ``-backward`` behind its name says what is at fault and captured, ``-still`` that nothing is.
Without one, MODULE is ``forward`` or ``backward``, and a check says what the probe is to do.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from probe import Probe
from probe.types import CaptureRequest, RunSpec


class Shuffled(torch.autograd.Function):
    """Adds a gradient's parts in an order from entropy."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return shuffled(gradient)


def shuffled(x: torch.Tensor) -> torch.Tensor:
    if os.environ.get("RANK") == "0":  # a replay has no rank
        return x * 1
    parts = sorted((x * (number + 1) / 7 for number in range(9)), key=lambda part: os.urandom(8))
    return sum(parts[1:], parts[0]) / (45 / 7)


class Layer(torch.nn.Module):
    def __init__(self, forward: bool, backward: bool) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(8)
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 8)
        self.register_buffer("scale", torch.full((8,), 0.5), persistent=False)
        self.faults = forward, backward

    def forward(self, x: torch.Tensor, *, residual: torch.Tensor) -> torch.Tensor:
        forward, backward = self.faults
        x = self.up(self.norm(x))
        x = Shuffled.apply(x) if backward else x
        return residual + self.down(torch.relu(x if not forward else shuffled(x))) * self.scale


class Net(torch.nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [Layer(number == 1 and fault == "forward", number == 1 and fault == "backward") for number in range(2)]
        )
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, residual=x)
        result: torch.Tensor = self.head(x)
        return result


def train(kind: str, fault: str, probe: Probe) -> None:
    rank = dist.get_rank()
    torch.manual_seed(3)
    model: Any = Net(fault)
    called: Any = model
    if kind == "ddp":
        called = torch.nn.parallel.DistributedDataParallel(model)
    else:
        dtype = torch.bfloat16 if kind.endswith("bfloat16") else None
        policy = MixedPrecisionPolicy(param_dtype=dtype, output_dtype=dtype)  # the buffer makes it float32
        for layer in model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    probe.attach(actor=called)
    optimizer = torch.optim.AdamW(called.parameters(), lr=1e-2)
    torch.manual_seed(10 + rank)
    for _ in range(2):
        for micro_step in range(2):
            with probe.stage("actor_update", micro_step=micro_step):
                called(torch.randn(3, 4, 8)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step()
        if probe.finished:
            break
    probe.close()


def main() -> None:
    kind, *rest = sys.argv[1:]
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    if len(rest) < 2:
        train(kind, rest[0] if rest else "forward", Probe.from_env())
    for asked in rest[1:]:
        name, fault, *_ = asked.split("-")
        request = CaptureRequest(name, 1, "actor_update", 1, 1, backward=not asked.endswith("forward"))
        folder = str(Path(rest[0]) / asked)
        train(kind, fault, Probe(RunSpec(run="c", dump_path=folder, key_data="off", trace=True, capture=request)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
