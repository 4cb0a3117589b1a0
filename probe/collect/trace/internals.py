"""What the trace needs of torch beyond its public interface, contained in this module.

Everything here only reads, and was the same from torch 2.7 to 2.13.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.autograd.graph import Node

NO_SEQUENCE = 1 << 62
"""Numbers from here on are those of nodes that accumulate into a leaf; they have no place in the order of creation."""


def graph_task_running() -> bool:
    """Whether the autograd engine is at work in this thread: what runs now, runs in a backward pass."""
    return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001


def graph_task() -> int:
    """The number of the backward pass that runs in this thread."""
    return int(torch._C._current_graph_task_id())  # noqa: SLF001


def at_end_of_backward(call: Callable[[], None]) -> None:
    """Has the running backward pass call something when it ends, after what was asked for before."""
    torch.autograd.Variable._execution_engine.queue_callback(call)  # noqa: SLF001


def ddp_reduces() -> bool | None:
    """Whether the backward of the DDP call that is under way reduces gradients; None where none is under way."""
    if not torch.distributed.is_available():
        return None
    active = torch.nn.parallel.DistributedDataParallel._get_active_ddp_module()  # noqa: SLF001
    return None if active is None else bool(active.require_backward_grad_sync)


def next_sequence_number() -> int:
    """The number that the next node of the autograd graph gets in this thread."""
    return int(torch._C._autograd._get_sequence_nr())  # noqa: SLF001


sequence_number: Callable[[Node], int] = operator.methodcaller("_sequence_nr")
"""When a node was made, in the order of its thread's nodes; from ``NO_SEQUENCE`` on for leaves."""


def view_base(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor of which this one is a view; None where it is none."""
    return tensor._base if tensor._is_view() else None  # noqa: SLF001


def changed_in_place(base: torch.Tensor | None) -> bool:
    """Whether a base was changed through one of its views: those may have nodes that are made when they are asked for.

    Asking would make them earlier than the training does, which may change the order in which gradients are summed.
    """
    return base is not None and type(base.grad_fn).__name__ == "CopySlices"


def version(tensor: torch.Tensor) -> int:
    """How often a tensor was changed in place, as far as torch knows; -1 where it does not count."""
    return -1 if tensor.is_inference() else tensor._version  # noqa: SLF001


def own_parameters(module: torch.nn.Module) -> dict[str, torch.nn.Parameter | None]:
    """The parameters of a module itself, by name, without the cost of asking for them."""
    return module._parameters  # noqa: SLF001


def without_modes() -> AbstractContextManager[Any]:
    """No dispatch mode of the trainer sees what runs inside."""
    from torch.utils._python_dispatch import _disable_current_modes

    context: AbstractContextManager[Any] = _disable_current_modes()
    return context


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether ``torch.compile`` or ``torch.jit`` runs a module: its inside cannot be seen."""
    kinds = {kind.__name__ for kind in type(module).__mro__}
    compiled = getattr(module, "_compiled_call_impl", None) is not None
    return compiled or not kinds.isdisjoint({"OptimizedModule", "ScriptModule"})


def is_traced_by_jit() -> bool:
    """Whether ``torch.jit.trace`` looks at what runs: shapes are tensors then, and nothing belongs to the training."""
    return torch._C._get_tracing_state() is not None  # noqa: SLF001


def run_as_it_is(function: Any) -> Any:
    """Has ``torch.compile`` leave a function of ours alone, where it is not in the middle of a graph. Returns it."""
    frames: Any = torch._C._dynamo.eval_frame  # noqa: SLF001
    if hasattr(frames, "set_code_exec_strategy"):
        skip, usual = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT  # noqa: SLF001
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, usual))  # noqa: SLF001
    elif hasattr(frames, "skip_code"):  # up to torch 2.7
        frames.skip_code(function.__code__)
    return function


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether FSDP2 shards a module: it sees whole weights only while it runs."""
    return any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)


def plain_class(module: torch.nn.Module) -> type:
    """The class that a module had before FSDP2 put its own in front."""
    kinds = type(module).__mro__
    names = [kind.__name__ for kind in kinds]
    return kinds[names.index("FSDPModule") + 1] if "FSDPModule" in names else kinds[0]


def casts(module: Any) -> tuple[torch.dtype | None, torch.dtype | None]:
    """To which dtypes FSDP2 casts what a sharded module gets, and what it returns; None for no cast."""
    policy = module._get_fsdp_state()._mp_policy  # noqa: SLF001
    return (policy.param_dtype if policy.cast_forward_inputs else None), policy.output_dtype
