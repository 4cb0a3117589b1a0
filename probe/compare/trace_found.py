"""What a comparison of traces finds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

from probe.store.trace_events import TraceEvent
from probe.store.trace_reader import TraceFile

FOLLOWING = 50
"""Differing events after the first that are kept."""
DATA_KEPT = 10_000
"""Most differing values that were saved and are named."""

Status = Literal["same", "different", "missing", "extra", "not_observed", "not_compared", "idle"]
DIFFERING: tuple[Status, ...] = ("different", "missing", "extra")
Saved = tuple[int, int, int, str, str]
"""Rank, step, micro-step, tag and path of a saved value."""


@dataclass(frozen=True, slots=True)
class EventDifference:
    """An event that is not the same in both traces.

    Example:
        >>> EventDifference("missing", TraceEvent(7, 0, None, None, "rng", "python"), None).event.index
        7
    """

    status: Status
    """``missing``: only ``a`` has it; ``extra``: only ``b`` has it."""
    a: TraceEvent | None
    b: TraceEvent | None

    @property
    def event(self) -> TraceEvent:
        """The event of the run that has it, ``a`` before ``b``."""
        event = self.a or self.b
        assert event is not None
        return event


@dataclass
class RankTrace:
    """How the traces of one rank compare.

    Example:
        >>> RankTrace(0).differences
        0
    """

    rank: int
    counts: Counter[Status] = field(default_factory=Counter)
    first: EventDifference | None = None
    first_index: int | None = None
    """Position in the trace of ``a`` at which the traces are first not the same."""
    offset: int = 0
    """Bytes of the trace of ``a`` before that position."""
    following: list[EventDifference] = field(default_factory=list)
    """The differing events after the first: at most ``FOLLOWING``."""
    saved: set[Saved] = field(default_factory=set)
    """Saved values that differ: at most ``DATA_KEPT``."""
    only_saved: bool = True
    """Whether nothing but the values in ``saved`` differs."""
    last_index: int | None = None
    """Position in the trace of ``a`` of the last differing event."""
    file: TraceFile | None = None
    """The trace of ``a``, for what lies around a difference."""
    other: TraceFile | None = None
    """The trace of ``b``: the same up to ``offset``."""
    other_offset: int = 0
    """Bytes of it before that position."""
    idle: tuple[str, ...] = ()
    """Generators whose states differ, and from which nothing was drawn: their events are no differences."""
    last_step: int | None = None
    """Events of later steps were left out; None where none were."""
    places: set[tuple[Status, bytes]] = field(default_factory=set)
    """Stages and steps in which something differs, as ``place_in_step`` gives them."""

    @property
    def compared(self) -> int:
        """Events that were looked at on both sides, or are known to be on one side only."""
        return self.counts["same"] + self.differences

    @property
    def differences(self) -> int:
        """How many events make the runs divergent."""
        return sum(self.counts[status] for status in DIFFERING)


@dataclass
class TraceComparison:
    """Every event that either run has, compared.

    Example:
        >>> TraceComparison().recorded
        False
    """

    recorded: bool = False
    """Whether either run has traces."""
    ranks: dict[int, RankTrace] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What makes the comparison incomplete, one sentence each."""

    def total(self, *statuses: Status) -> int:
        """Events of all ranks with one of some statuses."""
        return sum(rank.counts[status] for rank in self.ranks.values() for status in statuses)

    @property
    def compared(self) -> int:
        """Events that were looked at on both sides, or are known to be on one side only."""
        return self.total("same", *DIFFERING)

    @property
    def differences(self) -> int:
        """How many events make the runs divergent."""
        return self.total(*DIFFERING)

    @property
    def whole(self) -> bool:
        """Whether everything that was recorded was compared."""
        return not self.problems and not self.total("not_compared")
