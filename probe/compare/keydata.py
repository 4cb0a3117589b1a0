"""Key data of two runs, entry by entry: by digest where both have one of the same algorithm, else by bytes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from probe.compare.align import align
from probe.errors import DumpError
from probe.store.reader import Array, Dump, read_values
from probe.types import Record

END_OF_STEP = "end_of_step"
"""Stands for a step that a run finished, where only one did."""
_LAST_POSITION = 1 << 40
NOTHING_RECORDED = "neither run recorded key data: nothing was compared"
Status = Literal["same", "different", "missing", "extra", "unreadable", "not_compared"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry that is not the same in both runs.

    Example:
        >>> Entry("missing", 2, 0, 5, None, None, None).order
        (2, 5)
    """

    status: Status
    """``missing``: only ``a`` has it; ``extra``: only ``b`` has it; ``not_compared``: the other run ended before."""
    step: int
    rank: int
    position: int
    """Where it stands in the step, by the order of the first rank."""
    a: Record | None
    b: Record | None
    problem: str | None
    """Why it could not be read."""

    @property
    def order(self) -> tuple[int, int]:
        """Sorts entries by execution order across ranks."""
        return (self.step, self.position)

    @property
    def record(self) -> Record:
        """The record of the run that has it, ``a`` before ``b``."""
        found = self.a or self.b
        assert found is not None
        return found


@dataclass
class KeyDataComparison:
    """What comparing the key data of two dumps gave.

    Example:
        >>> KeyDataComparison().verdict
        'inconclusive'
    """

    counts: Counter[str] = field(default_factory=Counter)
    """Entries by status."""
    entries: list[Entry] = field(default_factory=list)
    """Everything that is not the same, in execution order."""
    cells: dict[tuple[str, int, int], set[str]] = field(default_factory=dict)
    """Statuses found for each tag, step and rank: the map in the report."""
    problems: list[str] = field(default_factory=list)
    """What is unreadable or incomplete, one sentence each."""

    @property
    def differing(self) -> list[Entry]:
        """Entries that make the runs divergent."""
        return [entry for entry in self.entries if entry.status in ("different", "missing", "extra")]

    @property
    def compared(self) -> int:
        """Entries that were looked at on both sides, or are known to be on one side only."""
        return sum(self.counts[status] for status in ("same", "different", "missing", "extra"))

    @property
    def verdict(self) -> Literal["identical", "divergent", "inconclusive"]:
        """What the key data alone says."""
        if self.differing:
            return "divergent"
        if self.problems or self.counts["unreadable"] or self.counts["not_compared"] or not self.compared:
            return "inconclusive"
        return "identical"


def compare_key_data(a: Dump, b: Dump, last_step: int | None = None) -> KeyDataComparison:
    """Compares every entry that either dump has.

    Args:
        a: One run.
        b: The other.
        last_step: Entries of later steps are left out; None takes all.
    """
    result = KeyDataComparison(problems=[*a.problems, *b.problems])
    if not a.records and not b.records:
        result.problems.append(NOTHING_RECORDED)
    by_digest = a.digest_algorithm == b.digest_algorithm
    if not by_digest and a.digest_algorithm and b.digest_algorithm:
        result.problems.append(
            f"digests are of different algorithms ({a.digest_algorithm}, {b.digest_algorithm}); only values count"
        )
    ranks = sorted({*a.records, *b.records})
    steps_a, steps_b = _by_step(a), _by_step(b)
    for step in sorted({step for step, _ in {*steps_a, *steps_b}}):
        if last_step is not None and step > last_step:
            break
        order: dict[tuple[str, int, str, int], int] = {}
        for rank in ranks:
            left, right = steps_a.get((step, rank), []), steps_b.get((step, rank), [])
            merged = align([record.key for record in left], [record.key for record in right])
            if not order:
                order = {key: position for position, (key, _, _) in enumerate(merged)}
            ends = (_end(a, rank), _end(b, rank))
            for position, (key, index_a, index_b) in enumerate(merged):
                one = None if index_a is None else left[index_a]
                two = None if index_b is None else right[index_b]
                status, problem = _status(a, b, one, two, by_digest, ends)
                result.counts[status] += 1
                result.cells.setdefault((key[0], step, rank), set()).add(status)
                if status != "same":
                    place = order.get(key, position)
                    result.entries.append(Entry(status, step, rank, place, one, two, problem))
    _compare_step_counts(a, b, last_step, result)
    result.entries.sort(key=lambda entry: entry.order)
    return result


