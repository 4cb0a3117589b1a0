"""Key data of two runs, entry by entry: by digest where both have one of the same algorithm, else by bytes.

Memory is bounded: records are read one step of one rank at a time, values piece by piece. Ranks whose indexes are the
same file, by the digests of the manifests, are counted and not parsed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from probe.compare.align import align
from probe.compare.entries import GAP, LAST_POSITION, Entry, KeyDataComparison, Status
from probe.compare.parts import Part, Share, merge_parts, whole_share
from probe.compare.values import ValueDifference, describe
from probe.errors import DumpError
from probe.language import tell
from probe.store.index import Batch, RankIndex, all_have_digests, count_lines, lines_with_values, parse_lines
from probe.store.reader import Cursor, Dump, ValueFiles
from probe.store.values import Header, same_bytes, stored_dtype
from probe.types import Record

Key = tuple[str, int, str, int]

_NO_DIGEST = "holds records without a digest, which no recording writes"
_NOT_KEPT = tell("digests differ; the values were not kept")
_TEXT_SHOWN = 60
"""Most characters of a text that are shown."""


def compare_key_data(a: Dump, b: Dump, last_step: int | None = None) -> KeyDataComparison:
    """Compares every entry that either dump has.

    Args:
        a: One run.
        b: The other.
        last_step: Entries of later steps are left out; None takes all.
    """
    return merge_parts(a, b, last_step, [compare_part(whole_share(a, b, last_step))])


def compare_part(share: Share) -> Part:
    """Compares the entries of some ranks. What all parts say together is said by ``merge_parts``."""
    return _Comparer(share).compare()


class _Side:
    """One of the two dumps, being read."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.files = ValueFiles(dump.folder)
        self.cursors: dict[int, Cursor] = {}

    def start(self, rank: int) -> None:
        """Begins to read a rank. What can be read of it is read again from the start."""
        if rank in self.dump.ranks:
            self.cursors[rank] = self.dump.ranks[rank].cursor()

    def next_step(self, rank: int) -> int | None:
        return self.cursors[rank].next_step if rank in self.cursors else None

    def take(self, rank: int, step: int, skip: bool = False) -> Batch:
        return self.cursors[rank].take(step, skip) if rank in self.cursors else Batch([], [])

    def unreadable(self, record: Record) -> str | None:
        """Why the values that a record names cannot be read; None when they can, or when it names none."""
        if record.file is None:
            return None
        try:
            with self.files.open(record) as (header, _):
                if record.dtype and (header.dtype.name, header.shape) != (stored_dtype(record.dtype), record.shape):
                    held = f"{header.dtype.name}{list(header.shape)}"
                    return tell(
                        "{path}: holds {held}, not what its record says",
                        path=self.dump.folder / record.file,
                        held=held,
                    )
                return None
        except DumpError as error:
            return str(error)


