"""The events of the stage in which two runs first differ: from their traces, else from their layer dumps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from probe.compare import LayerComparison
from probe.compare.trace_align import align_events
from probe.compare.trace_found import RankTrace, Status
from probe.errors import DumpError
from probe.language import join, recall, tell
from probe.store import layout
from probe.store.layers import Window, find_windows, read_events
from probe.store.trace_events import ITEMS, NO_EVENT, TraceEvent, parse_event, parse_place, place_in_step, place_of
from probe.store.trace_reader import LONGEST_LINE, TraceFile

MOST = 100_000
"""Most events that are kept: where there are more, at least half of them lie on the longer side of the difference."""
_START, _END = b',"kind":"stage_start"', b',"kind":"stage_end"'
Lines = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event of either run.

    Example:
        >>> SeenEvent(7, "same", "forward_input", "actor.model.norm", 0).module is None
        True
    """

    index: int
    """Position in the trace of the run that has it, ``a`` before ``b``; in a layer dump among its events."""
    status: Status
    kind: str
    name: str
    call: int | None
    micro_step: int | None = None
    module: str | None = None
    """Class of the module."""
    note: str = ""


@dataclass
class StageEvents:
    """What happened in one entry of a stage, or between two stages.

    Example:
        >>> StageEvents("trace").first is None
        True
    """

    source: str
    """``trace`` of runs a and b, or ``layers`` of the runs that dumped them."""
    stage: str | None = None
    step: int = 0
    rank: int = 0
    events: list[SeenEvent] = field(default_factory=list)
    first: int | None = None
    """Which of them is the first that differs."""
    lines: list[Lines] = field(default_factory=list, repr=False)
    """Of traces: the lines of both runs."""
    cut: bool = False
    """Whether there were more events than are kept."""

    def of_module(self, name: str, call: int) -> Iterator[tuple[SeenEvent, TraceEvent | None, TraceEvent | None]]:
        """The events of one call of a module, with what each run has there; nothing without traces."""
        for event, (one, two) in zip(self.events, self.lines, strict=False):
            if event.name == name and event.call == call:
                yield event, one and parse_event(one) or None, two and parse_event(two) or None


def events_of_traces(found: RankTrace) -> StageEvents | None:
    """The stage around a rank's first difference; None where there is none, or the traces cannot be read any more.

    Args:
        found: How the traces of a rank compare.
    """
    if found.first is None or found.file is None or found.other is None:
        return None
    event = found.first.event
    result = StageEvents("trace", event.stage, event.step, found.rank)
    place = place_of(event)
    try:
        before, result.cut = _before(found.file, found.offset, place, MOST)
        room = max(MOST - len(before), MOST // 2)
        left, cut_a = _after(found.file, found.offset, place, room)
        right, cut_b = _after(found.other, found.offset, place, room)
        room = MOST - max(len(left), len(right))
        result.cut |= cut_a or cut_b or len(before) > room
        before = before[-room:]
        result.lines = [(line, line) for line in before]
        result.events = [_seen(parse_place(line), "same") for line in before]
        _add_pairs(result, left, right)
    except (DumpError, OSError, *NO_EVENT):
        return None
    result.first = _first(result, found)
    return result


def events_of_layers(layers: LayerComparison, folders: Iterable[Path]) -> StageEvents | None:
    """The layer window of the first difference; None where no layer differs, or the dump cannot be read any more.

    Args:
        layers: How the layers compare.
        folders: The dump folders of both runs.
    """
    first, one = layers.first, next(iter(folders), None)
    if first is None or one is None:
        return None
    window = first.window
    statuses: dict[tuple[str, str, int], Status] = {
        other.event.key: other.status for other in layers.differences if other.window.key == window.key
    }
    result = StageEvents("layers", window.stage, window.step, window.rank)
    try:
        events = read_events(_window(one, window) or window)
    except DumpError:
        return None
    missing = [other.event for other in layers.differences if other.window.key == window.key]
    known = {event.key for event in events}
    for index, event in enumerate([*events, *(event for event in missing if event.key not in known)]):
        if event.key == first.event.key:
            result.first = index
        name = f"{window.role}.{event.name}" if event.name else window.role
        status = statuses.get(event.key, "same")
        result.events.append(SeenEvent(index, status, event.kind, name, event.call, window.micro_step))
    return result


def _window(folder: Path, like: Window) -> Window | None:
    return next((window for window in find_windows(folder) if window.key == like.key), None)


def _before(file: TraceFile, offset: int, place: bytes, most: int) -> tuple[list[bytes], bool]:
    """The lines of the same stage entry before a difference, and whether there were more."""
    lines: list[bytes] = []
    for line in file.lines_before(offset):
        if place_in_step(line) != place:
            return lines[::-1], False
        if len(lines) == most:
            return lines[::-1], True
        lines.append(line)
        if _START in line:
            break
    return lines[::-1], False


def _after(file: TraceFile, offset: int, place: bytes, most: int) -> tuple[list[bytes], bool]:
    """The lines of the same stage entry from a difference on, and whether there were more."""
    lines: list[bytes] = []
    with layout.open_plain(file.path) as stream:
        stream.seek(offset)
        while line := stream.readline(LONGEST_LINE):
            line = line.rstrip(b"\n")
            if place_in_step(line) != place or (lines and _START in line):
                break
            if len(lines) == most:
                return lines, True
            lines.append(line)
            if _END in line:
                break
    return lines, False


def _add_pairs(result: StageEvents, left: list[bytes], right: list[bytes]) -> None:
    at_left = at_right = 0
    for i, j in [*align_events(left, right), (len(left), len(right))]:
        for line in left[at_left:i]:
            _add(result, line, None, "missing")
        for line in right[at_right:j]:
            _add(result, None, line, "extra")
        if i < len(left) and j < len(right):
            one, two = left[i], right[j]
            _add(result, one, two, "same" if one[one.find(ITEMS) :] == two[two.find(ITEMS) :] else "different")
        at_left, at_right = i + 1, j + 1


def _add(result: StageEvents, one: bytes | None, two: bytes | None, status: Status) -> None:
    result.events.append(_seen(parse_place(one or two or b""), status))
    result.lines.append((one, two))


def _seen(event: TraceEvent, status: Status) -> SeenEvent:
    note = join(", ", [*[tell("recomputed")] * event.recomputed, *([recall(event.note)] if event.note else [])])
    if event.kind == "not_observed" and status == "same":
        status = "not_observed"
    return SeenEvent(event.index, status, event.kind, event.label, event.call, event.micro_step, event.module, note)


def _first(result: StageEvents, found: RankTrace) -> int | None:
    """Where the event that was named is."""
    assert found.first is not None
    named = found.first.event
    unlike = [number for number, event in enumerate(result.events) if event.status not in ("same", "not_observed")]
    same = (
        number
        for number in unlike
        if (result.events[number].kind, result.events[number].name) == (named.kind, named.label)
    )
    return next(same, unlike[0] if unlike else None)
