"""Modules entered and left: ``forward`` of their classes is replaced, and put back when the probe closes.

On the class, ``module.forward(…)`` is seen too, pickling and copying work, and signatures stay. Who asks the class gets
the function that was there. A module that was given a bound method of its own as ``forward``, as TRL and accelerate do,
gets another one.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

import torch

from probe.collect.trace.capture import Capture
from probe.collect.trace.events import Place, Recorder
from probe.collect.trace.gradients import Edges, Gradients
from probe.collect.trace.internals import (
    graph_task_running,
    is_compiled,
    is_traced_by_jit,
    own_parameters,
    version,
)
from probe.collect.trace.items import Leaves
from probe.collect.trace.registry import NamedModule, Registry, gathered_parameters
from probe.collect.trace.watched import Watched, watched_method
from probe.errors import RecordError
from probe.language import tell

Stop = Callable[[Exception], None]
"""What is done with an error of the trace: raised to the trainer, or told and no more recorded."""


@dataclass
class Frame:
    """A call of a module that has not ended.

    Example:
        >>> Frame("actor.head", 0, None, Place(None, 0, 0, 0)).objects
        []
    """

    name: str
    call: int
    recomputed: bool | None
    place: Place
    objects: list[Any] = field(default_factory=list)
    """Caches and the like that the module got, which the calls inside it get too."""
    edges: Edges | None = None
    """Where its inputs come from in the autograd graph; None while no graph is made."""
    captured: bool = False
    """Whether it is the call that is captured."""


class _Calls(threading.local):
    """The calls that have not ended, of each thread."""

    def __init__(self) -> None:
        self.stack: list[Frame] = []


class Modules:
    """Watches the modules of a registry.

    Args:
        recorder: Takes the events.
        registry: Says which modules, and what they are called.
        gradients: Watches the gradients of what modules return.
        first_use: Called with the role when a module is entered, before anything is recorded of it.
        stop: Takes errors.
        capture: Captures one call; None captures none.
    """

    def __init__(
        self,
        recorder: Recorder,
        registry: Registry,
        gradients: Gradients,
        first_use: Callable[[str], None],
        stop: Stop,
        capture: Capture | None = None,
    ) -> None:
        self.on = True
        self._capture = capture
        self._recorder = recorder
        self._registry = registry
        self._gradients = gradients
        self._first_use = first_use
        self._stop = stop
        self._calls = _Calls()
        self._patched: dict[type, tuple[Any, Any]] = {}
        self._own: dict[int, tuple[weakref.ref[torch.nn.Module], MethodType, MethodType]] = {}
        """Modules with a bound method of their own as ``forward``, by id: it, and what stands for it."""
        self._hidden: dict[int, tuple[NamedModule, str]] = {}
        """Modules that cannot be watched, by id, and why."""

    def watch(self) -> None:
        """Replaces ``forward`` of classes that were not seen yet, and says which modules cannot be watched."""
        for named in self._registry.modules.values():
            kind = type(named.module)
            if is_compiled(named.module):
                self._hide(named, tell("torch.compile or torch.jit runs it; its inside cannot be seen"))
            elif "forward" in named.module.__dict__:
                if not self._patch_own(named.module):
                    self._hide(named, tell("its own forward takes the place of its class's"))
            elif not self._is_watched(kind) and not self._patch(kind):
                self._hide(named, "its forward is no function")

    def restore(self) -> None:
        """Puts every ``forward`` back. One that something else has replaced since stays, and records no more."""
        self.on = False
        for kind, (own, ours) in self._patched.items():
            if kind.__dict__.get("forward") is not ours:
                continue
            if own is None:
                delattr(kind, "forward")
            else:
                kind.forward = own  # type: ignore[attr-defined]
        self._patched.clear()
        for reference, own, ours in self._own.values():
            module = reference()
            if module is not None and module.__dict__.get("forward") is ours:
                module.forward = own
        self._own.clear()

    def _is_watched(self, kind: type) -> bool:
        """Whether a class has our ``forward``: a library may have put its own there since."""
        return kind in self._patched and kind.__dict__.get("forward") is self._patched[kind][1]

    def tell_hidden(self, role: str) -> None:
        """Says, in the stage that a model begins to run in, which of its modules cannot be watched there."""
        for named, why in self._hidden.values():
            if role in named.names:
                self._tell(named, named.names[role], why)

    def _hide(self, named: NamedModule, why: str) -> None:
        if id(named.module) not in self._hidden:
            self._hidden[id(named.module)] = (named, why)
            self._tell(named, named.in_stage(None)[1], why)

    def _tell(self, named: NamedModule, name: str, why: str) -> None:
        self._recorder.emit("not_observed", name, None, [], note=why, module=type(named.module).__name__)

    def _patch(self, kind: type) -> bool:
        """Replaces a class's forward; False where that cannot be done."""
        own = kind.__dict__.get("forward")
        seen = getattr(kind, "forward", None)
        if seen is torch.nn.Module.forward or seen is None:
            return True  # a container that nobody calls
        if not isinstance(seen, FunctionType) or not (own is None or isinstance(own, FunctionType)):
            return False
        run = own if own is not None else _inherited(kind)
        stands = Watched(
            seen, self._watching(run, seen, lambda module: type(module) is kind and not self._has_own(module))
        )
        kind.forward = stands  # type: ignore[attr-defined]
        self._patched[kind] = (own, stands)
        return True

    def _has_own(self, module: torch.nn.Module) -> bool:
        return id(module) in self._own and "forward" in module.__dict__

    def _patch_own(self, module: torch.nn.Module) -> bool:
        """Replaces a module's own forward; False where that cannot be done."""
        own = module.__dict__["forward"]
        known = self._own.get(id(module))
        if known is not None and known[2] is own:
            return True
        if not isinstance(own, MethodType) or own.__self__ is not module:
            return False
        run: Callable[..., Any] = own.__func__
        ours = watched_method(own, self._watching(run, run, self._has_own))
        self._own[id(module)] = (weakref.ref(module), own, ours)
        module.forward = ours
        return True

    def _watching(
        self, run: Callable[..., Any], seen: Callable[..., Any], is_mine: Callable[[torch.nn.Module], bool]
    ) -> Callable[..., Any]:
        """What stands for a forward.

        Args:
            run: It, as a function of the module.
            seen: What it looks like to those who ask for its signature.
            is_mine: Whether the calls of a module are watched here, and not in a subclass or on the module itself.
        """
        watching, registry = self, self._registry

        @functools.wraps(seen)
        def forward(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not watching.on or not is_mine(module):
                return run(module, *args, **kwargs)
            named = registry.module(module)
            if named is None or is_traced_by_jit():
                return run(module, *args, **kwargs)
            frame = watching.enter(named, args, kwargs)
            if frame is None:
                return run(module, *args, **kwargs)
            try:
                result = run(module, *args, **kwargs)
            except BaseException as error:
                watching.fail(frame, error)
                raise
            watching.leave(frame, result)
            return result

        return forward

    def enter(self, named: NamedModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Frame | None:
        """A module is entered. Returns None where the recording has stopped."""
        try:
            frame = self._enter(named, args, kwargs)
        except Exception as error:  # noqa: BLE001  (the probe says what becomes of it)
            self._stop(error)
            return None
        self._calls.stack.append(frame)
        return frame

    def _enter(self, named: NamedModule, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Frame:
        recorder = self._recorder
        place = recorder.place
        role, name = named.in_stage(place.stage)
        if role not in place.roles and place.stage is not None:
            self._first_use(role)
        if not named.sharded:
            self._changed(named.module, role, name, place)
        stack = self._calls.stack
        leaves = Leaves({id(one) for frame in stack for one in frame.objects})
        self._collect(leaves, name, "args", args)
        if kwargs:
            self._collect(leaves, name, "kwargs", kwargs)
        items = recorder.items(name, leaves.found)
        call, recomputed = None, None
        inputs = tuple(item[3] for item in items)
        if graph_task_running():
            call = place.again(name, inputs)
            recomputed = True if call is not None else None
        if call is None:
            call = place.next_call(name)
            if place.stage is None or place.stage.endswith("_update") or torch.is_grad_enabled():
                place.earlier.setdefault(name, []).append((inputs, call))
        kind = type(named.module).__name__
        recorder.emit("forward_input", name, call, items, module=kind, recomputed=recomputed)
        if named.sharded and (call == 0 or torch.is_grad_enabled()):
            self._gathered(named, name, call)
        if name == role and torch.is_grad_enabled():
            self._gradients.reductions.entered(role)
        edges = self._gradients.enter(leaves.found, [frame.edges for frame in stack])
        frame = Frame(name, call, recomputed, place, leaves.objects, edges)
        if self._capture is not None:
            if named.sharded:
                self._capture.gathered(place, name, named.module)
            frame.captured = self._capture.enter(place, recorder.step, name, call, named.module, (args, kwargs))
        return frame

    def _collect(self, leaves: Leaves, name: str, path: str, value: Any) -> None:
        """Collects the leaves of what a module got or returned; what cannot be opened to its end is not observed."""
        try:
            leaves.add(path, value)
        except RecordError as error:
            self._recorder.emit("not_observed", name, None, [], note=str(error))

    def _changed(self, module: torch.nn.Module, role: str, name: str, place: Place) -> None:
        """The module's own weights, where they were changed in place since they were last recorded in this stage."""
        changed = []
        for key, weight in own_parameters(module).items():
            before = None if weight is None else place.versions.get(id(weight))
            if weight is not None and before is not None and before != (now := version(weight)):
                place.versions[id(weight)] = now
                changed.append((f"{name}.{key}"[len(role) + 1 :], weight))
        if changed:
            self._recorder.emit("weights", role, None, self._recorder.items(role, changed), note=tell("changed"))

    def _gathered(self, named: NamedModule, name: str, call: int) -> None:
        """The whole weights, as a module of FSDP2 sees them; and their gradients, before they are reduced."""
        weights = gathered_parameters(named.module)
        if not weights:
            return
        self._recorder.emit("weights", name, call, self._recorder.items(name, weights), note=tell("gathered"))
        for path, weight in weights:
            if weight.requires_grad:
                self._gradients.watch_parameter(weight, f"{name}.{path}")

    def leave(self, frame: Frame, result: Any) -> None:
        """A module has returned."""
        self._pop(frame)
        if not self.on:
            return
        try:
            stack = self._calls.stack
            leaves = Leaves({id(one) for outer in stack for one in outer.objects})
            self._collect(leaves, frame.name, "out", result)
            items = self._recorder.items(frame.name, leaves.found)
            self._recorder.emit("forward_output", frame.name, frame.call, items, recomputed=frame.recomputed)
            if frame.captured and self._capture is not None:
                self._capture.leave(leaves.found)
            outer = stack[-1].edges if stack else None
            self._gradients.leave(frame.name, frame.call, frame.edges, leaves.found, outer)
        except Exception as error:  # noqa: BLE001  (the probe says what becomes of it)
            self._stop(error)

    def fail(self, frame: Frame, error: BaseException) -> None:
        """A module was left by an exception, which is the trainer's own: nothing may hide it."""
        self._pop(frame)
        if self.on:
            note = tell("left by {error}", error=type(error).__name__)
            self._recorder.emit("forward_output", frame.name, frame.call, [], note=note, recomputed=frame.recomputed)

    def _pop(self, frame: Frame) -> None:
        stack = self._calls.stack
        while stack and stack.pop() is not frame:
            continue


def _inherited(kind: Any) -> Callable[..., Any]:
    def run(module: Any, *args: Any, **kwargs: Any) -> Any:
        return super(kind, module).forward(*args, **kwargs)

    return run
