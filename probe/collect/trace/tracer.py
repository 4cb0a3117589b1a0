"""The tracer: what the probe tells of the training's course, made into events."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from probe.collect.trace.capture import Capture
from probe.collect.trace.digests import Item
from probe.collect.trace.events import Place, Recorder
from probe.collect.trace.gradients import Gradients
from probe.collect.trace.internals import version
from probe.collect.trace.modules import Modules
from probe.collect.trace.optimizer import Optimizers
from probe.collect.trace.registry import Registry
from probe.collect.trace.saved import Saved
from probe.collect.trace.state import record_random_states, record_weights, state_of
from probe.store.background import Background
from probe.store.writer import DumpWriter
from probe.types import roles_of_stage


class Tracer(Protocol):
    """Is told what happens in a trainer process."""

    def attach(self, models: Mapping[str, torch.nn.Module]) -> None:
        """The attached models are now these, by role."""
        ...

    def attach_rng(self, name: str, generator: Any) -> None:
        """A generator of the trainer's own has this name; None takes the name away."""
        ...

    def stage_start(self, name: str, micro_step: int, rank: int) -> Any:
        """A stage begins. Returns what ``stage_end`` takes."""
        ...

    def stage_end(self, token: Any) -> None:
        """A stage has ended."""
        ...

    def data(self, tag: str, rank: int, micro_step: int, stage: str | None, saved: list[tuple[str, Saved]]) -> None:
        """The trainer saved these values under a tag."""
        ...

    def step(self, following: int, last: bool = False) -> None:
        """A training step has ended, the last that is needed perhaps; what comes now belongs to the following one."""
        ...

    def abandon(self) -> None:
        """Takes everything away from the trainer; nothing more is recorded."""
        ...

    def close(self) -> None:
        """Takes everything away from the trainer, and hands the last events on."""
        ...


class Untraced:
    """Records no event, and touches nothing."""

    def attach(self, models: Mapping[str, torch.nn.Module]) -> None:
        """See ``Tracer``."""

    def attach_rng(self, name: str, generator: Any) -> None:
        """See ``Tracer``."""

    def stage_start(self, name: str, micro_step: int, rank: int) -> Any:
        """See ``Tracer``."""

    def stage_end(self, token: Any) -> None:
        """See ``Tracer``."""

    def data(self, tag: str, rank: int, micro_step: int, stage: str | None, saved: list[tuple[str, Saved]]) -> None:
        """See ``Tracer``."""

    def step(self, following: int, last: bool = False) -> None:
        """See ``Tracer``."""

    def abandon(self) -> None:
        """See ``Tracer``."""

    def close(self) -> None:
        """See ``Tracer``."""


