"""A module and its arguments as a pickle without tensors, without our hooks, msprobe's, and those of sharding.

A module of FSDP2 becomes the plain one that it was before: the weights that it had gathered are its weights.
"""

from __future__ import annotations

import io
import operator
import pickle
import random
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from probe.collect.trace.internals import plain_class
from probe.collect.trace.watched import Watched, original

_TOOLS = ("msprobe", __name__.rpartition(".trace.")[0], "torch.distributed")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_OF_HOOKS = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
_OF_STATES = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
"""Hooks of loading and saving, which no replay does."""
_OF_SHARDING = "__composable_api_"
"""What the keys of a module begin with under which ``torch.distributed`` keeps its own."""


def pickled(content: Any, keep: Callable[[torch.Tensor], str]) -> bytes:
    """Pickles by reference, and by value what the main script defines, where cloudpickle is installed.

    Args:
        content: What is pickled.
        keep: Takes a tensor, and gives the name that stands for it.

    Raises:
        Exception: It cannot be pickled; anything that a class raises.
    """
    try:
        from cloudpickle import CloudPickler as Base  # type: ignore[import-untyped]
    except ImportError:
        Base = pickle.Pickler

    class Pickler(Base):  # type: ignore[misc]
        def persistent_id(self, value: Any) -> str | None:
            return keep(value) if isinstance(value, torch.Tensor) else None

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, Watched):
                return self._original(value.own)
            if isinstance(value, torch.nn.Module):
                reduced = value.__reduce_ex__(2)
                if isinstance(reduced, tuple) and len(reduced) > 2 and isinstance(reduced[2], dict):
                    made, kind = reduced[:2], plain_class(value)
                    if kind is not type(value):
                        made = (object.__new__, (kind,))
                    return (*made, _without_tools(reduced[2]), *reduced[3:])
            if type(value) is random.SystemRandom:
                return random.SystemRandom, ()  # which has no state, and raises when it is asked for one
            return self._other(value)

        def _original(self, function: FunctionType) -> Any:
            made = self._other(function)
            if made is NotImplemented:
                return operator.attrgetter(function.__qualname__), (sys.modules[function.__module__],)
            return made

        def _other(self, value: Any) -> Any:
            other = getattr(super(), "reducer_override", None)
            return NotImplemented if other is None else other(value)

    stream = io.BytesIO()
    Pickler(stream, protocol=4).dump(content)
    return stream.getvalue()


def _without_tools(state: dict[str, Any]) -> dict[str, Any]:
    """A module's state without the hooks that tools have put there."""
    made = {key: value for key, value in state.items() if not key.startswith(("msprobe_", _OF_SHARDING))}
    made |= {key: type(made[key])() for key in _OF_STATES if made.get(key)}
    if "forward" in made:
        made["forward"] = original(made["forward"])
        if _is_tool(made["forward"]):
            del made["forward"]
    gone: set[int] = set()
    for key in _HOOKS:
        if made.get(key):
            gone |= {number for number, hook in made[key].items() if _is_tool(hook)}
            made[key] = type(made[key])((n, hook) for n, hook in made[key].items() if n not in gone)
    for key in _OF_HOOKS:
        if made.get(key):
            made[key] = type(made[key])((n, flag) for n, flag in made[key].items() if n not in gone)
    return made


def _is_tool(function: Any) -> bool:
    function = getattr(function, "func", function)
    return str(getattr(function, "__module__", "")).startswith(_TOOLS)
