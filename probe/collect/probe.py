"""``Probe``: what a trainer calls. Records key data, weights, layers and the environment; changes nothing."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from probe.collect import environment
from probe.collect.keydata import save
from probe.collect.ranks import place_of_process, rank_now, unwrapped
from probe.collect.spec import opened_for_the_script, spec_from_env
from probe.collect.stacks import show_stacks_on_signal
from probe.collect.trace import Capture, ExecutionTracer, Surviving, Tracer, Untraced
from probe.collect.values import count, host_mask, named
from probe.collect.weights import WeightRecorder
from probe.errors import DumpError, RecordError
from probe.language import tell
from probe.store import layout
from probe.store.background import Background
from probe.store.writer import DumpWriter, Place, mark_incomplete
from probe.types import STAGES, RunSpec

if TYPE_CHECKING:
    from probe.collect.layers import LayerDumper


class Probe:
    """Records one trainer process.

    Without a spec it is inert: every method returns at once.

    Args:
        spec: What to record, and where to; None records nothing.
        place: Which of the run's several processes this is; None finds out.

    Raises:
        DumpError: The dump folder is not empty or cannot be made.
        UsageError: The environment names a rank that cannot be.

    Example:
        >>> probe = Probe.from_env()
        >>> with probe.stage("actor_update", micro_step=0):
        ...     probe.save({"loss": torch.tensor(0.5)})
        >>> probe.step()
    """

    def __init__(self, spec: RunSpec | None = None, place: Place | None = None) -> None:
        self._spec = spec
        self._models: dict[str, torch.nn.Module] = {}
        self._open_stages = threading.local()
        self._step = 0
        self._writer: DumpWriter | None = None
        self._background: Background | None = None
        self._weights: WeightRecorder | None = None
        self._layers: LayerDumper | None = None
        self._tracer: Tracer = Untraced()
        self._environment_written = False
        self._place = place
        self._failed = False
        if spec is not None:
            self._open(spec)

    @classmethod
    def from_env(cls) -> Probe:
        """The probe that a check asked for through ``FIRSTDIFF_SPEC``; inert where that is not set.

        Raises:
            UsageError: The spec cannot be read.
            DumpError: The dump folder is not empty or cannot be made.
        """
        opened = opened_for_the_script()
        if isinstance(opened, cls):
            return opened
        spec = spec_from_env()
        if spec is not None:
            show_stacks_on_signal()
        return cls(spec)

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._writer is not None

    @property
    def finished(self) -> bool:
        """Whether every step that the check needs is recorded: a trainer may stop. Never true when inert."""
        return self._spec is not None and self._spec.last_step is not None and self._step > self._spec.last_step

    def resume(self, step: int) -> None:
        """Says from which step a training goes on: what is recorded next belongs to it.

        Args:
            step: Steps that are done already; 0 for a training that begins.

        Raises:
            RecordError: Something was recorded in a later step.
        """
        if step < self._step:
            raise RecordError(f"resume({step}): step {self._step} has begun already")
        self._step = step
        with self._guard():
            self._tracer.step(step)

    def attach(self, **models: torch.nn.Module | None) -> None:
        """Names the models, by role: ``actor``, ``reference``, ``critic``, ``rollout``. May be called again.

        At the end of every step the digests of all their parameters and buffers are recorded as tag ``weights``. A
        model inside a wrapper for data parallel training has the names that it has alone; of sharded parameters, each
        rank records its own shard.

        Args:
            models: The modules; None takes a role away.

        Raises:
            TypeError: A value is not a module.
        """
        for role, model in models.items():
            if model is None:
                self._models.pop(role, None)
            elif isinstance(model, torch.nn.Module):
                self._models[role] = unwrapped(model)
            else:
                raise TypeError(f"attach({role}=…): expected a torch.nn.Module, not {type(model).__name__}")
        if not self._idle:
            with self._guard():
                self._tracer.attach(self._models)

    def attach_rng(self, **generators: Any) -> None:
        """Names random generators of the trainer's own, whose states a trace records at each stage's start.

        Args:
            generators: Generators of torch, NumPy or ``random``, by name; None takes a name away.

        Raises:
            TypeError: A value is no such generator.
        """
        if not self._idle:
            for name, generator in generators.items():
                self._tracer.attach_rng(name, generator)

    @contextmanager
    def stage(self, name: str, micro_step: int | None = None, rank: int | None = None) -> Iterator[None]:
        """Marks a stage of the training step; may be entered many times in a step.

        Args:
            name: One of ``probe.types.STAGES``; or the role of an attached model, alone or as ``ROLE.what``.
            micro_step: What records inside it belong to, from 0.
            rank: Rank, for trainers that simulate ranks in one process.

        Raises:
            ValueError: The stage is unknown.
        """
        if name not in STAGES and not self._is_own_stage(name):
            raise ValueError(f"unknown stage {name!r}; the stages are {', '.join(STAGES)}")
        self._not_after_close()
        if self._idle:
            yield
            return
        place, opened, traced = (name, 0, 0), False, None
        with self._guard():
            place = (name, count("micro_step", micro_step or 0), self._own_rank(self._rank(rank)))
            opened = self._open_window(*place)
            traced = self._tracer.stage_start(*place)
        entered = self._stages  # the entering thread's: another may end the stage, as at the end of the process
        entered.append(place)
        try:
            with self._layers.paused(name) if self._layers is not None else nullcontext():
                yield
        except BaseException:
            if self._layers is not None and opened:
                self._layers.abandon()
            with self._guard(ending=True):
                self._tracer.stage_end(traced)
            raise
        finally:
            entered.pop()
        with self._guard():
            self._tracer.stage_end(traced)
        with self._guard():
            if self._layers is not None and opened:
                self._layers.close()

    def save(
        self,
        data: dict[str, Any],
        mask: torch.Tensor | None = None,
        rank: int | None = None,
        micro_step: int | None = None,
    ) -> None:
        """Records key data: the values as they are at this moment.

        They are copied to the host at once; digests, statistics and files are made beside the training.

        Args:
            data: Tag to tensor, NumPy array, number, string, or nested dicts and lists of them, of any shape. A tag
                saved again at the same step, rank and micro-step is kept again.
            mask: Entries that count in the values of the same shape; non-zero means that the entry counts.
            rank: Rank, for trainers that simulate ranks in one process.
            micro_step: Micro-step, from 0; by default that of the open stage.

        Raises:
            RecordError: A tag is no folder name, or a value has no exact bytes (sparse, quantised, an object).
            DumpError: Writing failed, now or since the last call.
        """
        self._not_after_close()
        writer, background = self._writer, self._background
        if self._idle or writer is None or background is None or self._spec is None or not self._spec.keeps_data:
            return
        stage, stage_micro_step, stage_rank = self._stages[-1] if self._stages else (None, 0, self._rank(None))
        with self._guard():
            if not isinstance(data, dict):
                raise RecordError(f"save takes a dict of tag to value, not {type(data).__name__}")
            own_rank = self._own_rank(stage_rank if rank is None else rank)
            place = (self._step, own_rank, count("micro_step", stage_micro_step if micro_step is None else micro_step))
            self._own_process()
            with named("mask"):
                kept = None if mask is None else host_mask(mask)
            for tag, value in data.items():
                layout.check_tag(tag)
                save(self._spec, writer, background, self._tracer, (tag, *place), stage, value, kept)

    def step(self, last: bool = False) -> None:
        """Ends a training step: records the attached models' weights and notes that the step is whole.

        Does not wait for the disk, unless more waits to be written than may be held.

        Args:
            last: Whether the training ends with it; a trace then shows which random states nothing drew from.

        Raises:
            DumpError: Writing failed since the last call.
        """
        self._not_after_close()
        writer, background = self._writer, self._background
        if self._spec is None or writer is None or background is None:
            return
        if not self._idle:
            with self._guard():
                self._own_process()
                self._tracer.step(self._step + 1, last or self._step == self._spec.last_step)
                self._write_environment(self._spec)
                if self._weights is not None:
                    self._weights.save(self._models, self._step, self._rank(None))
                background.submit(partial(writer.finish_step, self._step), 0)
        self._step += 1
        if self.finished:
            with self._guard():
                self._tracer.close()

    def close(self, failed: bool = False) -> None:
        """Ends the recording, when everything is written. Called at the interpreter's exit when a trainer does not.

        Args:
            failed: Whether the run went wrong: its dump is then never taken for a whole one. An exception that ended
                the interpreter is noticed without it; an exit status is not, only who started the run sees that.

        Raises:
            DumpError: Writing failed since the last call.
        """
        writer, background = self._writer, self._background
        if writer is None or background is None or self._spec is None or self._process != os.getpid():
            return  # a fork is not the run's end
        atexit.unregister(self._close_at_exit)
        failed = failed or self._failed or getattr(sys, "last_value", None) is not self._last_error
        whole = False
        try:
            with self._guard(ending=failed):
                self._tracer.close()
                self._write_environment(self._spec)
                background.finish()
                whole = True
        finally:
            complete = whole and not failed
            with self._guard(ending=not complete):
                writer.close(complete)
            self._writer = self._background = None

    # ---- inside ----

    @property
    def _stages(self) -> list[tuple[str, int, int]]:
        """The stages that this thread has open, with micro-step and rank; what another thread saves is not in them."""
        if not hasattr(self._open_stages, "stack"):
            self._open_stages.stack = []
        stack: list[tuple[str, int, int]] = self._open_stages.stack
        return stack

    def _is_own_stage(self, name: str) -> bool:
        """Whether a stage is called after an attached model, and its name can name a folder."""
        role, *more = name.split(".")
        return role in self._models and all(part.isidentifier() for part in (role, *more))

    def _not_after_close(self) -> None:
        """What comes after the end is lost: the dump must not be taken for a whole one."""
        if self._spec is None or self._writer is not None or self._failed or self._process != os.getpid():
            return
        with self._guard():
            mark_incomplete(self._folder, f"the trainer went on after close(), at step {self._step}")
            raise RecordError("close() has ended the recording; call it when the training ends")

    @property
    def _idle(self) -> bool:
        """Whether nothing is to be recorded at this point."""
        return self._writer is None or self._failed or self.finished

    def _open(self, spec: RunSpec) -> None:
        folder = Path(spec.dump_path).absolute()
        self._place = self._place or place_of_process()
        if self._place is None:
            layout.claim(folder)
        else:
            layout.claim_for_rank(folder, self._place.rank)
        self._folder = folder
        self._process = os.getpid()
        self._last_error = getattr(sys, "last_value", None)
        with self._guard():
            self._writer = DumpWriter(folder, spec.run, spec.key_data == "full", self._place, spec.trace)
            self._background = Background()
            if spec.key_data != "off":
                self._weights = WeightRecorder(spec.digest, self._writer, self._background)
            if spec.trace:
                parts = self._writer, self._background, lambda: self._rank(None)
                self._tracer = Surviving(
                    lambda stop: ExecutionTracer(*parts, stop, self._capture(spec)), self._trace_ended
                )
            first = self._place is None or self._place.rank == 0
            if first and spec.configurations and spec.configuration is not None:
                self._writer.write_file(layout.CONFIGURATIONS, spec.configuration)
            if spec.dump_stages:
                from probe.collect.layers import LayerDumper

                self._layers = LayerDumper(folder, spec, None if self._place is None else self._place.rank)
        atexit.register(self._close_at_exit)

    def _close_at_exit(self) -> None:
        """Closes when the trainer did not: too late to fail, but never to say so."""
        try:
            self.close()
        except Exception as error:  # noqa: BLE001  (what is raised here, Python reports as ignored, with a traceback)
            sys.stderr.write(f"firstdiff: {error or type(error).__name__}\n")

    def _capture(self, spec: RunSpec) -> Capture | None:
        """What captures a call of a module, if one of this process is asked for."""
        own = self._place is None or spec.capture is None or spec.capture.rank == self._place.rank
        return Capture(self._folder, spec.capture) if spec.capture is not None and own else None

    def _rank(self, rank: int | None) -> int:
        if rank is not None:
            return rank
        return self._place.rank if self._place is not None else rank_now()

    def _own_rank(self, rank: object) -> int:
        """A rank that this process may record.

        Raises:
            RecordError: It is no rank, or that of another process.
        """
        number = count("rank", rank)
        if self._place is not None and number != self._place.rank:
            raise RecordError(f"rank={number} in the process of rank {self._place.rank}: each process saves its own")
        return number

    def _open_window(self, stage: str, micro_step: int, rank: int) -> bool:
        """Opens a layer window if the stage is to be dumped and none is open. Returns whether it did."""
        if self._layers is None or not self._layers.wants(stage, self._step):
            return False
        return self._layers.open(stage, self._step, rank, micro_step, self._models)

    def _own_process(self) -> None:
        if self._process != os.getpid():
            raise RecordError("a forked process cannot record into its parent's dump; save in the parent")

    def _write_environment(self, spec: RunSpec) -> None:
        if not self._environment_written and self._writer is not None:
            environment.write(self._writer, self._place, spec.determinism, self._models)
        self._environment_written = True

    @contextmanager
    def _guard(self, ending: bool = False) -> Iterator[None]:
        """Turns an error of the probe into the trainer's end, or into the end of recording, as the spec says.

        Args:
            ending: The trainer ends by an error of its own, which must not be hidden: nothing is raised or printed.
        """
        try:
            yield
        except BaseException as error:
            told, self._failed = self._failed, True
            message = f"recording stopped at step {self._step}: {error or type(error).__name__}"
            if not told:
                self._tracer.abandon()
                self._note(message)
            if not isinstance(error, Exception):  # an interruption: what was to be recorded may be lost
                raise
            if ending:
                return
            if self._spec is None or self._spec.on_error == "raise":
                if isinstance(error, OSError):
                    raise DumpError(f"{self._folder}: {message}") from error
                raise
            if not told:
                sys.stderr.write(f"firstdiff: {message}; training goes on\n")

    def _trace_ended(self, error: Exception) -> None:
        """Takes the error that ended the trace: a full disk ends all recording, any other nothing but the trace."""
        if isinstance(error, OSError):
            with self._guard():
                raise error
        what = {"step": self._step, "why": f"{type(error).__name__}: {error}"}
        self._note(tell("the trace stopped at step {step} ({why}); record.trace=false checks without it", **what))
        stopped = f"the trace stopped at step {self._step} ({what['why']})"
        sys.stderr.write(f"firstdiff: {stopped}; training goes on\n")

    def _note(self, message: str) -> None:
        """Leaves a message that keeps the dump from being taken for a whole one."""
        try:
            if self._process != os.getpid():  # the manifest is the parent's; a file beside its indexes is found too
                (self._folder / layout.INDEX / f"lost-in-a-fork-{os.getpid()}").touch()
            elif self._writer is not None:
                self._writer.note_error(message)
        except OSError:
            sys.stderr.write(f"firstdiff: {message}; the manifest could not be updated\n")
