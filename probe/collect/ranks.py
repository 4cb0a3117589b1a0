"""Which of a run's processes this one is, and what data parallel training wraps around a model."""

from __future__ import annotations

import os

import torch

from probe.errors import UsageError
from probe.store.writer import Place

_WRAPPERS = ("DistributedDataParallel", "DataParallel")
"""Classes, of torch, Megatron and others, that hold the model as ``module`` and only pass calls on."""


def place_of_process() -> Place | None:
    """This process's place among several: from torchrun's environment, else from ``torch.distributed``.

    Returns:
        The place; None in a run of one process, and where a process group is only initialised later.

    Raises:
        UsageError: RANK, WORLD_SIZE and LOCAL_RANK are no ranks.
    """
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    launch = os.environ.get("TORCHELASTIC_RUN_ID") or None
    if rank is not None and size is not None:
        local = os.environ.get("LOCAL_RANK")
        digits = all(text.isascii() and text.isdigit() for text in (rank, size, "0" if local is None else local))
        if not digits or int(rank) >= int(size):
            raise UsageError(f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local}: not the ranks of a run")
        place = Place(int(rank), int(size), first_of_host=local is not None and int(local) == 0, launch=launch)
    else:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        place = Place(distributed.get_rank(), distributed.get_world_size())
    return place if place.world_size > 1 else None


def rank_now() -> int:
    """The rank that ``torch.distributed`` gives, 0 where it is not initialised."""
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside the wrappers of data parallel training, so that its names are those that it has alone."""
    while any(kind.__name__ in _WRAPPERS for kind in type(model).__mro__):
        inner = getattr(model, "module", None)
        if not isinstance(inner, torch.nn.Module):
            break
        model = inner
    return model
