"""What a comparison of key data finds: every entry counted, per tag and step, and the first of them in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from probe.compare.cosine import Products
from probe.compare.values import ValueDifference
from probe.language import tell
from probe.types import Record

END_OF_STEP = "end_of_step"
"""Stands for a step that a run finished, where only one did."""
GAP = 1 << 20
"""Between the positions of two entries that the leading rank has: room for what only further ranks have."""
LAST_POSITION = 1 << 60
NOTHING_RECORDED = tell("neither run recorded key data: nothing was compared")
KEPT_ENTRIES = 10_000
"""Most entries that are kept in full; all of them are counted."""

Status = Literal["same", "different", "missing", "extra", "unreadable", "not_compared"]
DIFFERING: tuple[Status, ...] = ("different", "missing", "extra")
"""What makes two runs divergent."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry that is not the same in both runs.

    Example:
        >>> Entry("missing", 2, 0, 5, None, None).order
        (2, 5, 0)
    """

    status: Status
    """``missing``: only ``a`` has it; ``extra``: only ``b`` has it; ``not_compared``: the other run ended before."""
    step: int
    rank: int
    position: int
    """Where it stands in the step, by the order of the lowest rank that has records."""
    a: Record | None
    b: Record | None
    problem: str | None = None
    """Why it could not be read, or what there is to say of a difference beside its values."""
    difference: ValueDifference | None = None
    """How the values differ; None where they were not kept, or have no elements in common."""

    @property
    def order(self) -> tuple[int, int, int]:
        """Sorts entries by execution order, and where that is the same by rank."""
        return (self.step, self.position, self.rank)

    @property
    def record(self) -> Record:
        """The record of the run that has it, ``a`` before ``b``."""
        record = self.a or self.b
        assert record is not None
        return record

    @property
    def harmless(self) -> str | None:
        """Where the difference alone changes no number that counts, what it is limited to; None where it may."""
        if self.status != "different" or self.a is None or self.b is None or self.a.stage != self.b.stage:
            return None
        if self.a.dtype != self.b.dtype:
            return None
        if self.a.masked is not None and self.a.masked == self.b.masked:
            return tell("entries outside the mask")
        return self.difference.harmless if self.difference else None


@dataclass(slots=True)
class Cell:
    """All entries of one tag, step and rank.

    Example:
        >>> Cell().counts["same"]
        0
    """

    counts: Counter[Status] = field(default_factory=Counter)
    first: Entry | None = None
    """The first entry that is not the same."""
    elements: int | None = None
    """Elements that differ, in all entries whose values were kept; None where there are none to count."""
    max_absolute: float | int | None = None
    max_relative: float | None = None
    max_ulp: int | None = None
    products: Products | None = None
    """What the cosine of the entries that differ comes from, all their values in a row; None where none were kept."""

    def add(self, entry: Entry) -> None:
        """Takes in an entry that is not the same."""
        self.counts[entry.status] += 1
        if self.first is None or entry.order < self.first.order:
            self.first = entry
        if (difference := entry.difference) is not None:
            self.elements = (self.elements or 0) + difference.count
            self.max_absolute = max(self.max_absolute or 0, difference.max_absolute)
            self.max_relative = max(self.max_relative or 0.0, difference.max_relative)
            self.products = difference.products.plus(self.products or Products())
            if difference.max_ulp is not None:
                self.max_ulp = max(self.max_ulp or 0, difference.max_ulp)


class _First:
    """The first entries of many, by their order."""

    def __init__(self) -> None:
        self._kept: list[Entry] = []
        self._worst: tuple[int, int, int] | None = None

    def add(self, entry: Entry) -> None:
        if self._worst is None or entry.order < self._worst:
            self._kept.append(entry)
            if len(self._kept) >= 2 * KEPT_ENTRIES:
                self._worst = self.sorted()[-1].order

    def __getstate__(self) -> list[Entry]:
        """What another process needs of it."""
        return self.sorted()

    def __setstate__(self, kept: list[Entry]) -> None:
        self._kept, self._worst = kept, None

    def take(self, other: _First) -> None:
        for entry in other.sorted():
            self.add(entry)

    def sorted(self) -> list[Entry]:
        self._kept = sorted(self._kept, key=lambda entry: entry.order)[:KEPT_ENTRIES]
        return self._kept


@dataclass
class KeyDataComparison:
    """Every entry that either run has, compared.

    Example:
        >>> KeyDataComparison().verdict
        'inconclusive'
    """

    counts: Counter[Status] = field(default_factory=Counter)
    entries: list[Entry] = field(default_factory=list)
    """The first entries that are not the same, in order: at most ``KEPT_ENTRIES`` that differ, and as many that could
    not be compared. There when the comparison has ended."""
    problems: list[str] = field(default_factory=list)
    """What makes the comparison incomplete, one sentence each."""
    compared_to_step: int | None = None
    """The last step that both runs finished, -1 for none; None where both ended as they should."""
    _cells: dict[tuple[str, int, int], Cell] = field(default_factory=dict, repr=False)
    _uncounted: list[tuple[int, Callable[[], Counter[tuple[int, str]]]]] = field(default_factory=list, repr=False)
    _differing: _First = field(default_factory=_First, repr=False)
    _other: _First = field(default_factory=_First, repr=False)

    @property
    def cells(self) -> dict[tuple[str, int, int], Cell]:
        """What was found for each tag, step and rank. Whole indexes that are the same are counted when this is read."""
        while self._uncounted:
            rank, count = self._uncounted.pop()
            for (step, tag), records in count().items():
                self._cell(tag, step, rank).counts["same"] += records
        return self._cells

    @property
    def differing(self) -> list[Entry]:
        """Entries that make the runs divergent: the first ``KEPT_ENTRIES``."""
        return [entry for entry in self.entries if entry.status in DIFFERING]

    @property
    def compared(self) -> int:
        """Entries that were looked at on both sides, or are known to be on one side only."""
        return self.counts["same"] + self.differences

    @property
    def differences(self) -> int:
        """How many entries make the runs divergent."""
        return sum(self.counts[status] for status in DIFFERING)

    @property
    def verdict(self) -> Literal["identical", "divergent", "inconclusive"]:
        """What the key data alone says.

        A difference that is harmless by itself is a difference here: only a trace can show that nothing followed.
        """
        if self.differences:
            return "divergent"
        if self.problems or self.counts["unreadable"] or self.counts["not_compared"] or not self.compared:
            return "inconclusive"
        return "identical"

    def count(self, status: Status, tag: str, step: int, rank: int, count: int = 1) -> None:
        """Counts entries that need not be kept."""
        self.counts[status] += count
        self._cell(tag, step, rank).counts[status] += count

    def count_later(self, rank: int, total: int, count: Callable[[], Counter[tuple[int, str]]]) -> None:
        """Counts the records of a rank that are all the same, and by step and tag only if somebody asks.

        Args:
            rank: The rank.
            total: How many there are.
            count: Counts them by step and tag.
        """
        self.counts["same"] += total
        self._uncounted.append((rank, count))

    def add(self, entry: Entry) -> None:
        """Counts an entry that is not the same, and keeps it among the first."""
        self.counts[entry.status] += 1
        self._cell(entry.record.tag, entry.step, entry.rank).add(entry)
        (self._differing if entry.status in DIFFERING else self._other).add(entry)

    def steps_that_differ(self) -> set[int]:
        """Steps in which some entry is known not to be the same."""
        return {step for (_, step, _), cell in self._cells.items() if cell.first is not None}

    def take(self, other: KeyDataComparison) -> None:
        """Takes in what was found in other ranks."""
        self.counts.update(other.counts)
        self._cells.update(other._cells)
        self._uncounted += other._uncounted
        self._differing.take(other._differing)
        self._other.take(other._other)

    def finish(self) -> None:
        """Puts all in order, when everything has been added: the same whatever was added first."""
        self._cells = dict(sorted(self._cells.items(), key=lambda cell: cell[0][1:]))
        self._uncounted.sort(key=lambda counted: counted[0])
        self.entries = sorted([*self._differing.sorted(), *self._other.sorted()], key=lambda entry: entry.order)

    def _cell(self, tag: str, step: int, rank: int) -> Cell:
        cell = self._cells.get((tag, step, rank))
        if cell is None:
            cell = self._cells[tag, step, rank] = Cell()
        return cell
