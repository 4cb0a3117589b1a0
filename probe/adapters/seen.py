"""What an outermost call was given and returned: the tensors in it, and whether there is anything real to record."""

from __future__ import annotations

from typing import Any

import torch

from probe.collect.trace.internals import graph_task_running, is_traced_by_jit
from probe.collect.trace.items import Leaves
from probe.errors import RecordError

MOST_BYTES = 16 << 20
"""Bytes of what a call is given, or returns, that are saved as key data at most: of more, the trace has the digests."""


def is_real(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call computes something that belongs to the training, here and now.

    Not those that torch makes to look at a model (tracing, fake tensors, ``torch.func``), those of gradient
    checkpointing, which the trace sees, and those in the worker of a data loader.
    """
    if is_traced_by_jit() or graph_task_running() or torch.utils.data.get_worker_info() is not None:
        return False
    if torch._C._functorch.maybe_current_level() is not None:  # noqa: SLF001  (has no public name)
        return False
    return not any(_is_unreal(one) for one in (*args, *kwargs.values()))


def _is_unreal(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_meta or type(value).__name__ in ("FakeTensor", "FunctionalTensor")
    return type(value).__module__.startswith("torch.fx")


def tensors(values: dict[str, Any], most: int) -> dict[str, torch.Tensor]:
    """The tensors in containers, by path; not those in other objects such as caches.

    Args:
        values: What is looked through.
        most: Bytes of all together; of more, none is returned.
    """
    leaves = Leaves(set())
    try:
        for path, value in values.items():
            leaves.add(path, value)
    except RecordError:
        return {}
    inside: set[int] = set()
    for one in leaves.objects:
        deeper = Leaves(set())
        deeper.add("", one)
        inside |= {id(value) for _, value in deeper.found}
    found: dict[str, torch.Tensor] = {}
    for path, value in leaves.found:
        if isinstance(value, torch.Tensor) and id(value) not in inside and _is_dense(value):
            name = _name(path)
            while name in found:
                name += "_"
            found[name] = value
    return found if sum(value.nbytes for value in found.values()) <= most else {}


def _name(path: str) -> str:
    """A path as one word: ``args.0`` becomes ``args0``, ``kwargs.input_ids`` becomes ``input_ids``."""
    first, *rest = path.removeprefix("kwargs.").split(".")
    return first + "".join(part if part.isdigit() else f"_{part}" for part in rest)


def _is_dense(value: torch.Tensor) -> bool:
    plain = value.layout is torch.strided and not (value.is_nested or value.is_quantized or value.is_meta)
    return plain and not hasattr(value, "to_local")
