"""The events of a process, in the order of execution: where it is (step, stage, calls), and what is handed on."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from probe.collect.trace.digests import Digests, Item, Later
from probe.collect.trace.internals import graph_task_running
from probe.collect.trace.items import Leaf
from probe.errors import RecordError
from probe.store.background import Background
from probe.store.trace import Event
from probe.store.writer import DumpWriter

TOGETHER = 256
"""Events that are handed to the writing thread together: waking it for each costs more than the event."""
_HELD = 16 << 20
"""Bytes that wait to be hashed before they are handed over."""


@dataclass
class Place:
    """A stage that is open, or none.

    Example:
        >>> place = Place("actor_update", 0, 0, thread=1)
        >>> place.next_call("actor"), place.next_call("actor")
        (0, 1)
    """

    stage: str | None
    micro_step: int
    rank: int
    thread: int
    calls: Counter[str] = field(default_factory=Counter)
    """Calls of each name by now."""
    earlier: dict[str, list[tuple[tuple[Any, ...], int]]] = field(default_factory=dict)
    """Calls that gradient checkpointing may run again, by name: what they got, and their number."""
    roles: set[str] = field(default_factory=set)
    """Roles whose weights were recorded since the stage began."""
    versions: dict[int, int] = field(default_factory=dict)
    """How often each of their parameters was changed in place by then, by id."""

    def next_call(self, name: str) -> int:
        """The number of a new call."""
        number = self.calls[name]
        self.calls[name] = number + 1
        return number

    def again(self, name: str, inputs: tuple[Any, ...]) -> int | None:
        """The call that is run again: the last one with the same inputs, else the last one; None where none waits."""
        waiting = self.earlier.get(name)
        if not waiting:
            return None
        found = next((index for index in reversed(range(len(waiting))) if waiting[index][0] == inputs), -1)
        return waiting.pop(found)[1]


class Recorder:
    """Puts events in order and hands them to the writing thread.

    Args:
        writer: Writes them.
        background: The writing thread, which also writes saved data.
        own_rank: The rank outside of any stage.
    """

    def __init__(self, writer: DumpWriter, background: Background, own_rank: Callable[[], int]) -> None:
        self.digests = Digests()
        self.step = 0
        self._writer = writer
        self._background = background
        self._own_rank = own_rank
        self._outside = Place(None, 0, own_rank(), 0)
        self._open: list[Place] = []
        self._batch: list[tuple[int, Event]] = []
        self._held = 0
        self._lock = threading.Lock()

    @property
    def place(self) -> Place:
        """The stage that this thread has open; in a backward pass that runs in a thread of autograd's, the last one."""
        opened = self._open
        if opened:
            thread = threading.get_ident()
            for place in reversed(opened):
                if place.thread == thread:
                    return place
            if graph_task_running():
                return opened[-1]
        return self._outside

    def open(self, stage: str, micro_step: int, rank: int) -> Place:
        """A stage begins."""
        place = Place(stage, micro_step, rank, threading.get_ident())
        self._open.append(place)
        return place

    def shut(self, place: Place) -> None:
        """A stage has ended."""
        self._open.remove(place)

    def next_step(self, step: int) -> None:
        """From here on events belong to this step."""
        self.step = step
        self._outside = Place(None, 0, self._own_rank(), 0)

    def items(self, name: str, leaves: Iterable[Leaf], **more: Any) -> list[Item]:
        """Items of leaves; one that has no exact bytes is an event ``not_observed`` of its own."""
        made = []
        for path, value in leaves:
            try:
                made.append(self.digests.item(path, value))
            except RecordError as error:
                self.emit("not_observed", name, None, [], note=f"{path}: {error}", **more)
        return made

    def emit(self, kind: str, name: str, call: int | None, items: list[Item], **more: Any) -> None:
        """Adds an event.

        Args:
            kind: One of ``probe.store.trace.KINDS``.
            name: What it is about.
            call: Number of the call; None where that does not apply.
            items: Path, dtype, shape and digest of each value.
            more: Further keys; those that are None are left out.
        """
        place = self.place
        self.add(place.rank, place.stage, place.micro_step, kind, name, call, items, more)

    def add(
        self,
        rank: int,
        stage: str | None,
        micro_step: int,
        kind: str,
        name: str,
        call: int | None,
        items: list[Any],
        more: dict[str, Any],
    ) -> None:
        """Adds an event of a place that is said; see ``emit``."""
        event: Event = {
            "step": self.step,
            "stage": stage,
            "micro_step": micro_step,
            "kind": kind,
            "name": name,
            "call": call,
            "items": items,
        }
        for key, value in more.items():
            if value is not None:
                event[key] = value
        with self._lock:
            self._batch.append((rank, event))
            for item in items:
                if type(item[3]) is Later:
                    self._held += item[3].size
            full = len(self._batch) >= TOGETHER or self._held > _HELD
        if full:
            self.flush()

    def flush(self) -> None:
        """Hands the events over, after everything that was handed over before.

        Raises:
            OSError: Writing failed since the last call.
        """
        with self._lock:  # also over the submission: batches keep their order
            batch, held = self._batch, self._held
            self._batch, self._held = [], 0
            if batch:
                self._background.submit(partial(self._write, batch), held)

    def _write(self, batch: list[tuple[int, Event]]) -> None:
        for rank, event in batch:
            for item in event["items"]:
                if not isinstance(item[3], str):
                    item[3] = item[3].text()
            rows = event.get("rows")
            if callable(rows):
                found = rows()
                event.pop("rows")
                if found:
                    event["rows"] = found
            self._writer.add_events(rank, [event], self.digests.algorithms if event["items"] else ())
