"""A rank's index, ``index/rank{r}.jsonl``: checked without being parsed where its digest is known, read step by step.

A line is canonical JSON (sorted keys, no spaces), so two equal records are two equal lines. It ends with the step and
the tag, which are read off the line's end where the rest of it does not matter.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import DumpError, RecordError
from probe.store import layout
from probe.store.digest import ALGORITHM, hasher
from probe.types import Record

CHUNK = 1 << 20
"""Bytes read together."""
_LONGEST_LINE = 1 << 20
_STEP = b',"step":'
_NO_FILE = b',"file":null,'
_NO_DIGEST = b'"digest":null,'
_NO_RECORD = (ValueError, KeyError, TypeError, RecordError, RecursionError)
"""What reading a line that is no record raises."""
_END = 48
"""Bytes of a line's end that hold its step and tag, unless the tag is long."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one rank in one step, in the order in which they were saved.

    Example:
        >>> Batch([], []).records
        []
    """

    lines: list[bytes]
    """Index lines; empty where the dump has no index."""
    scanned: list[Record]
    """Records of a dump without an index."""
    path: Path | None = None
    """The index."""

    @property
    def records(self) -> list[Record]:
        """The records themselves.

        Raises:
            DumpError: A line is no record.
        """
        return self.scanned or parse_lines(self.lines, self.path)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self.lines or self.scanned)


@dataclass(frozen=True, slots=True)
class RankIndex:
    """The index of one rank, checked.

    Example:
        >>> RankIndex(Path("index/rank0.jsonl"), None, 0, 0, None).seal is None
        True
    """

    path: Path
    seal: str | None
    """Digest of the whole file, when it is the one that the manifest names: the file is as it was written."""
    good_bytes: int
    """Where the part that can be used ends."""
    records: int
    """Lines in that part."""
    last_step: int | None
    """Step of the last record; None when there is none, or the file is sealed."""

    def cursor(self) -> IndexCursor:
        """Reads it from its start."""
        return IndexCursor(self.path, self.good_bytes)

    def chunks(self) -> Iterator[bytes]:
        """The whole file in pieces of whole lines.

        Raises:
            DumpError: It cannot be read any more.
        """
        rest = b""
        with layout.reading(self.path) as file:
            while piece := file.read(CHUNK):
                whole, newline, rest_of_piece = piece.rpartition(b"\n")
                if not newline:
                    rest += piece
                    continue
                yield rest + whole + newline
                rest = rest_of_piece


class IndexCursor:
    """Reads an index forward, one step at a time, without holding the file open.

    Args:
        path: The index file.
        end: Where its usable part ends, in bytes.
    """

    def __init__(self, path: Path, end: int) -> None:
        self._path = path
        self._end = end
        self._offset = 0
        self.next_step: int | None = None
        """Step of the next record; None at the end."""
        self.take(-1)

    def take(self, step: int, skip: bool = False) -> Batch:
        """The records of a step.

        Args:
            step: The step; what was taken before lies behind it.
            skip: Whether records of earlier steps may be passed over.

        Raises:
            DumpError: The file cannot be read any more, or its steps are not in order.
        """
        lines: list[bytes] = []
        prefix = b"%d," % step
        self.next_step = None
        try:
            with layout.open_plain(self._path) as file:
                file.seek(self._offset)
                while self._offset < self._end:
                    if not (line := file.readline()):
                        raise ValueError("it ends early")
                    rest = line.rpartition(_STEP)[2]
                    if rest.startswith(prefix):
                        lines.append(line)
                    elif (found := int(rest.partition(b",")[0])) > step:
                        self.next_step = found
                        break
                    elif not skip:
                        raise ValueError(f"step {found} comes after step {step}")
                    self._offset += len(line)
        except (OSError, ValueError) as error:
            raise DumpError(f"{self._path}: is damaged ({error})") from error
        return Batch(lines, [], self._path)


def check_index(path: Path, rank: int, algorithm: str, digest: str | None) -> tuple[RankIndex, list[str]]:
    """Checks the index of a rank: by its digest where the manifest has one, else line by line.

    Args:
        path: The index file.
        rank: The rank that its records must have.
        algorithm: Name of the digest's algorithm.
        digest: Digest of the whole file, from the manifest; None when the run did not finish.

    Returns:
        The index, and what is wrong with it, one sentence each.
    """
    checked = digest is not None and algorithm == ALGORITHM
    if checked:
        taken, size, records = hasher(), 0, 0
        try:
            with layout.open_plain(path) as file:
                while piece := file.read(CHUNK):
                    taken.update(piece)
                    size, records = size + len(piece), records + piece.count(b"\n")
        except OSError:
            pass  # said below
        else:
            if taken.hexdigest() == digest:
                return RankIndex(path, digest, size, records, None), []
    index, problems = _check_lines(path, rank)
    if checked and not problems:  # nobody knows which of its lines the run wrote
        changed = f"{path}: was changed after it was written; its digest is not the manifest's"
        return RankIndex(path, None, 0, 0, None), [changed]
    return index, problems


def _check_lines(path: Path, rank: int) -> tuple[RankIndex, list[str]]:
    good, records, number, step = 0, 0, 0, -1
    seen: set[tuple[str, int, str, int]] = set()

    def found(problem: str | None) -> tuple[RankIndex, list[str]]:
        index = RankIndex(path, None, good, records, None if step < 0 else step)
        return index, [] if problem is None else [f"{path}: {problem}"]

    try:
        with layout.open_plain(path) as file:
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if not line.endswith(b"\n"):
                    return found(f"line {number} was cut off")
                record = _parse_line(line)
                if record.rank != rank:
                    return found("holds records of another rank")
                if record.step < step:
                    return found(f"line {number} is damaged (step {record.step} comes after step {step})")
                if record.step > step:
                    seen.clear()
                if record.key in seen:
                    return found("holds a record twice")
                if line != index_line(record):
                    return found(f"line {number} is damaged (not as it was written)")
                seen.add(record.key)
                step, good, records = record.step, good + len(line), number
    except OSError as error:
        return found(f"cannot be read ({error.strerror})")
    except _NO_RECORD as error:
        return found(f"line {number} is damaged ({error})")
    return found(None)


def index_line(record: Record) -> bytes:
    """The canonical line of a record."""
    fields = {name: getattr(record, name) for name in Record.__dataclass_fields__}
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def parse_lines(lines: Iterable[bytes], path: Path | None) -> list[Record]:
    """The records of index lines whose file was checked by its digest alone.

    Raises:
        DumpError: A line is no record: the file was forged.
    """
    try:
        return [_parse_line(line) for line in lines]
    except _NO_RECORD as error:
        raise DumpError(f"{path}: a line is damaged ({error})") from error


def _parse_line(line: bytes) -> Record:
    fields = json.loads(line.decode())
    if type(fields) is not dict:
        raise ValueError("not an object")
    # spelled out, since this runs for every record of two runs that differ
    good = (
        (type(fields["tag"]) is type(fields["path"]) is type(fields["dtype"]) is str)
        and (type(fields["step"]) is type(fields["rank"]) is type(fields["micro_step"]) is type(fields["call"]) is int)
        and (fields["step"] >= 0 and fields["rank"] >= 0 and fields["micro_step"] >= 0 and fields["call"] >= 0)
        and (fields["stage"] is None or type(fields["stage"]) is str)
        and (fields["digest"] is None or type(fields["digest"]) is str)
        and (fields["masked"] is None or type(fields["masked"]) is str)
        and (fields["file"] is None or type(fields["file"]) is str)
        and type(fields["shape"]) is list
        and all([type(size) is int and size >= 0 for size in fields["shape"]])
    )
    if not good:
        raise ValueError("a value has the wrong type")
    layout.check_tag(fields["tag"])
    fields["shape"] = tuple(fields["shape"])
    return Record(**fields)


def count_lines(lines: bytes, path: Path | None) -> Counter[tuple[int, str]]:
    """How many canonical lines there are of each step and tag.

    Raises:
        DumpError: A line is no record: the file was forged.
    """
    split = lines.split(b"\n")[:-1]
    ends = Counter([line[-_END:] for line in split])
    if not all(_STEP in end for end in ends):  # a long tag
        ends = Counter([line.rpartition(_STEP)[2] for line in split])
    counted: Counter[tuple[int, str]] = Counter()
    try:
        for end, count in ends.items():
            fields: dict[str, Any] = json.loads(b'{"step":' + end.rpartition(_STEP)[2])
            if type(fields["step"]) is not int:
                raise ValueError("a step is no number")
            counted[fields["step"], layout.check_tag(fields["tag"])] += count
    except _NO_RECORD as error:
        raise DumpError(f"{path}: a line is damaged ({error})") from error
    return counted


def all_have_digests(lines: bytes) -> bool:
    """Whether equal lines are equal records; without a digest only the values can tell."""
    return _NO_DIGEST not in lines


def lines_with_values(lines: bytes) -> list[bytes]:
    """The lines whose records name a value file."""
    if lines.count(_NO_FILE) == lines.count(b"\n"):
        return []  # one search is several times as fast as one a line
    return [line for line in lines.splitlines(keepends=True) if _NO_FILE not in line]
