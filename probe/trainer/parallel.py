"""Data parallel training: the ranks, what they tell each other, and how they share a model.

gloo on CPU, nccl on CUDA, hccl on NPU; torchrun's environment says who is who. One process is a rank of one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from inspect import signature
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BACKENDS = {"cpu": "gloo", "cuda": "nccl", "npu": "hccl"}
"""The communication library of each kind of device."""
_BUFFERS = ("forward_sync_buffers", "broadcast_buffers")
"""DDP's switch for copying buffers in every forward pass, by its new and its old name."""


def local_rank() -> int:
    """This process among those of its host, from 0."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def process_group(device: torch.device) -> Iterator[Ranks]:
    """The ranks of this training, while it lasts.

    Args:
        device: This process's device.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield Ranks(device)
        return
    dist.init_process_group(BACKENDS[device.type])
    try:
        yield Ranks(device, dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()


class Ranks:
    """The processes that train one model together.

    Args:
        device: This process's device.
        rank: This process, from 0.
        count: How many there are.

    Example:
        >>> Ranks(torch.device("cpu")).total(torch.tensor(2.0)).item()
        2.0
    """

    def __init__(self, device: torch.device, rank: int = 0, count: int = 1) -> None:
        self.device = device
        self.rank = rank
        self.count = count

    def total(self, value: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's value; a new tensor."""
        return self._reduced(value, dist.ReduceOp.SUM)

    def largest(self, value: int) -> int:
        """The largest of every rank's number."""
        return int(self._reduced(torch.tensor(value, device=self.device), dist.ReduceOp.MAX).item())

    def barrier(self) -> None:
        """Waits until every rank has come here."""
        self.total(torch.zeros((), device=self.device))

    def _reduced(self, value: torch.Tensor, operation: Any) -> torch.Tensor:
        value = value.detach().clone()
        if self.count > 1:
            dist.all_reduce(value, operation)
        return value


class Sharing:
    """How a trained model is shared by the ranks: whole copies (DDP), or shards (FSDP2).

    Args:
        model: The model; FSDP2 shards its parameters in place.
        layers: Modules that are sharded one by one; the rest is sharded together.
        trained: The parameters that are trained; none of the reference's.
        kind: ``ddp`` or ``fsdp2``.
        ranks: The ranks; alone, a model stays as it is.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        layers: list[torch.nn.Module],
        trained: list[torch.nn.Parameter],
        kind: str,
        ranks: Ranks,
    ) -> None:
        self.model = model
        self.trained: Any = model
        """What the update calls: its gradients are the mean over the ranks."""
        self.sharded = kind == "fsdp2" and ranks.count > 1
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            for module in [*layers, model]:
                fully_shard(module)
        elif ranks.count > 1 and trained:
            own = {id(parameter) for parameter in trained}
            others = [name for name, parameter in model.named_parameters() if id(parameter) not in own]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, others)  # noqa: SLF001  (its name)
            devices = None if ranks.device.type == "cpu" else [ranks.device]
            known = signature(DistributedDataParallel).parameters
            options: dict[str, Any] = {next(name for name in _BUFFERS if name in known): False}
            self.trained = DistributedDataParallel(model, device_ids=devices, **options)

    def accumulating(self, last: bool) -> Any:
        """A context for one backward pass of several: DDP reduces the gradients in the last one only."""
        if last or not isinstance(self.trained, DistributedDataParallel):
            return nullcontext()
        return self.trained.no_sync()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that may be a shard, as every rank sees the whole of it."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else full()
