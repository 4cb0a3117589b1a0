"""Any script, with no edit: its outermost module calls, its losses and its optimizers tell what a ``Probe`` is told.

A stage begins with a module that no other module calls, is called after the model that it belongs to (and
``.no_grad`` where gradients are off), and lasts until another model is called, or a backward or an update lies between.
A training step ends when each optimizer has made its update and something is called again. A script without an
optimizer has a step for each such call.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from probe.adapters import Host
from probe.adapters.guard import guarded
from probe.adapters.opening import Opening
from probe.adapters.steps import Steps

if TYPE_CHECKING:
    from probe.adapters.naming import Names
    from probe.collect import Probe
    from probe.types import RunSpec

NO_GRAD = ".no_grad"


def install(host: Host) -> None:
    """Begins to observe this process: torch has just been imported."""
    host.observer = ScriptObserver(host)


class _Depth(threading.local):
    inside = False


class ScriptObserver:
    """Observes a script. Opens a ``Probe`` when a module is called for the first time.

    Args:
        host: Where it is at home.
    """

    def __init__(self, host: Host) -> None:
        self.on = True
        self._host = host
        self._opening = Opening(host, self._end)
        self._depth = _Depth()
        self._names: Names | None = None
        self._stage = ""
        self._open_stage = ExitStack()
        self._entered: Counter[str] = Counter()
        self._steps = Steps()
        self._fresh = True
        """Whether the open stage is over for whoever comes next: a backward or an update has come since."""
        self._saves = False
        self._running = False
        """Whether a call of the observed thread has begun and not returned."""
        self._thread = 0
        self.lent_to: Any = None
        """What observes a training in this one's place, until ``take_back``; None where nothing does."""
        self._unseen: list[torch.optim.Optimizer] = []
        """Optimizers that made their first update since something was called."""
        self._plain_call = torch.nn.Module.__call__
        self._plain_backward = torch.autograd.backward
        self._plain_init = torch.optim.Optimizer.__init__
        self._call = self._observed_call(self._plain_call)
        self._backward = self._observed_backward(self._plain_backward)
        self._init = self._observed_init(self._plain_init)
        torch.nn.Module.__call__ = self._call  # type: ignore[method-assign]
        torch.autograd.backward = self._backward
        torch.optim.Optimizer.__init__ = self._init  # type: ignore[method-assign]
        self._hook = register_optimizer_step_post_hook(self._updated)

    def step_back(self) -> Probe | None:
        """See ``Adapter``."""
        if self.lent_to is not None:
            self.lent_to.stop()
        self._remove()
        self._close_stage()
        return self._opening.hand_over()

    def lend(self, borrower: Any) -> tuple[Probe, RunSpec] | None:
        """Leaves the observation to an adapter that knows more, until ``take_back``.

        Args:
            borrower: Its ``stop`` is called when the script opens a ``Probe`` itself.

        Returns:
            The open probe, which stays this one's to close, and what it records; None where nothing is recorded.
        """
        if not self.on or self.lent_to is not None or self._opening.of_a_fork or not self._is_own_thread():
            return None
        probe, spec = self._opening.open(), self._opening.spec
        if probe is None or spec is None:
            self._remove()
            return None
        if self._steps.over("call" if spec.step == "call" else "optimizer") and not self._next_step(probe):
            return None
        self._close_stage()
        if self._names is not None:
            probe.attach(**dict.fromkeys(self._names.roles))
            self._names = None  # attached anew when they are called again
        self.lent_to = borrower
        return probe, spec

    def take_back(self, steps: int) -> None:
        """Goes on with the observation.

        Args:
            steps: Steps that were ended meanwhile.
        """
        self.lent_to = None
        if self._opening.probe is not None and self._opening.probe.finished:
            self._remove()
        if steps:
            self._entered.clear()
            self._steps.ended()
        self._steps.taken_back()

    # ---- what stands in torch's place ----

    def _observed_call(self, run: Callable[..., Any]) -> Callable[..., Any]:
        observer, depth = self, self._depth

        @functools.wraps(run)
        def __call__(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or depth.inside or not observer._looks:
                return run(module, *args, **kwargs)
            depth.inside = True
            try:
                caller = sys._getframe(1)  # noqa: SLF001  (the only way to see who calls)
                observed = bool(observer._safely(observer._enter, module, args, kwargs, caller))
                observer._running |= observed
                result = run(module, *args, **kwargs)
                if observed:
                    observer._running = False
                    observer._safely(observer._leave, result)
                return result
            finally:
                depth.inside = False

        return __call__

    def _observed_backward(self, run: Callable[..., Any]) -> Callable[..., Any]:
        observer = self

        @functools.wraps(run)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if not torch.compiler.is_compiling() and observer._looks:
                observer._safely(observer._loss, tensors)
            try:
                return run(tensors, *args, **kwargs)
            finally:
                observer._fresh = True

        return backward

    def _observed_init(self, run: Callable[..., Any]) -> Callable[..., Any]:
        observer = self

        @functools.wraps(run)
        def __init__(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
            run(optimizer, *args, **kwargs)
            observer._steps.made(optimizer)

        return __init__

    def _updated(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._looks:
            self._fresh = True
            if self._steps.updated(optimizer):
                self._unseen.append(optimizer)

    @property
    def _looks(self) -> bool:
        """Whether what is called now is this one's to observe."""
        return self.on and self.lent_to is None

    def _remove(self) -> None:
        """Puts back what was there. What something else has replaced since stays, and does nothing more."""
        if not self.on:
            return
        self.on = False
        self._hook.remove()
        if torch.nn.Module.__call__ is self._call:
            torch.nn.Module.__call__ = self._plain_call  # type: ignore[method-assign]
        if torch.autograd.backward is self._backward:
            torch.autograd.backward = self._plain_backward
        if torch.optim.Optimizer.__init__ is self._init:
            torch.optim.Optimizer.__init__ = self._plain_init  # type: ignore[method-assign]

    # ---- what is told to the probe ----

    def _safely(self, tell: Callable[..., Any], *args: Any) -> Any:
        """Ends the observation, and not the script, where something cannot be understood. See ``guarded``."""
        return guarded(tell, args, self._remove, self._opening.give_up)

    def _enter(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType | None
    ) -> bool:
        """A module is called, and not by another. Returns whether its outputs are recorded."""
        from probe.adapters import naming, seen

        if not seen.is_real(args, kwargs):
            return False
        if self._opening.of_a_fork:
            self._remove()
            self._host.problem("a forked process called modules, and cannot record into its parent's dump")
            return False
        if not self._is_own_thread():
            return False
        probe = self._opening.open()
        if probe is None or self._opening.spec is None:
            self._remove()
            return False
        if self._steps.over(self._opening.spec.step) and not self._next_step(probe):
            return False
        self._names = self._names or naming.Names()
        role, found, model = self._names.role_of(module, frame)
        empty = naming.is_empty(module)
        if model is not None and (found or not empty):
            probe.attach(**{role: model})
        self._attach_loose(probe)
        if empty and (self._stage or not found):
            return False  # a loss, say: part of the stage that is open
        self._steps.called()
        self._running = False
        stage = role if torch.is_grad_enabled() else f"{role}{NO_GRAD}"
        if self._fresh or stage != self._stage:
            self._begin(probe, stage, frame)
        self._saves = not empty
        if self._saves:
            self._save(probe, "inputs", {"args": args, "kwargs": kwargs})
        return self._saves

    def _is_own_thread(self) -> bool:
        """Whether it is the thread that called first; what others call side by side has no order to compare."""
        self._thread = self._thread or threading.get_ident()
        if self._thread == threading.get_ident():
            return True
        if not self._running:  # else it is a part of that call, as of torch.nn.DataParallel
            self._host.problem("modules were called in more than one thread: only the calls of the first are recorded")
        return False

    def _leave(self, result: Any) -> None:
        if self._opening.probe is not None:
            self._save(self._opening.probe, "outputs", {"out": result})

    def _loss(self, tensors: Any) -> None:
        from probe.adapters import seen

        if self._opening.probe is not None and seen.is_real((tensors,), {}):
            losses = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
            self._save(self._opening.probe, "loss", {"loss": losses[0] if len(losses) == 1 else losses})

    def _save(self, probe: Probe, tag: str, values: dict[str, Any]) -> None:
        from probe.adapters import seen

        traced = self._opening.spec is not None and self._opening.spec.trace
        found = seen.tensors(values, seen.MOST_BYTES if traced else sys.maxsize)
        if found:
            probe.save({tag: found["loss"] if list(found) == ["loss"] else found})

    def _attach_loose(self, probe: Probe) -> None:
        """Attaches what optimizers update and no attached model holds, as a model of its own: ``loose``."""
        if self._unseen and self._names is not None:
            loose = self._names.loose(self._unseen)
            self._unseen.clear()
            if loose is not None:
                probe.attach(loose=loose)

    def _begin(self, probe: Probe, stage: str, frame: FrameType | None) -> None:
        self._close_stage()
        assert self._names is not None
        if not self._entered:
            for name, generator in self._names.new_generators(frame):
                probe.attach_rng(**{name: generator})
        micro_step = self._entered[stage]
        self._entered[stage] += 1
        self._open_stage.enter_context(probe.stage(stage, micro_step=micro_step))
        self._stage, self._fresh = stage, False

    def _close_stage(self) -> None:
        self._stage, self._fresh = "", True
        self._open_stage.close()

    def _next_step(self, probe: Probe, last: bool = False) -> bool:
        """A training step has ended. Returns whether anything more is recorded."""
        self._close_stage()
        self._entered.clear()
        self._steps.ended()
        probe.step(last)
        if probe.finished:
            self._remove()
        return not probe.finished

    def _end(self) -> None:
        """The process ends: what came after the last step is the beginning of one more."""
        self._remove()
        probe, spec = self._opening.probe, self._opening.spec
        if probe is None or spec is None or not self._entered or probe.finished:
            return
        if _ends_by_an_error() and (self._running or not self._steps.over(spec.step)):
            self._close_stage()  # a step that was broken off is none
        else:
            self._next_step(probe, last=True)


def _ends_by_an_error() -> bool:
    """Whether this process ends by an exception, that of a thread's or a child's function included."""
    error = getattr(sys, "last_value", None) or sys.exc_info()[1]
    return error is not None and not isinstance(error, SystemExit)
