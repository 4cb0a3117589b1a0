"""Traces of two runs, event by event: equal bytes are passed over in large pieces, the rest is lined up.

Memory is bounded: pieces of files, and a window of events where one run made calls that the other did not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from probe.compare.trace_align import WINDOW, WINDOW_BYTES, align_events, equal_lines, is_shifted
from probe.compare.trace_found import (
    DATA_KEPT,
    FOLLOWING,
    EventDifference,
    RankTrace,
    Saved,
    Status,
    TraceComparison,
)
from probe.compare.trace_idle import idle_generators
from probe.errors import DumpError
from probe.language import join, tell
from probe.store.trace_events import ITEMS, KIND, NOT_OBSERVED, STAGE, place_in_step, place_of
from probe.store.trace_reader import TraceFile, TraceReader
from probe.store.traces import Traces, read_traces

_NO_PLACE = b"\0"  # no line ends so
_PARSED = (b'data"', b'not_observed"', b'rng"')
"""Kinds of which a pair of lines that are not equal is always parsed."""


def compare_traces(a: Path, b: Path, last_step: int | None = None) -> TraceComparison:
    """Compares the traces of two dump folders, rank by rank.

    What only one of them has, digests of different algorithms and files that cannot be read are problems: nothing of
    them is taken for equal.

    Args:
        a: The dump folder of one run.
        b: That of the other.
        last_step: Events of later steps are left out; None takes all.
    """
    result = TraceComparison()
    try:
        left, right = read_traces(a), read_traces(b)
    except DumpError as error:
        return TraceComparison(recorded=True, problems=[str(error)])
    result.problems += [*left.problems, *right.problems]
    result.recorded = bool(left.ranks or right.ranks or result.problems)
    for rank in sorted({*left.ranks, *right.ranks}):
        one, two = left.ranks.get(rank), right.ranks.get(rank)
        if (reason := _not_comparable(left, right, one, two, rank)) is not None or one is None or two is None:
            result.problems.append(reason or tell("rank {rank}: no trace", rank=rank))
            continue
        try:
            found, problems = _compare_rank(one, two, last_step)
        except DumpError as error:
            result.problems.append(str(error))
            continue
        result.problems += problems
        if found is not None:
            result.ranks[rank] = found
    return result


def _not_comparable(left: Traces, right: Traces, one: TraceFile | None, two: TraceFile | None, rank: int) -> str | None:
    if one is None or two is None:
        has, lacks = (left, right) if two is None else (right, left)
        if lacks.ranks:
            return tell(
                "{folder}: rank {rank} has no trace; that of {other} was not compared",
                folder=lacks.folder,
                rank=rank,
                other=has.folder,
            )
        return tell(
            "{folder}: has no traces; that of rank {rank} in {other} was not compared",
            folder=lacks.folder,
            rank=rank,
            other=has.folder,
        )
    if left.digest_algorithm != right.digest_algorithm:
        return _unlike(rank, join(", ", (str(left.digest_algorithm), str(right.digest_algorithm))))
    named = one.algorithms and two.algorithms
    if one.algorithms != two.algorithms and (named or (one.sealed and two.sealed)):
        return _unlike(rank, join(" and ", (", ".join(file.algorithms) or tell("unnamed") for file in (one, two))))
    return None


def _unlike(rank: int, names: str) -> str:
    return tell(
        "rank {rank}: the traces were not compared, their digests are of different algorithms ({names})",
        rank=rank,
        names=names,
    )


def _compare_rank(one: TraceFile, two: TraceFile, last_step: int | None) -> tuple[RankTrace | None, list[str]]:
    """Compares the traces of a rank; states of idle generators do not hide what really differed first."""
    found, problems = _RankComparer(one, two, last_step).compare()
    if found is None or found.first is None or (found.first.status, found.first.event.kind) != ("different", "rng"):
        return found, problems
    idle = idle_generators(one, two, last_step)
    if found.first.event.label not in idle:
        return found, problems
    again, problems = _RankComparer(one, two, last_step, idle).compare()
    late = again is not None and again.first_index is not None and again.first_index > min(idle.values())
    return (found if late else again), problems  # late: after the last look at the states, it may have drawn from them


class _RankComparer:
    """Compares two traces of one rank."""

    def __init__(self, one: TraceFile, two: TraceFile, last_step: int | None, idle: Collection[str] = ()) -> None:
        self._files = (one, two)
        self._last_step = last_step
        self._idle = idle
        self._found = RankTrace(one.rank, file=one, other=two, idle=tuple(sorted(idle)), last_step=last_step)
        self._counts = self._found.counts

    def compare(self) -> tuple[RankTrace | None, list[str]]:
        """What was found, None where the files are not what the runs wrote; and what is wrong with them."""
        one, two = self._files
        with TraceReader(one, self._last_step) as self._a, TraceReader(two, self._last_step) as self._b:
            while self._a.has_lines and self._b.has_lines:
                if not self._take_equal_bytes():
                    self._take_lines()
            self._take_rest(self._a, self._b, "missing")
            self._take_rest(self._b, self._a, "extra")
            changed = [problem for reader in (self._a, self._b) if (problem := reader.finish()) is not None]
        cut = [reader.problem for reader in (self._a, self._b) if reader.problem is not None]
        return (None, changed) if changed else (self._found, cut)

    def _take_equal_bytes(self) -> bool:
        """Passes over whole lines that are the same; whether there were any."""
        left, right = self._a.chunk(), self._b.chunk()
        same = equal_lines(left, right)
        if same:
            hidden = left.count(NOT_OBSERVED, 0, same)
            self._counts["same"] += left.count(b"\n", 0, same) - hidden
            self._counts["not_observed"] += hidden
            self._a.take_bytes(same)
            self._b.take_bytes(same)
        return same > 0

    @property
    def _is_shifted(self) -> bool:
        """Whether positions and calls differ for a reason that was found."""
        return bool(self._counts["missing"] or self._counts["extra"])

    @property
    def _is_full(self) -> bool:
        """Whether further differences are counted, and no longer kept."""
        return self._found.first is not None and len(self._found.following) >= FOLLOWING

    def _take_lines(self) -> None:
        """Compares line by line what was read of both."""
        a, b = self._a, self._b
        a.ensure(1, 1)
        b.ensure(1, 1)
        while a.at < len(a.lines) and b.at < len(b.lines):
            self._take_plain_lines()
            if a.at == len(a.lines) or b.at == len(b.lines):
                return
            if not self._take_pair(a.lines[a.at], b.lines[b.at], look_for_shift=True):
                self._line_up()

    def _take_plain_lines(self) -> None:
        """Takes pairs of lines up to one that has to be parsed."""
        a, b = self._a, self._b
        self._take_plain(zip(a.lines[a.at :], b.lines[b.at :], strict=False))

    def _take_plain(self, pairs: Iterable[tuple[bytes, bytes]]) -> int:
        """Takes pairs of lines up to one that has to be parsed; how many it took."""
        same = hidden = different = 0
        counting, shifted = self._is_full, self._is_shifted
        place = _NO_PLACE
        for one, two in pairs:
            if one == two:
                if NOT_OBSERVED in one:
                    hidden += 1
                else:
                    same += 1
                continue
            head, _, tail = one.partition(KIND)
            other, _, other_tail = two.partition(KIND)
            if tail != other_tail or tail.startswith(_PARSED):
                break
            if head[head.find(ITEMS) :] != other[other.find(ITEMS) :]:
                if not counting:
                    break
                different += 1
                if not tail.endswith(place):
                    place = tail[tail.rfind(STAGE) :]
                    self._found.places.add(("different", place_in_step(place)))
            elif shifted:
                same += 1
            else:
                break
        taken = same + hidden + different
        self._a.take_lines(taken)
        self._b.take_lines(taken)
        self._counts["same"] += same
        self._counts["not_observed"] += hidden
        if different:
            self._counts["different"] += different
            self._found.only_saved = False
            self._found.last_index = self._a.events - 1
        return taken

    def _take_pair(self, one: bytes, two: bytes, look_for_shift: bool = False) -> bool:
        """Compares two lines; False, with nothing taken, when they are not of the same event."""
        left, right = self._a.parse(one, self._a.events), self._b.parse(two, self._b.events)
        if left.key != right.key:
            return False
        moved = left.call != right.call and not self._is_shifted
        if not moved and left.content == right.content:
            self._counts["not_observed" if left.kind == "not_observed" else "same"] += 1
        elif left.kind == "rng" and left.name in self._idle and not moved:
            self._counts["idle"] += 1
        elif look_for_shift and self._found.first is None and self._looks_shifted():
            return False
        else:
            self._add(EventDifference("different", left, right))
        self._a.take_lines(1)
        self._b.take_lines(1)
        return True

    def _window(self, reader: TraceReader) -> list[bytes]:
        reader.ensure(WINDOW, WINDOW_BYTES)
        return reader.lines[reader.at : reader.at + WINDOW]

    def _looks_shifted(self) -> bool:
        return is_shifted(self._window(self._a), self._window(self._b))

    def _line_up(self) -> None:
        """Takes what is missing and extra, with the events around it that both have."""
        left, right = self._window(self._a), self._window(self._b)
        pairs = align_events(left, right)
        ends_here = len(left) < WINDOW and len(right) < WINDOW and self._a.is_read and self._b.is_read
        if not pairs or (ends_here and pairs[-1][0] + 1 < len(left) and pairs[-1][1] + 1 < len(right)):
            pairs.append((len(left), len(right)))
        at_left = at_right = number = 0
        while number < len(pairs):
            i, j = pairs[number]
            for line in left[at_left:i]:
                self._take_one(self._a, line, "missing")
            for line in right[at_right:j]:
                self._take_one(self._b, line, "extra")
            end = number  # of the pairs that follow each other on both sides
            while (
                end < len(pairs) and pairs[end] == (i + end - number, j + end - number) and i + end - number < len(left)
            ):
                end += 1
            count = end - number
            self._take_pairs(left[i : i + count], right[j : j + count])
            at_left, at_right, number = i + count, j + count, max(end, number + 1)

    def _take_pairs(self, left: list[bytes], right: list[bytes]) -> None:
        """Compares lines that were paired."""
        at = 0
        while at < len(left):
            at += self._take_plain(zip(left[at:], right[at:], strict=True))
            if at < len(left) and not self._take_pair(left[at], right[at]):
                raise DumpError(f"{self._a.file.path}: event {self._a.events} is damaged (not as it was written)")
            at += 1

    def _take_one(self, reader: TraceReader, line: bytes, status: Status) -> None:
        if self._is_full:
            self._counts[status] += 1
            self._found.places.add((status, place_in_step(line)))
            self._found.only_saved, self._found.last_index = False, self._a.events
        else:
            event = reader.parse(line, reader.events)
            one, two = (event, None) if status == "missing" else (None, event)
            self._add(EventDifference(status, one, two))
        reader.take_lines(1)

    def _take_rest(self, reader: TraceReader, other: TraceReader, status: Status) -> None:
        """What only one trace has at its end: unknown where the other's run did not finish."""
        unknown = not other.file.sealed
        while reader.has_lines:
            if unknown or self._is_full:
                rest = reader.chunk()
                self._counts["not_compared" if unknown else status] += rest.count(b"\n")
                self._found.places |= {
                    ("not_compared" if unknown else status, place_in_step(line)) for line in rest.splitlines()
                }
                reader.take_bytes(len(rest))
            else:
                reader.ensure(1, 1)
                self._take_one(reader, reader.lines[reader.at], status)

    def _add(self, difference: EventDifference) -> None:
        found = self._found
        found.counts[difference.status] += 1
        found.last_index = self._a.events
        found.places.add((difference.status, place_of(difference.event)))
        if found.first is None:
            found.first, found.first_index = difference, self._a.events
            found.offset, found.other_offset = self._a.offset, self._b.offset
        elif len(found.following) < FOLLOWING:
            found.following.append(difference)
        changed = _saved_values(found.rank, difference)
        if not changed or len(found.saved) + len(changed) > DATA_KEPT:
            found.only_saved = False
        else:
            found.saved |= changed


def _saved_values(rank: int, difference: EventDifference) -> set[Saved]:
    """The saved values that an event differs in; empty when it differs in anything else."""
    one, two = difference.a, difference.b
    if one is None or two is None or one.kind != "data" or one.name is None or len(one.items) != len(two.items):
        return set()
    same_form = all(x[:3] == y[:3] for x, y in zip(one.items, two.items, strict=True))
    own = ("i", "items", "rows")
    rest = ({name: value for name, value in event.raw.items() if name not in own} for event in (one, two))
    if not same_form or next(rest) != next(rest):
        return set()
    changed = [x[0] for x, y in zip(one.items, two.items, strict=True) if x != y]
    return {(rank, one.step, one.micro_step or 0, one.name, path) for path in changed}
