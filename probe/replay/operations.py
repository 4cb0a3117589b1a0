"""Recording the operations below a module."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probe.collect.trace.digests import Digests
from probe.collect.trace.internals import graph_task_running, without_modes
from probe.errors import RecordError
from probe.replay.compared import Operation

_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "set_")


class Operations(TorchDispatchMode):
    """Records every operation that runs inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Operation] = []
        self._digests = Digests()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and notes what went in and came out."""
        kwargs = kwargs or {}
        backward = graph_task_running()
        name = func.name().removeprefix("aten::")
        first = 1 if name.split(".")[0] in _OVERWRITES else 0  # what is there already does not matter
        read = {key: value for key, value in kwargs.items() if key not in self._written(func)}
        before = [self._digest(one) for one in tree_leaves((args[first:], read))]
        result = func(*args, **kwargs)
        after = [self._digest(one) for one in tree_leaves(result)]
        self.found.append((func.name(), backward, before, after))
        return result

    def _written(self, func: Any) -> set[str]:
        return {one.name for one in func._schema.arguments if one.is_out}  # noqa: SLF001  (has no public name)

    def _digest(self, value: Any) -> str:
        if not isinstance(value, torch.Tensor | int | float | str | complex):
            return type(value).__name__ if value is not None else "none"
        try:
            with torch.no_grad(), without_modes():
                digest = self._digests.item("", value)[3]
            return digest if isinstance(digest, str) else digest.text()
        except RecordError:
            return "not observed"
