"""Which stages of which steps are the same in the traces of two runs."""

from __future__ import annotations

from collections.abc import Iterator

from probe.compare import TraceComparison
from probe.compare.entries import Status
from probe.compare.trace_found import RankTrace
from probe.errors import DumpError
from probe.language import tell
from probe.store import layout
from probe.store.trace_events import NO_EVENT, place_in_step, stage_and_step
from probe.store.trace_reader import CHUNK, TraceFile
from probe.types import STAGES

Cells = dict[tuple[str, int, int], Status]
"""By stage, step and rank."""
_WORST: tuple[Status, ...] = ("different", "missing", "extra", "not_compared")
_START = b',"kind":"stage_start"'
BETWEEN = tell("between stages")


def stage_cells(traces: TraceComparison | None) -> Cells:
    """What each stage of each step and rank is; nothing without traces.

    Of traces that were not compared as a whole, nothing is taken for the same.

    Args:
        traces: How the traces compare.
    """
    cells: Cells = {}
    if traces is None:
        return cells
    unlike: Status = "same" if traces.whole else "not_compared"
    for rank, found in traces.ranks.items():
        try:
            for place in _entered(found):
                stage, step = stage_and_step(place)
                cells[stage or BETWEEN, step, rank] = unlike
            for status, place in sorted(found.places, key=lambda pair: -_WORST.index(_known(pair[0]))):
                stage, step = stage_and_step(place)
                cells[stage or BETWEEN, step, rank] = _known(status)
        except (DumpError, OSError, *NO_EVENT):
            continue  # a trace that vanished has no row
    return cells


def stage_order(stage: str) -> tuple[int, str]:
    """Where a stage stands in a step."""
    return (STAGES.index(stage) if stage in STAGES else len(STAGES), stage)


def _known(status: str) -> Status:
    return next((known for known in _WORST if known == status), "not_compared")


def _entered(found: RankTrace) -> set[bytes]:
    """The ends of all lines that begin a stage, in the trace of either run."""
    places = {place for file in (found.file, found.other) if file is not None for place in set(_starts(file))}
    if found.last_step is None:
        return places
    return {place for place in places if stage_and_step(place)[1] <= found.last_step}


def _starts(file: TraceFile) -> Iterator[bytes]:
    with layout.open_plain(file.path) as stream:
        rest = b""
        while piece := stream.read(CHUNK):
            text = rest + piece
            end = text.rfind(b"\n") + 1
            at = text.find(_START, 0, end)
            while at >= 0:
                stop = text.find(b"\n", at)
                yield place_in_step(text[at:stop])
                at = text.find(_START, stop, end)
            rest = text[end:]