class _Comparer:
    def __init__(self, share: Share) -> None:
        self._share = share
        self._a, self._b = _Side(share.a), _Side(share.b)
        self._last_step = share.last_step
        self._result = KeyDataComparison()
        self._failures: dict[int, str] = {}

    def compare(self) -> Part:
        unequal = [rank for rank in self._share.ranks if not self._take_equal_index(rank)]
        if unequal:
            self._compare_steps(unequal)
        return Part(self._share.ranks, self._result, self._failures)

    # ---- whole indexes ----

    def _take_equal_index(self, rank: int) -> bool:
        """Counts a rank whose indexes are the same file, or says why it cannot; False when they are not known to be."""
        one, two = self._a.dump.ranks.get(rank), self._b.dump.ranks.get(rank)
        equal = self._all_by_digest(rank) and one is not None and two is not None and one.seal is not None
        if not equal or not isinstance(one, RankIndex) or two is None or one.seal != two.seal:
            return False
        count = partial(_counted, one, self._last_step)
        try:
            last = b""
            for last in one.chunks():
                if not all_have_digests(last):
                    raise DumpError(f"{one.path}: {_NO_DIGEST}")
                self._look_for_values(rank, last, one.path)
            total = one.records
            if last and self._is_later(parse_lines(last.splitlines()[-1:], one.path)[0].step):
                total = sum(count().values())
        except DumpError as error:
            self._failures[rank] = str(error)
        else:
            self._result.count_later(rank, total, count)
        return True

    def _look_for_values(self, rank: int, lines: bytes, path: Path | None) -> None:
        """Finds the value files that lines of both runs name and that cannot be read."""
        for record in parse_lines(lines_with_values(lines), path):
            problem = None if self._is_later(record.step) else self._unreadable(record, record)
            if problem is not None:
                self._result.count("same", record.tag, record.step, rank, -1)
                self._result.add(Entry("unreadable", record.step, rank, LAST_POSITION, record, record, problem))

    def _unreadable(self, one: Record, two: Record) -> str | None:
        return self._a.unreadable(one) or self._b.unreadable(two)

    def _by_digest(self, rank: int, tag: str) -> bool:
        """Whether both runs have digests of the same algorithm for a tag."""
        return self._a.dump.algorithm(rank, tag) == self._b.dump.algorithm(rank, tag)

    def _all_by_digest(self, rank: int) -> bool:
        """Whether they have for every tag: equal lines are equal records then."""
        a, b = self._a.dump, self._b.dump
        tags = {*a.digests_of_tags.get(rank, ()), *b.digests_of_tags.get(rank, ())}
        return a.digest_algorithm == b.digest_algorithm and all(self._by_digest(rank, tag) for tag in tags)

    def _is_later(self, step: int) -> bool:
        return self._last_step is not None and step > self._last_step

    # ---- step by step ----

    def _compare_steps(self, ranks: list[int]) -> None:
        for side in (self._a, self._b):
            ranks = self._without_failures(ranks)
            for rank in ranks:
                self._unless_damaged(rank, partial(side.start, rank))
        ranks = self._without_failures(ranks)
        order = _Order(self._share)
        while (step := self._next_step(ranks)) is not None and not self._is_later(step):
            for rank in ranks:
                self._unless_damaged(rank, partial(self._compare_step, step, rank, order))
            ranks = self._without_failures(ranks)

    def _unless_damaged(self, rank: int, compare: Callable[[], None]) -> None:
        """Does something with a rank; where its index turns out to be damaged, that ends its comparison."""
        try:
            compare()
        except DumpError as error:
            self._failures[rank] = str(error)

    def _without_failures(self, ranks: list[int]) -> list[int]:
        return [rank for rank in ranks if rank not in self._failures]

    def _next_step(self, ranks: list[int]) -> int | None:
        steps = [side.next_step(rank) for side in (self._a, self._b) for rank in ranks]
        return min((step for step in steps if step is not None), default=None)

    def _compare_step(self, step: int, rank: int, order: _Order) -> None:
        left, right = self._a.take(rank, step), self._b.take(rank, step)
        lines = b"".join(left.lines)
        if self._all_by_digest(rank) and lines and left.lines == right.lines and all_have_digests(lines):
            for (_, tag), count in count_lines(lines, left.path).items():
                self._result.count("same", tag, step, rank, count)
            self._look_for_values(rank, lines, left.path)
        elif left or right:
            self._compare_batch(step, rank, left, right, order)

    def _compare_batch(self, step: int, rank: int, one: Batch, two: Batch, order: _Order) -> None:
        left, right = one.records, two.records
        for batch, records, side in ((one, left, self._a), (two, right, self._b)):
            where = batch.path or side.dump.folder
            if len({record.key for record in records}) < len(records):
                raise DumpError(f"{where}: holds a record of step {step} and rank {rank} twice")
            if any(record.rank != rank for record in records):
                raise DumpError(f"{where}: holds records of another rank")
            if batch.path and any(record.digest is None for record in records):
                raise DumpError(f"{where}: {_NO_DIGEST}")
        aligned = align([record.key for record in left], [record.key for record in right])
        places: dict[Key, int] = {}
        for key, index_a, index_b in aligned:
            record_a = None if index_a is None else left[index_a]
            record_b = None if index_b is None else right[index_b]
            entry = self._compare_records(step, rank, record_a, record_b)
            if entry.status == "same":
                self._result.count("same", key[0], step, rank)
            else:
                places = places or order.places(step, [key for key, _, _ in aligned])
                self._result.add(replace(entry, position=places[key]))

    def _compare_records(self, step: int, rank: int, one: Record | None, two: Record | None) -> Entry:
        def entry(status: Status, problem: str | None = None, difference: ValueDifference | None = None) -> Entry:
            return Entry(status, step, rank, 0, one, two, problem, difference)

        if one is None or two is None:
            end_of_other = (self._b if two is None else self._a).dump.end(rank)
            if end_of_other is not None and step >= end_of_other:
                return entry("not_compared")
            return entry("missing" if two is None else "extra")
        if one.stage != two.stage and one.digest is not None and two.digest is not None:
            return entry("different", _stages_in_words(one, two))
        if self._by_digest(rank, one.tag) and one.digest is not None and two.digest is not None:
            if (one.dtype, one.shape, one.digest) == (two.dtype, two.shape, two.digest):
                problem = self._unreadable(one, two)
                return entry("unreadable" if problem else "same", problem)
            return entry("different", *self._difference(one, two))
        if (one.dtype, one.shape) != (two.dtype, two.shape) and one.dtype and two.dtype:
            return entry("different", *self._difference(one, two))
        try:
            headers = self._compare_bytes(one, two)
        except DumpError as error:
            return entry("unreadable", str(error))
        if headers is None:
            return entry("same")
        one, two = _described(one, headers[0]), _described(two, headers[1])
        return entry("different", *self._difference(one, two))

    def _compare_bytes(self, one: Record, two: Record) -> tuple[Header, Header] | None:
        """Compares two value files; None when their numbers are the same, else what each file holds."""
        with self._a.files.open(one) as (left, file_a), self._b.files.open(two) as (right, file_b):
            if (left.dtype, left.shape) != (right.dtype, right.shape):
                return left, right
            if left.fortran_order == right.fortran_order:
                return None if same_bytes(file_a, file_b) else (left, right)
        same = describe(self._a.files.array(one), self._b.files.array(two)) is None
        return None if same else (left, right)

    def _difference(self, one: Record, two: Record) -> tuple[str | None, ValueDifference | None]:
        """How the values of two records differ, where both were kept; or why that cannot be said."""
        if one.dtype == two.dtype == "str":
            return self._texts(one, two), None
        of_types = one.dtype != two.dtype
        forms = [f"{record.dtype}{list(record.shape)}" for record in (one, two)]
        unlike = tell("{a} against {b}", a=forms[0], b=forms[1])
        if one.shape != two.shape or (of_types and "str" in (one.dtype, two.dtype)):
            return unlike, None
        if one.file is None or two.file is None:
            return unlike if of_types else _NOT_KEPT, None
        try:
            left, right = self._a.files.array(one), self._b.files.array(two)
            difference = describe(left, right, one.dtype, across_types=of_types)
        except (DumpError, ValueError) as error:
            return str(error), None
        if of_types:
            return unlike, difference
        return (None if difference else tell("digests differ, the stored numbers do not")), difference

    def _texts(self, one: Record, two: Record) -> str:
        if one.file is None or two.file is None:
            return _NOT_KEPT
        try:
            arrays = self._a.files.array(one), self._b.files.array(two)
        except DumpError as error:
            return str(error)
        texts = [array[: 4 * _TEXT_SHOWN].tobytes().decode(errors="replace")[:_TEXT_SHOWN] for array in arrays]
        return tell("{a} against {b}", a=repr(texts[0]), b=repr(texts[1]))


