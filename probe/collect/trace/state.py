"""What a stage begins with: weights and buffers, hashed in full, and random states.

Neither version counters nor addresses show every change (fused optimizers, ``.data``, NumPy and collectives write past
them), so all bytes are hashed each time.
"""

from __future__ import annotations

import array
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from probe.collect.trace.digests import Item
from probe.collect.trace.events import Recorder
from probe.collect.trace.items import Leaf


def record_weights(recorder: Recorder, role: str, model: torch.nn.Module) -> None:
    """Records the parameters and the buffers of a model, also those that are not persistent, under all their names."""
    recorder.emit("weights", role, None, _items(recorder, role, model.named_parameters(remove_duplicate=False)))
    recorder.emit("buffers", role, None, _items(recorder, role, model.named_buffers(remove_duplicate=False)))


def _items(recorder: Recorder, role: str, named: Any) -> list[Item]:
    """Items by name; what has several names, nothing runs in between, is hashed once."""
    made: list[Item] = []
    known: dict[int, Item] = {}
    for name, tensor in named:
        if id(tensor) not in known:
            fresh = recorder.items(f"{role}.{name}", [(name, tensor)])
            if not fresh:
                continue
            known[id(tensor)] = fresh[0]
        made.append([name, *known[id(tensor)][1:]])
    return made


def record_random_states(
    recorder: Recorder, generators: dict[str, Any], before: dict[str, list[Item]], only_unchanged: bool = False
) -> None:
    """Records the global random states, each device's, and those of the trainer's own generators.

    Args:
        recorder: Takes the events, one for each.
        generators: Name to generator, as ``Probe.attach_rng`` got them.
        before: What was recorded of each last; is kept up to date.
        only_unchanged: Whether those are left out that are not as they were: what drew from them is no part of a stage.
    """
    for name, parts in (*_global_states(), *((name, state_of(one)) for name, one in generators.items())):
        items = recorder.items(name, parts)
        if not only_unchanged or before.get(name) == items:
            recorder.emit("rng", name, None, items)
        before[name] = items


def _global_states() -> Iterator[tuple[str, list[Leaf]]]:
    yield "python", _python_state(random.getstate())
    yield "numpy", _flat("", np.random.get_state(legacy=False))
    yield "torch.cpu", [("", torch.get_rng_state())]
    for kind in ("cuda", "npu"):
        backend: Any = getattr(torch, kind, None)
        if backend is not None and backend.is_available() and backend.is_initialized():
            for index in range(backend.device_count()):
                yield f"{kind}:{index}", [("", backend.get_rng_state(index))]


def state_of(generator: Any) -> list[Leaf]:
    """The state of a generator as leaves.

    Raises:
        TypeError: It is no generator whose state is known.
    """
    if isinstance(generator, torch.Generator):
        return [("", generator.get_state())]
    if isinstance(generator, np.random.Generator):
        return _flat("", generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return _flat("", generator.get_state(legacy=False))
    if isinstance(generator, random.Random):
        return _python_state(generator.getstate())
    raise TypeError(f"expected a generator of torch, NumPy or random, not {type(generator).__name__}")


def _python_state(state: tuple[Any, ...]) -> list[Leaf]:
    kind, words, spare = state
    return [("", np.frombuffer(array.array("Q", words), np.uint64)), ("kind", kind), ("spare", repr(spare))]


def _flat(path: str, state: Any) -> list[Leaf]:
    if isinstance(state, dict):
        return [leaf for key, value in state.items() for leaf in _flat(f"{path}.{key}" if path else str(key), value)]
    return [(path, state)]
