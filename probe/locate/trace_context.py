"""What lies before the first differing event of a rank: read backward from it, no further than its step.

Everything before it is the same in both runs, so one trace is enough.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

from probe.compare.trace_found import RankTrace
from probe.errors import DumpError
from probe.store.trace_events import KIND, NO_EVENT, STEP, Item, TraceEvent, parse_event, parse_place, step_of
from probe.store.trace_reader import TraceFile

PRECEDING = 20
"""Events before the first differing one that people see."""
HIDDEN = 20
"""Most events that could not be observed and are named."""

MOST_PARSED = 100_000
"""Most events that are looked at one by one: what lies further back is counted only."""

_FORWARD = ("forward_input", "forward_output")
_BACKWARD = ("grad_output", "grad_input", "param_grad")


@dataclass
class Context:
    """What is known of the events before a difference.

    Example:
        >>> Context().position
        0
    """

    before: list[TraceEvent] = field(default_factory=list)
    """The last ``PRECEDING`` events, oldest first, without their items."""
    position: int = 0
    """How many events of the same stage lie before it in its step; between stages, since the last of them."""
    stage_before: str | None = None
    """For what is recorded in no stage: the stage that came before it in its step."""
    root_left: bool = False
    """Whether a whole model gave its outputs in this stage entry; between stages, in the stage before."""
    forward_before: bool = False
    """Whether any module ran in it."""
    gradient_before: bool = False
    """Whether a gradient was seen since a module last ran forward."""
    update_before: bool = False
    """Whether an optimizer was seen."""
    enclosing: str | None = None
    """The module that was entered and not left; in a backward, the one whose gradient arrived and was not passed on."""
    enclosing_call: int | None = None
    """The number of that call of it."""
    last_inside: str | None = None
    """Of a module's output: the last module inside it that gave one, in the same call."""
    hidden: list[TraceEvent] = field(default_factory=list)
    """What could not be observed in the same stage entry: the last ``HIDDEN``, oldest first."""


def context_of(found: RankTrace) -> Context:
    """Reads back from a rank's first difference.

    Raises:
        DumpError: The trace cannot be read any more, or holds what is no event.
    """
    assert found.first is not None and found.file is not None
    walk = _Walk(found.first.event)
    for line in found.file.lines_before(found.offset):
        try:
            if not walk.take(line):
                break
        except NO_EVENT as error:
            raise DumpError(f"{found.file.path}: a line is damaged ({error})") from error
    return walk.finish()


class _Walk:
    """Goes back event by event: one by one to the start of the stage entry, then counting to that of the step."""

    def __init__(self, event: TraceEvent) -> None:
        self._event = event
        self._context = Context()
        self._here = b',"stage":%s,"step":%d' % (json.dumps(event.stage).encode(), event.step)
        self._in_entry = True
        self._at_place = True  # between stages: no stage was met yet
        self._in_backward = True
        self._parsed = 0
        self._nearest = _Nearest(event)
        self._inside = event.kind == "forward_output"

    def take(self, line: bytes) -> bool:
        """Looks at one line; False when nothing further back matters."""
        context, event = self._context, self._event
        in_step = step_of(line[line.rfind(STEP) :]) == event.step
        wanted = len(context.before) < PRECEDING
        if not wanted and not in_step:
            return False
        if in_step and self._at_place and self._here in line:
            context.position += 1
        look = in_step and self._in_entry
        if wanted or look:
            found = parse_place(line)
            if wanted:
                context.before.append(found)
            if look:
                self._take_in_entry(found)
        return wanted or look or event.stage is not None

    def finish(self) -> Context:
        """What was found."""
        context = self._context
        context.before.reverse()
        context.hidden.reverse()
        if (nearest := self._nearest.event) is not None:
            context.enclosing, context.enclosing_call = nearest.label, nearest.call
        return context

    def _take_in_entry(self, found: TraceEvent) -> None:
        context, stage = self._context, self._event.stage
        if stage is None and found.stage is not None and context.stage_before is None:
            context.stage_before, self._at_place = found.stage, False
        entry = stage or context.stage_before
        self._parsed += 1
        self._in_entry = self._parsed < MOST_PARSED
        if found.stage != entry:
            self._in_entry &= stage is None and context.stage_before is None
            return
        self._in_entry &= found.kind != "stage_start"
        context.update_before |= found.kind == "optimizer"
        context.forward_before |= found.kind in _FORWARD
        context.root_left |= found.kind == "forward_output" and found.is_root
        self._in_backward &= found.kind not in _FORWARD or found.recomputed
        context.gradient_before |= self._in_backward and found.kind in _BACKWARD
        if found.kind == "not_observed" and len(context.hidden) < HIDDEN:
            context.hidden.append(found)
        self._nearest.take(found)
        if self._inside and found.kind in _FORWARD and found.recomputed == self._event.recomputed:
            inner = found.kind == "forward_output" and found.label.startswith(f"{self._event.label}.")
            context.last_inside = found.label if inner else None
            self._inside = False


