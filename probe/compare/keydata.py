"""Key data of two runs, entry by entry: by digest where both have one of the same algorithm, else by bytes.

Memory is bounded: records are read one step of one rank at a time, values piece by piece. Ranks whose indexes are the
same file, by the digests of the manifests, are counted and not parsed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

from probe.compare.align import align
from probe.compare.entries import END_OF_STEP, LAST_POSITION, NOTHING_RECORDED, Entry, KeyDataComparison, Status
from probe.compare.values import ValueDifference, describe
from probe.errors import DumpError
from probe.store.index import Batch, RankIndex, all_have_digests, count_lines, lines_with_values, parse_lines
from probe.store.reader import Cursor, Dump, ValueFiles
from probe.store.values import Header, same_bytes, stored_dtype
from probe.types import Record

Key = tuple[str, int, str, int]

_STEPS_NAMED = 1000
"""Most steps without a record that are named, where only one run finished them; the rest is counted."""
_NO_DIGEST = "holds records without a digest, which no recording writes"
_NOT_KEPT = "digests differ; the values were not kept"
_TEXT_SHOWN = 60
"""Most characters of a text that are shown."""


def compare_key_data(a: Dump, b: Dump, last_step: int | None = None) -> KeyDataComparison:
    """Compares every entry that either dump has.

    Args:
        a: One run.
        b: The other.
        last_step: Entries of later steps are left out; None takes all.
    """
    return _Comparer(a, b, last_step).compare()


class _Side:
    """One of the two dumps, being read."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self.files = ValueFiles(dump.folder)
        self.cursors: dict[int, Cursor] = {}

    def start(self, ranks: list[int]) -> None:
        self.cursors = {rank: self.dump.ranks[rank].cursor() for rank in ranks if rank in self.dump.ranks}

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
                    return f"{self.dump.folder / record.file}: holds {held}, not what its record says"
                return None
        except DumpError as error:
            return str(error)


class _Comparer:
    def __init__(self, a: Dump, b: Dump, last_step: int | None) -> None:
        self._a, self._b = _Side(a), _Side(b)
        self._last_step = last_step
        known = [dump.last_whole_step for dump in (a, b) if dump.last_whole_step is not None]
        reach = None if a.complete and b.complete else min(known, default=None)
        self._result = KeyDataComparison(problems=[*a.problems, *b.problems], compared_to_step=reach)

    def compare(self) -> KeyDataComparison:
        a, b, result = self._a.dump, self._b.dump, self._result
        if not a.ranks and not b.ranks:
            result.problems.append(NOTHING_RECORDED)
        ranks = sorted({*a.ranks, *b.ranks})
        result.problems += _unlike_algorithms(a, b, ranks)
        try:
            unequal = [rank for rank in ranks if not self._take_equal_index(rank)]
            if unequal:
                self._compare_steps(ranks, unequal)
        except DumpError as error:
            result.problems.append(str(error))
        self._compare_step_counts()
        result.finish()
        return result

    # ---- whole indexes ----

    def _take_equal_index(self, rank: int) -> bool:
        """Counts a rank whose indexes are the same file; False when they are not known to be."""
        one, two = self._a.dump.ranks.get(rank), self._b.dump.ranks.get(rank)
        equal = self._all_by_digest(rank) and one is not None and two is not None and one.seal is not None
        if not equal or not isinstance(one, RankIndex) or two is None or one.seal != two.seal:
            return False
        last = b""
        for last in one.chunks():
            if not all_have_digests(last):
                raise DumpError(f"{one.path}: {_NO_DIGEST}")
            self._look_for_values(rank, last, one.path)
        total = one.records
        if last and self._is_later(parse_lines(last.splitlines()[-1:], one.path)[0].step):
            total = sum(self._counted(one).values())
        self._result.count_later(rank, total, partial(self._counted, one))
        return True

    def _counted(self, index: RankIndex) -> Counter[tuple[int, str]]:
        """How many records of each step and tag an index has, as far as they are compared."""
        counted: Counter[tuple[int, str]] = Counter()
        for chunk in index.chunks():
            counted += Counter(
                {at: count for at, count in count_lines(chunk, index.path).items() if not self._is_later(at[0])}
            )
        return counted

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

    def _compare_steps(self, ranks: list[int], unequal: list[int]) -> None:
        for side in (self._a, self._b):
            side.start(unequal)
        order = _Order(self._a.dump, self._b.dump, ranks, unequal)
        while (step := self._next_step(unequal)) is not None and not self._is_later(step):
            for rank in unequal:
                left, right = self._a.take(rank, step), self._b.take(rank, step)
                lines = b"".join(left.lines)
                if self._all_by_digest(rank) and lines and left.lines == right.lines and all_have_digests(lines):
                    for (_, tag), count in count_lines(lines, left.path).items():
                        self._result.count("same", tag, step, rank, count)
                    self._look_for_values(rank, lines, left.path)
                elif left or right:
                    self._compare_batch(step, rank, left, right, order)

    def _next_step(self, ranks: list[int]) -> int | None:
        steps = [side.next_step(rank) for side in (self._a, self._b) for rank in ranks]
        return min((step for step in steps if step is not None), default=None)

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
        for key, index_a, index_b in align([record.key for record in left], [record.key for record in right]):
            record_a = None if index_a is None else left[index_a]
            record_b = None if index_b is None else right[index_b]
            entry = self._compare_records(step, rank, record_a, record_b)
            if entry.status == "same":
                self._result.count("same", key[0], step, rank)
            else:
                self._result.add(replace(entry, position=order.place(step, key)))

    def _compare_records(self, step: int, rank: int, one: Record | None, two: Record | None) -> Entry:
        def entry(status: Status, problem: str | None = None, difference: ValueDifference | None = None) -> Entry:
            return Entry(status, step, rank, 0, one, two, problem, difference)

        if one is None or two is None:
            end_of_other = (self._b if two is None else self._a).dump.end(rank)
            if end_of_other is not None and step >= end_of_other:
                return entry("not_compared")
            return entry("missing" if two is None else "extra")
        if one.stage != two.stage and one.digest is not None and two.digest is not None:
            return entry("different", f"saved in {one.stage or 'no stage'} in a, in {two.stage or 'no stage'} in b")
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
        unlike = f"{one.dtype}{list(one.shape)} against {two.dtype}{list(two.shape)}"
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
        return (None if difference else "digests differ, the stored numbers do not"), difference

    def _texts(self, one: Record, two: Record) -> str:
        if one.file is None or two.file is None:
            return _NOT_KEPT
        try:
            arrays = self._a.files.array(one), self._b.files.array(two)
        except DumpError as error:
            return str(error)
        texts = [array[: 4 * _TEXT_SHOWN].tobytes().decode(errors="replace")[:_TEXT_SHOWN] for array in arrays]
        return f"{texts[0]!r} against {texts[1]!r}"

    # ---- steps that only one run finished ----

    def _compare_step_counts(self) -> None:
        """A step that only one run finished is a difference, also when nothing was recorded in it."""
        a, b, result = self._a.dump, self._b.dump, self._result
        if a.steps_finished is None or b.steps_finished is None:
            return
        wanted = None if self._last_step is None else self._last_step + 1
        for dump, finished in ((a, a.steps_finished), (b, b.steps_finished)):
            if wanted is not None and finished < wanted and dump.complete:
                result.problems.append(f"{dump.folder}: {finished} of the {wanted} steps that were asked for were run")
        only_a = a.steps_finished > b.steps_finished
        if not (b if only_a else a).complete:
            return  # a problem says so
        told = result.steps_that_differ()
        steps = range(*sorted((a.steps_finished, b.steps_finished)))
        for step in islice(steps, _STEPS_NAMED):
            if step in told or self._is_later(step):
                continue  # its records say so already
            record = Record(END_OF_STEP, step, 0, 0, "", 0, None, "none", (), None, None, None)
            status: Status = "missing" if only_a else "extra"
            one, two = (record, None) if only_a else (None, record)
            result.add(Entry(status, step, 0, LAST_POSITION, one, two))
        if steps.stop - steps.start > _STEPS_NAMED and self._last_step is None:
            result.counts["missing" if only_a else "extra"] += steps.stop - steps.start - _STEPS_NAMED