class _Order:
    """Where entries stand in a step: by their order in the rank that leads, the lowest one that has any records.

    What that rank lacks stands behind what comes before it in its own rank. So no rank but these two matters, and all
    parts of a comparison have one order.
    """

    def __init__(self, share: Share) -> None:
        self._leader = share.leader
        self._sides = (_Side(share.a), _Side(share.b))
        self._step = -1
        self._leading: dict[Key, int] = {}
        self._started = False

    def places(self, step: int, keys: list[Key]) -> dict[Key, int]:
        """The positions of all keys that a rank has in a step, given in that rank's order."""
        if step != self._step:
            self._step, self._leading = step, self._read(step)
        found: dict[Key, int] = {}
        place, behind = -1, 0
        for key in keys:
            if key in self._leading:
                place, behind = self._leading[key], 0
            else:
                behind += 1
            found[key] = place * GAP + behind
        return found

    def _read(self, step: int) -> dict[Key, int]:
        """The order of the rank that leads; none where it is damaged, which its own comparison says."""
        try:
            if not self._started:
                for side in self._sides:
                    side.start(self._leader)
                self._started = True
            left, right = (side.take(self._leader, step, skip=True).records for side in self._sides)
        except DumpError:
            return {}
        keys = align([record.key for record in left], [record.key for record in right])
        return {key: position for position, (key, _, _) in enumerate(keys)}


def _stages_in_words(one: Record, two: Record) -> str:
    stages = [record.stage or tell("no stage") for record in (one, two)]
    return tell("saved in {a} in a, in {b} in b", a=stages[0], b=stages[1])


def _counted(index: RankIndex, last_step: int | None) -> Counter[tuple[int, str]]:
    """How many records of each step and tag an index has, up to a step."""
    counted: Counter[tuple[int, str]] = Counter()
    for chunk in index.chunks():
        lines = count_lines(chunk, index.path)
        counted += Counter({at: n for at, n in lines.items() if last_step is None or at[0] <= last_step})
    return counted


def _described(record: Record, header: Header) -> Record:
    """A record whose dump does not say its dtype and shape, with those of its file."""
    return record if record.dtype else replace(record, dtype=header.dtype.name, shape=header.shape)
