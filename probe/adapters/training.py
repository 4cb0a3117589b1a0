"""One ``train()`` of a ``transformers.Trainer``: its update, loss, gradients and steps, told to a ``Probe``.

An update is the stage ``actor_update``, entered once for each micro-batch; the model that is trained is ``actor``. A
step ends when the next one begins, or with the training: what is evaluated between belongs to the step before.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch

from probe.adapters import seen
from probe.adapters.guard import guarded
from probe.errors import RecordError

if TYPE_CHECKING:
    from probe.collect import Probe
    from probe.types import RunSpec

UPDATE = "actor_update"
EVALUATION = "actor.evaluate"
Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


class Training:
    """Observes a trainer for as long as it trains.

    Args:
        trainer: A ``transformers.Trainer``, or what derives from it.
        problem: Is told what keeps the recording from being whole.
    """

    def __init__(self, trainer: Any, problem: Callable[[str], None]) -> None:
        self.trainer = trainer
        self.probe: Probe
        self.on = False
        self.steps = 0
        """Steps that have ended."""
        self.roles: dict[str, torch.nn.Module] = {}
        """What is attached."""
        self._most = seen.MOST_BYTES
        self._problem = problem
        self._stage = ExitStack()
        self._entered: Counter[str] = Counter()
        self._pending = False
        """Whether a step is whole that has not been ended."""
        self._updating = self._evaluating = False
        self._callback: Any = None
        self._wrapped: list[tuple[Any, str, Any, dict[str, Any]]] = []

    # ---- begin and end ----

    def observe(self, probe: Probe, spec: RunSpec, train: Callable[[], Any]) -> Any:
        """Observes a training.

        Args:
            probe: Records.
            spec: What it records.
            train: Trains.

        Returns:
            What that returns.
        """
        self.probe, self._most = probe, seen.MOST_BYTES if spec.trace else sys.maxsize
        self.tell(self.begin)
        try:
            result = train()
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)
        return result

    def begin(self) -> None:
        """The trainer is about to train."""
        self.on = True
        self.wrap(self.trainer, "compute_loss", self._compute_loss)
        self.wrap(self.trainer, "prediction_step", self._prediction_step)
        self.wrap(self.trainer.accelerator, "clip_grad_norm_", self._clip_grad_norm)
        self._callback = _callback_of(self)
        self.trainer.add_callback(self._callback)

    def _end(self, error: BaseException | None) -> None:
        self.close_update(error)
        if self._pending and self.on:
            self.tell(self._end_step, error is None)
        self.stop()
        self.probe.attach(**dict.fromkeys(self.roles))

    def stop(self) -> None:
        """Takes away all that was put into the trainer. May be called again."""
        self.on = False
        for holder, name, ours, own in self._wrapped:
            if holder.__dict__.get(name) is ours:
                delattr(holder, name)
                holder.__dict__.update(own)
        self._wrapped.clear()
        if self._callback is not None:
            self.trainer.remove_callback(self._callback)
            self._callback = None

    def wrap(self, holder: Any, name: str, make: Wrap) -> None:
        """Puts something in place of a method, on one object alone.

        Args:
            holder: The object.
            name: The method.
            make: Gets the bound method, and returns what stands for it.
        """
        run = getattr(holder, name)
        own = {name: run} if name in holder.__dict__ else {}
        ours = functools.wraps(run)(make(run))
        setattr(holder, name, ours)
        self._wrapped.append((holder, name, ours, own))

    # ---- what the trainer says ----

    def trains(self, state: Any) -> None:
        """The models are ready, and the first step comes."""
        self.tell(self._attach)
        done = getattr(state, "global_step", 0)
        if done:
            self.tell(self._resume, done)

    def step_begins(self) -> None:
        """A training step begins."""
        if self._pending:
            self.tell(self._end_step, False)

    def step_ended(self) -> None:
        """The optimizer has made its update."""
        self.close_update()
        self._pending = True

    def _end_step(self, last: bool) -> None:
        self._pending = False
        self._entered.clear()
        self.steps += 1
        self.probe.step(last)
        if self.probe.finished:
            self.stop()

    def _attach(self) -> None:
        self.roles = {"actor": self.trainer.model}
        reference = getattr(self.trainer, "ref_model", None)
        if isinstance(reference, torch.nn.Module):
            self.roles["reference"] = reference
        rewards = [one for one in getattr(self.trainer, "reward_funcs", ()) if isinstance(one, torch.nn.Module)]
        for number, model in enumerate(rewards):
            self.roles["reward" if number == 0 else f"reward_{number + 1}"] = model
        self.probe.attach(**self.roles)

    def _resume(self, done: int) -> None:
        with suppress(RecordError):  # another trainer came before: its steps go on
            self.probe.resume(done)

    # ---- what is told to the probe ----

    @property
    def idle(self) -> bool:
        """Whether what happens now is no part of the training."""
        return not self.on or self._evaluating

    @property
    def updating(self) -> bool:
        """Whether a loss is being computed for an update."""
        return self._updating

    def count(self, name: str) -> int:
        """How often a stage was entered in this step."""
        return self._entered[name]

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage, entered once more."""
        self.close_update()
        with ExitStack() as stack:
            self.tell(self._enter, stack, name)
            yield

    def save(self, values: dict[str, Any], mask: torch.Tensor | None = None, micro_step: int | None = None) -> None:
        """Records key data, unless nothing is observed any more. See ``Probe.save``."""
        if self.on:
            self.tell(lambda: self.probe.save(values, mask=mask, micro_step=micro_step))

    def tell(self, call: Callable[..., Any], *args: Any) -> Any:
        """Ends the observation, and not the training, where something cannot be understood. See ``guarded``.

        Args:
            call: Tells the probe.
            args: Its arguments.

        Raises:
            FirstdiffError: The probe's own.
            OSError: The same.
        """
        return guarded(call, args, self.stop, self._give_up)

    def _give_up(self, error: Exception) -> None:
        self._problem(f"the observation of the trainer stopped ({type(error).__name__}: {error})")

    def _enter(self, stack: ExitStack, name: str) -> None:
        micro_step = self._entered[name]
        self._entered[name] += 1
        stack.enter_context(self.probe.stage(name, micro_step=micro_step))

    def close_update(self, error: BaseException | None = None) -> None:
        """A micro-batch is done.

        Args:
            error: Ended it; None where it is whole.
        """
        stack, self._stage = self._stage, ExitStack()
        if error is None:
            stack.close()
        else:
            stack.__exit__(type(error), error, error.__traceback__)

    # ---- what stands in the trainer's place ----

    def _compute_loss(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def compute_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if self.idle:
                return run(model, inputs, *args, **kwargs)
            self.close_update()
            self.tell(self._save_batch, inputs)
            self.tell(self._enter, self._stage, UPDATE)
            self._updating = True
            try:
                result = run(model, inputs, *args, **kwargs)
            finally:
                self._updating = False
            self.tell(self._save_loss, result)
            return result

        return compute_loss

    def _save_loss(self, result: Any) -> None:
        self.save({**self.parts_of_loss(), "loss": result[0] if isinstance(result, tuple) else result})

    def parts_of_loss(self) -> dict[str, Any]:
        """What else is known of the loss that was just computed, by tag."""
        return {}

    def _save_batch(self, inputs: Any) -> None:
        found = seen.tensors({"args": inputs}, self._most)
        batch = {name.removeprefix("args_"): value for name, value in found.items()}
        if batch:
            self.save({"inputs": batch}, micro_step=self._entered[UPDATE])

    def _prediction_step(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def prediction_step(*args: Any, **kwargs: Any) -> Any:
            if self.idle:
                return run(*args, **kwargs)
            with self.stage(EVALUATION):
                self._evaluating = True
                try:
                    result = run(*args, **kwargs)
                finally:
                    self._evaluating = False
                found = seen.tensors({"out": result}, self._most)
                if found:
                    self.save({"outputs": found})
                return result

        return prediction_step

    def _clip_grad_norm(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def clip_grad_norm_(*args: Any, **kwargs: Any) -> Any:
            norm = run(*args, **kwargs)
            if not self.idle and isinstance(norm, torch.Tensor | float):
                self.save({"grad_norm": norm})
            return norm

        return clip_grad_norm_


def _callback_of(training: Training) -> Any:
    """What the trainer tells of its course, by its public events."""
    from transformers.trainer_callback import TrainerCallback

    class Firstdiff(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            training.trains(state)

        def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            training.step_begins()

        def on_substep_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            training.close_update()

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            training.step_ended()

    return Firstdiff()