class _Nearest:
    """Finds the module around an event, going back: entered and not left, of its own ancestors the nearest."""

    def __init__(self, event: TraceEvent) -> None:
        backward = event.kind in _BACKWARD
        self._opens, self._closes = ("grad_output", "grad_input") if backward else _FORWARD
        self._stops = _FORWARD if backward else ()
        self._event = event
        self._closed: Counter[str] = Counter()
        self._over = False
        self._ancestor: TraceEvent | None = None
        self._other: TraceEvent | None = None

    def take(self, found: TraceEvent) -> None:
        """Looks at one event before those that it has seen."""
        if self._over or found.recomputed != self._event.recomputed:
            return  # checkpointing never leaves the last modules that it runs again
        around = found.kind == self._opens and self._event.label.startswith(f"{found.label}.")
        if self._stops and self._ancestor is not None:
            # one gradient arrives at all modules that return the same tensor: the innermost is the nearest
            if around and found.label.startswith(f"{self._ancestor.label}."):
                self._ancestor = found
            else:
                self._over = True
        elif found.kind in self._stops:
            self._over = True
        elif around and self._stops:
            self._ancestor = found  # of what it passes on, parts may have come before the rest
        elif found.kind == self._closes:
            self._closed[found.label] += 1
        elif found.kind == self._opens and self._closed[found.label]:
            self._closed[found.label] -= 1
        elif found.kind == self._opens:
            if around:
                self._ancestor, self._over = found, True
            self._other = self._other or found

    @property
    def event(self) -> TraceEvent | None:
        """The event that opened the module's call; None when there is none."""
        return self._ancestor or self._other


def last_items(file: TraceFile, offset: int, kind: str, name: str) -> tuple[Item, ...] | None:
    """The items of the last event of a kind and name before a place, in any step; None when there is none.

    Raises:
        DumpError: The trace cannot be read any more, or holds what is no event.
    """
    wanted = b'%s%s"' % (KIND, kind.encode())
    try:
        for line in file.lines_before(offset):
            if wanted in line and (found := parse_event(line)).name == name:
                return found.items
    except NO_EVENT as error:
        raise DumpError(f"{file.path}: a line is damaged ({error})") from error
    return None


def last_before(file: TraceFile, offset: int, event: TraceEvent) -> TraceEvent | None:
    """The last event of the same kind and name before a place, in any step; None when there is none.

    Raises:
        DumpError: The trace cannot be read any more, or holds what is no event.
    """
    kind = b'%s%s"' % (KIND, event.kind.encode())
    try:
        for line in file.lines_before(offset):
            if kind in line and (found := parse_place(line)).name == event.name:
                return found
    except NO_EVENT as error:
        raise DumpError(f"{file.path}: a line is damaged ({error})") from error
    return None
