"""What DDP's reduction leaves in the gradients: read when a backward pass ends, after DDP has waited for it.

Later, in the optimizer's step, a trainer may have scaled or clipped them by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from probe.collect.trace.events import Place, Recorder
from probe.collect.trace.internals import at_end_of_backward, ddp_reduces, graph_task
from probe.collect.trace.registry import Registry


class Reductions:
    """Watches the reductions of models that DDP wraps.

    Args:
        recorder: Takes the events.
        registry: Says what parameters are called.
        stop: Takes errors.
    """

    def __init__(self, recorder: Recorder, registry: Registry, stop: Callable[[Exception], None]) -> None:
        self.on = True
        self.roles: set[str] = set()
        """Models whose reductions are events."""
        self._recorder = recorder
        self._registry = registry
        self._stop = stop
        self._reduced: dict[str, bool] = {}
        self._awaited: dict[str, int] = {}

    def entered(self, role: str) -> None:
        """A whole model is entered; DDP knows by then whether the backward of this call reduces."""
        reduces = ddp_reduces()
        if reduces is None:
            self._reduced.pop(role, None)
            return
        self.roles.add(role)
        self._reduced[role] = reduces

    def collected(self, role: str) -> None:
        """A parameter of a model has collected its gradient: when the backward ends, it is reduced."""
        task = graph_task()
        if not self._reduced.get(role) or self._awaited.get(role) == task:
            return
        self._awaited[role] = task
        record = partial(self._record, role, self._recorder.place)
        at_end_of_backward(lambda: at_end_of_backward(record))  # DDP asks for its own in between

    def _record(self, role: str, place: Place) -> None:
        self._awaited.pop(role, None)
        if not self.on:
            return
        try:
            for named in self._registry.parameters.values():
                of_role, path = named.in_stage(place.stage)
                if of_role != role or named.parameter.grad is None:
                    continue
                name = f"{role}.{path}"
                items = self._recorder.items(name, [("", named.parameter.grad)])
                where = (place.rank, place.stage, place.micro_step)
                self._recorder.add(*where, "param_grad", name, None, items, {"note": "reduced"})
        except Exception as error:  # noqa: BLE001  (the probe says what becomes of it)
            self._stop(error)