def _compare_step_counts(a: Dump, b: Dump, last_step: int | None, result: KeyDataComparison) -> None:
    """A step that only one run finished is a difference, also when nothing was recorded in it."""
    if a.steps_finished is None or b.steps_finished is None:
        return
    wanted = None if last_step is None else last_step + 1
    for dump, finished in ((a, a.steps_finished), (b, b.steps_finished)):
        if wanted is not None and finished < wanted and dump.complete:
            result.problems.append(f"{dump.folder}: {finished} of the {wanted} steps that were asked for were run")
    told = {entry.step for entry in result.entries}
    for step in range(*sorted((a.steps_finished, b.steps_finished))):
        only_a = step < a.steps_finished
        if step in told or not (b if only_a else a).complete:
            continue  # its records say so already, or a problem does
        record = Record(END_OF_STEP, step, 0, 0, "", 0, None, "none", (), None, None, None)
        status: Status = "missing" if only_a else "extra"
        result.counts[status] += 1
        one, two = (record, None) if only_a else (None, record)
        result.entries.append(Entry(status, step, 0, _LAST_POSITION, one, two, None))


def _by_step(dump: Dump) -> dict[tuple[int, int], list[Record]]:
    grouped: dict[tuple[int, int], list[Record]] = {}
    for rank, records in dump.records.items():
        for record in records:
            grouped.setdefault((record.step, rank), []).append(record)
    return grouped


def _end(dump: Dump, rank: int) -> int | None:
    """The step in which an incomplete run's records of a rank end: what is absent from it on is unknown."""
    if dump.complete:
        return None
    records = dump.records.get(rank, [])
    return records[-1].step if records else -1


def _status(
    a: Dump, b: Dump, one: Record | None, two: Record | None, by_digest: bool, ends: tuple[int | None, int | None]
) -> tuple[Status, str | None]:
    if one is None or two is None:
        present, end_of_other = (one, ends[1]) if one is not None else (two, ends[0])
        assert present is not None
        if end_of_other is not None and present.step >= end_of_other:
            return "not_compared", None
        return ("missing" if two is None else "extra"), None
    if one.stage != two.stage:
        return "different", f"saved in {one.stage or 'no stage'} in a, in {two.stage or 'no stage'} in b"
    if by_digest and one.digest is not None and two.digest is not None:
        if (one.dtype, one.shape, one.digest) != (two.dtype, two.shape, two.digest):
            return "different", None
        problem = _unreadable(a, one) or _unreadable(b, two)
        return ("unreadable" if problem else "same"), problem
    if one.dtype and two.dtype and (one.dtype, one.shape) != (two.dtype, two.shape):
        return "different", None
    try:
        return ("same" if _equal_bytes(read_values(a.folder, one), read_values(b.folder, two)) else "different"), None
    except DumpError as error:
        return "unreadable", str(error)


def _unreadable(dump: Dump, record: Record) -> str | None:
    """Why the values that a record names cannot be read, from the file's header and size; None when they can."""
    if record.file is None:
        return None
    try:
        read_values(dump.folder, record)
    except DumpError as error:
        return str(error)
    return None


def _equal_bytes(left: Array, right: Array) -> bool:
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    flat_left, flat_right = left.reshape(-1).view(np.uint8), right.reshape(-1).view(np.uint8)
    chunk = 1 << 22  # bytes
    return all(
        np.array_equal(flat_left[start : start + chunk], flat_right[start : start + chunk])
        for start in range(0, flat_left.size, chunk)
    )
