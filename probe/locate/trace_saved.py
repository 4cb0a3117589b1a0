"""What a trainer saves of a stage after the place where the runs first differ: it tells code behind the model apart."""

from __future__ import annotations

from dataclasses import dataclass

from probe.compare.trace_found import RankTrace
from probe.errors import DumpError
from probe.store.trace_events import NO_EVENT, STEP, Item, TraceEvent, parse_event, parse_place, step_of
from probe.store.trace_reader import TraceFile
from probe.types import STAGE_OF_TAG, TAGS

_LATER = ("grad_norm", "weights")
"""Tags of what comes after the gradients."""
_MOST = 100_000
"""Most events that are looked at."""

_Values = dict[str, list[tuple[Item, ...]]]


@dataclass(frozen=True, slots=True)
class SavedLater:
    """Tags that the rest of a stage saves in both runs, those that come from others behind them.

    Example:
        >>> SavedLater(("log_prob",), ("loss",)).different[0]
        'loss'
    """

    same: tuple[str, ...] = ()
    different: tuple[str, ...] = ()


def saved_later(found: RankTrace) -> SavedLater:
    """Looks on from the first difference of a rank to the end of its stage, and to what is saved of it then.

    Raises:
        DumpError: A trace cannot be read any more, or holds what is no event.
    """
    if found.first is None or found.file is None or found.other is None:
        return SavedLater()
    event = found.first.event
    one = _saved(found.file, found.offset, event)
    two = _saved(found.other, found.other_offset, event)
    tags = sorted({*one} & {*two}, key=lambda tag: TAGS.index(tag) if tag in TAGS else len(TAGS))
    return SavedLater(
        tuple(tag for tag in tags if one[tag] == two[tag]), tuple(tag for tag in tags if one[tag] != two[tag])
    )


def _saved(file: TraceFile, offset: int, event: TraceEvent) -> _Values:
    values: _Values = {}
    ended = False
    try:
        for number, line in enumerate(file.lines_from(offset)):
            if number > _MOST or step_of(line[line.rfind(STEP) :]) != event.step:
                break
            place = parse_place(line)
            ended |= place.kind == "stage_end" and place.stage == event.stage
            if place.kind == "stage_start":
                break
            mine = STAGE_OF_TAG.get(place.label) == event.stage if ended else place.stage == event.stage
            if place.kind == "data" and mine and place.label not in _LATER:
                values.setdefault(place.label, []).append(parse_event(line).items)
    except NO_EVENT as error:
        raise DumpError(f"{file.path}: a line is damaged ({error})") from error
    return values