class ExecutionTracer:
    """Records every event.

    Args:
        writer: Writes them.
        background: The thread in which that happens.
        own_rank: This process's rank.
        stop: Takes an error that ends the trace.
        capture: Captures one call of a module; None captures none.
    """

    def __init__(
        self,
        writer: DumpWriter,
        background: Background,
        own_rank: Callable[[], int],
        stop: Callable[[Exception], None],
        capture: Capture | None = None,
    ) -> None:
        self._recorder = Recorder(writer, background, own_rank)
        self._registry = Registry()
        self._capture = capture
        self._gradients = Gradients(self._recorder, self._registry, stop, capture)
        self._modules = Modules(self._recorder, self._registry, self._gradients, self._first_use, stop, capture)
        self._optimizers = Optimizers(self._recorder, self._registry, self._gradients.reductions.roles, stop)
        self._models: Mapping[str, torch.nn.Module] = {}
        self._generators: dict[str, Any] = {}
        self._random: dict[str, list[Item]] = {}
        self._closed = False
        abandon = weakref.WeakMethod(self.abandon)
        os.register_at_fork(after_in_child=lambda: _call(abandon))

    def attach(self, models: Mapping[str, torch.nn.Module]) -> None:
        """See ``Tracer``."""
        self._models = dict(models)
        self._renew()

    def attach_rng(self, name: str, generator: Any) -> None:
        """See ``Tracer``."""
        if generator is None:
            self._generators.pop(name, None)
            return
        state_of(generator)
        self._generators[name] = generator

    def stage_start(self, name: str, micro_step: int, rank: int) -> Place:
        """See ``Tracer``."""
        self._renew()
        place = self._recorder.open(name, micro_step, rank)
        self._recorder.emit("stage_start", name, None, [])
        role = next((role for role in roles_of_stage(name) if role in self._models), None)
        if role is not None:
            self._first_use(role)
        record_random_states(self._recorder, self._generators, self._random)
        return place

    def stage_end(self, token: Any) -> None:
        """See ``Tracer``."""
        if token is not None:
            self._recorder.emit("stage_end", token.stage, None, [])
            self._recorder.shut(token)
            if self._capture is not None:
                self._capture.stage_end(token)

    def data(self, tag: str, rank: int, micro_step: int, stage: str | None, saved: list[tuple[str, Saved]]) -> None:
        """See ``Tracer``."""
        items = [[path, one.dtype, list(one.shape), one] for path, one in saved]
        rows = lambda: {path: one.rows for path, one in saved if one.rows is not None}  # noqa: E731
        self._recorder.add(rank, stage, micro_step, "data", tag, None, items, {"rows": rows})

    def step(self, following: int, last: bool = False) -> None:
        """See ``Tracer``. With the last one, the random states that are as they were: nobody used them."""
        if last:
            record_random_states(self._recorder, self._generators, self._random, only_unchanged=True)
        self._recorder.flush()
        self._recorder.next_step(following)

    def close(self) -> None:
        """See ``Tracer``."""
        if not self._closed:
            self.abandon()
            self._recorder.flush()
            if self._capture is not None:
                self._capture.close()

    def abandon(self) -> None:
        """See ``Tracer``."""
        if self._closed:
            return
        self._closed = True
        self._modules.restore()
        self._gradients.restore()
        self._optimizers.restore()

    def _renew(self) -> None:
        """Models change: their names, classes and parameters are looked at again."""
        self._registry.renew(self._models)
        self._modules.watch()
        self._gradients.watch_parameters()

    def _first_use(self, role: str) -> None:
        """Records the weights of a role that a stage begins with, or that runs in it."""
        place = self._recorder.place
        if role in place.roles or role not in self._models:
            return
        place.roles.add(role)
        self._modules.tell_hidden(role)
        record_weights(self._recorder, role, self._models[role])
        place.versions.update((id(one), version(one)) for one in self._models[role].parameters())


class Surviving:
    """A tracer whose errors end it, and neither the training nor what else is recorded.

    Args:
        make: Makes the tracer; gets what takes an error that happens in a module's call or in a backward pass.
        ended: Is told the error that ended it.
    """

    def __init__(
        self, make: Callable[[Callable[[Exception], None]], Tracer], ended: Callable[[Exception], None]
    ) -> None:
        self._ended = ended
        self._tracer: Tracer = Untraced()
        self._do(lambda _: self._begin(make))

    def _begin(self, make: Callable[[Callable[[Exception], None]], Tracer]) -> None:
        self._tracer = make(self._stop)

    def attach(self, models: Mapping[str, torch.nn.Module]) -> None:
        """See ``Tracer``."""
        self._do(lambda tracer: tracer.attach(models))

    def attach_rng(self, name: str, generator: Any) -> None:
        """See ``Tracer``. What is no generator is the caller's mistake, and raised."""
        self._tracer.attach_rng(name, generator)

    def stage_start(self, name: str, micro_step: int, rank: int) -> Any:
        """See ``Tracer``."""
        return self._do(lambda tracer: tracer.stage_start(name, micro_step, rank))

    def stage_end(self, token: Any) -> None:
        """See ``Tracer``."""
        self._do(lambda tracer: tracer.stage_end(token))

    def data(self, tag: str, rank: int, micro_step: int, stage: str | None, saved: list[tuple[str, Saved]]) -> None:
        """See ``Tracer``."""
        self._do(lambda tracer: tracer.data(tag, rank, micro_step, stage, saved))

    def step(self, following: int, last: bool = False) -> None:
        """See ``Tracer``."""
        self._do(lambda tracer: tracer.step(following, last))

    def abandon(self) -> None:
        """See ``Tracer``."""
        self._tracer.abandon()

    def close(self) -> None:
        """See ``Tracer``."""
        self._do(lambda tracer: tracer.close())

    def _do(self, call: Callable[[Tracer], Any]) -> Any:
        try:
            return call(self._tracer)
        except Exception as error:  # noqa: BLE001  (whatever a trainer's models raise; it is told)
            self._stop(error)
            return None

    def _stop(self, error: Exception) -> None:
        tracer, self._tracer = self._tracer, Untraced()
        tracer.abandon()
        self._ended(error)


def _call(method: weakref.WeakMethod[Callable[[], None]]) -> None:
    """Calls a method if its object is still there."""
    call = method()
    if call is not None:
        call()
