"""Recording the operations below a module."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probe.collect.trace.digests import Digests
from probe.collect.trace.internals import graph_task_running, without_modes
from probe.errors import RecordError
from probe.replay.compared import DRAWN, NOT_OBSERVED, Operation

_OVERWRITES = ("copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "set_")
_SETTINGS = (torch.dtype, torch.device, torch.layout, torch.memory_format)


class Operations(TorchDispatchMode):
    """Records every operation that runs inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[Operation] = []
        self._digests = Digests()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and notes what went in and came out; what it writes to came out, too."""
        kwargs = kwargs or {}
        backward = graph_task_running()
        name = func.name().removeprefix("aten::")
        first = 1 if name.split(".")[0] in _OVERWRITES else 0  # what is there already does not matter
        outputs, written = _written(func, args, kwargs)
        read = {key: value for key, value in kwargs.items() if key not in outputs}
        before = [self._digest(one) for one in tree_leaves((args[first:], read))]
        if torch.Tag.nondeterministic_seeded in func.tags:
            before.append(DRAWN + self._digest(_random_state(args, kwargs)))
        result = func(*args, **kwargs)
        after = [self._digest(one) for one in (*tree_leaves(result), *tree_leaves(written))]
        self.found.append((func.name(), backward, before, after))
        return result

    def _digest(self, value: Any) -> str:
        if isinstance(value, _SETTINGS):
            return str(value)
        if not isinstance(value, torch.Tensor | int | float | str | complex):
            return type(value).__name__ if value is not None else "none"
        try:
            with torch.no_grad(), without_modes():
                digest = self._digests.item("", value)[3]
            return digest if isinstance(digest, str) else digest.text()
        except RecordError:
            return NOT_OBSERVED


def _written(func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[set[str], list[Any]]:
    """Names of the arguments that are outputs alone, and values that the operation writes to and does not return."""
    schema = func._schema  # noqa: SLF001  (has no public name)
    returned = {name for one in schema.returns if one.alias_info is not None for name in one.alias_info.before_set}
    outputs, written = set(), []
    for number, one in enumerate(schema.arguments):
        if one.is_out:
            outputs.add(one.name)
        elif one.alias_info is not None and one.alias_info.is_write and not returned & set(one.alias_info.before_set):
            written.append(args[number] if number < len(args) else kwargs.get(one.name))
    return outputs, written


def _random_state(args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    """The state that an operation draws from: its generator's, or that of the device on which it works."""
    values = tree_leaves((args, kwargs))
    given = [one for one in values if isinstance(one, torch.Generator)]
    with without_modes():
        if given:
            return given[0].get_state()
        devices = [one if isinstance(one, torch.device) else one.device for one in values
                   if isinstance(one, torch.Tensor | torch.device)]  # fmt: skip
        device = next((one for one in devices if one.type in ("cuda", "npu")), None)
        if device is None:
            return torch.get_rng_state()
        state: torch.Tensor = getattr(torch, device.type).get_rng_state(device)
        return state