def _unlike_algorithms(a: Dump, b: Dump, ranks: list[int]) -> list[str]:
    """What the two runs digested by different algorithms: one sentence for all, or one for each tag."""
    one, two = a.digest_algorithm, b.digest_algorithm
    if one != two:
        return [f"digests are of different algorithms ({one}, {two}); only values count"] if one and two else []
    problems: dict[str, None] = {}
    for rank in ranks:
        for tag in sorted({*a.digests_of_tags.get(rank, ()), *b.digests_of_tags.get(rank, ())}):
            of_a, of_b = a.algorithm(rank, tag), b.algorithm(rank, tag)
            if of_a != of_b:
                problems[f"{tag}: digests are of different algorithms ({of_a}, {of_b}); only values count"] = None
    return list(problems)


class _Order:
    """Where entries stand in a step: their order in the lowest rank that has records in it.

    What only further ranks have stands where these have it.

    Args:
        a: One run.
        b: The other.
        ranks: All ranks.
        unequal: Those whose entries are compared.
    """

    def __init__(self, a: Dump, b: Dump, ranks: list[int], unequal: list[int]) -> None:
        self._sides = (_Side(a), _Side(b))
        self._ranks = ranks
        self._unequal = unequal
        self._step = -1
        self._places: dict[Key, int] = {}
        for side in self._sides:
            side.start(ranks)

    def place(self, step: int, key: Key) -> int:
        """The position of a key."""
        if step != self._step:
            self._step, self._places = step, dict(self._read(step))
        return self._places.get(key, len(self._places))

    def _read(self, step: int) -> Iterator[tuple[Key, int]]:
        keys: list[Key] = []
        for rank in self._ranks:
            if keys and rank not in self._unequal:
                continue
            left, right = (side.take(rank, step, skip=True) for side in self._sides)
            for batch in (left, right):
                keys = [key for key, _, _ in align(keys, [record.key for record in batch.records])]
        yield from ((key, position) for position, key in enumerate(keys))


def _described(record: Record, header: Header) -> Record:
    """A record whose dump does not say its dtype and shape, with those of its file."""
    return record if record.dtype else replace(record, dtype=header.dtype.name, shape=header.shape)
