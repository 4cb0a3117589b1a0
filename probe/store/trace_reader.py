"""Reading traces, ``trace/rank{r}.jsonl``: forward in large pieces, backward from any place, trusting nothing.

A trace has one event a line, canonical JSON with sorted keys, so two equal events at the same position are two equal
lines. A whole run's manifest has the digest of each file: that one is checked while the file is read, and its lines are
parsed only where they matter. Without it every line is parsed, and what comes before the first bad one counts.

Works without torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from probe.errors import DumpError
from probe.store import layout
from probe.store.digest import hasher
from probe.store.trace_events import NO_EVENT, STEP, TraceEvent, parse_event, step_of

CHUNK = 1 << 20
"""Bytes read together."""
LONGEST_LINE = 1 << 26
"""Most bytes of an event: a model's weights are one event."""
_NULL_DIGEST = b",null]"
_STAGE = b',"stage":'


@dataclass(frozen=True, slots=True)
class TraceFile:
    """The trace of one rank, not read yet.

    Example:
        >>> TraceFile(Path("trace/rank0.jsonl"), 0).sealed
        False
    """

    path: Path
    rank: int
    digest: str | None = None
    """Digest that the file must have; None where the run did not finish."""
    events: int | None = None
    """Lines that it must have; None where the run did not finish."""
    algorithms: tuple[str, ...] = ()
    """Algorithms of the digests in its events; empty where nothing says so."""

    @property
    def sealed(self) -> bool:
        """Whether the manifest vouches for the whole file."""
        return self.digest is not None

    def size(self) -> int:
        """Bytes in the file.

        Raises:
            DumpError: It cannot be opened any more.
        """
        with layout.reading(self.path) as file:
            return file.seek(0, os.SEEK_END)

    def lines_before(self, offset: int) -> Iterator[bytes]:
        """Whole lines, without their ends, from a place backward to the file's start.

        Args:
            offset: Where a line begins.

        Raises:
            DumpError: The file cannot be read any more.
        """
        with layout.reading(self.path) as file:
            rest = b""
            while offset > 0:
                start = max(0, offset - CHUNK)
                file.seek(start)
                piece = file.read(offset - start) + rest
                if len(piece) > LONGEST_LINE + CHUNK and b"\n" not in piece[:CHUNK]:
                    raise DumpError(f"{self.path}: a line is longer than any event")
                head, newline, tail = piece.partition(b"\n")
                if start == 0:
                    head, newline, tail = b"", b"\n", piece
                if newline:
                    yield from reversed(tail.splitlines())
                    rest = head + b"\n" if start else b""
                else:
                    rest = piece
                offset = start

    def lines_from(self, offset: int) -> Iterator[bytes]:
        """Whole lines, with their ends, from a place forward to the file's end.

        Args:
            offset: Where a line begins.

        Raises:
            DumpError: The file cannot be read any more.
        """
        with layout.reading(self.path) as file:
            file.seek(offset)
            while line := file.readline(LONGEST_LINE):
                if not line.endswith(b"\n"):
                    return  # what a killed run left of its last line
                yield line

    def stages_of(self, step: int) -> list[str]:
        """The stages of a step in the order in which they were first entered.

        Raises:
            DumpError: The file cannot be read, or a line of the step is no event.
        """
        found: dict[str, None] = {}
        seen: set[bytes] = set()
        wanted = b"%s%d" % (STEP, step)
        with TraceReader(self) as reader:
            while text := reader.chunk():
                for line in text.splitlines() if wanted in text else ():
                    stage = line[line.rfind(_STAGE) :]
                    if wanted in stage and stage not in seen and step_of(line[line.rfind(STEP) :]) == step:
                        seen.add(stage)
                        event = reader.parse(line)
                        if event.stage is not None:
                            found[event.stage] = None
                reader.take_bytes(len(text))
        return list(found)


class TraceReader:
    """Reads a trace forward: as bytes that end with a line, or line by line, from the same place.

    Args:
        file: The trace.
        last_step: Events of later steps are read, and left out; None takes all.

    Raises:
        DumpError: The file cannot be opened.
    """

    def __init__(self, file: TraceFile, last_step: int | None = None) -> None:
        self.file = file
        self.events = 0
        """Events that were taken."""
        self.offset = 0
        """Where the next event begins in the file, in bytes."""
        self.lines: list[bytes] = []
        """Lines with their ends that were split off and not taken."""
        self.at = 0
        """Index of the first line that was not taken."""
        self.problem: str | None = None
        """Why a trace that no digest vouches for ends before its file does."""
        self._last_step = last_step
        self._buffer = b""  # whole lines that were not split
        self._partial = b""  # the beginning of a line
        self._read_lines = 0
        self._step = 0
        self._over = False
        self._late = False
        self._hasher = hasher()
        self._stream = self._open()

    def __enter__(self) -> TraceReader:
        """The reader, open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes the file."""
        self._stream.close()

    def _open(self) -> BinaryIO:
        try:
            return layout.open_plain(self.file.path)
        except OSError as error:
            raise DumpError(f"{self.file.path}: cannot be read ({error.strerror})") from error

    @property
    def has_lines(self) -> bool:
        """Whether a line is left to take; reads on where it must."""
        return self.at < len(self.lines) or bool(self._buffer) or self._read()

    @property
    def is_read(self) -> bool:
        """Whether the whole file was read, so that the lines split off are all that is left."""
        return self._over and not self._buffer

    def chunk(self) -> bytes:
        """What was read and not taken, as bytes that end with a line; empty at the end."""
        if self.at < len(self.lines):
            self._buffer = b"".join(self.lines[self.at :]) + self._buffer
        self.lines, self.at = [], 0
        while len(self._buffer) < CHUNK and self._read():
            pass
        return self._buffer

    def take_bytes(self, size: int) -> None:
        """Takes so many bytes of the chunk, whole lines."""
        self.events += self._buffer.count(b"\n", 0, size)
        self.offset += size
        self._buffer = self._buffer[size:]

    def ensure(self, count: int, most_bytes: int) -> None:
        """Splits off lines until there are so many not taken, or so many bytes of them, or no more.

        Args:
            count: Lines wanted.
            most_bytes: Bytes after which it is enough.
        """
        held = 0 if count <= len(self.lines) - self.at else sum(map(len, self.lines[self.at :]))
        while len(self.lines) - self.at < count and held < most_bytes and (self._buffer or self._read()):
            held += len(self._buffer)
            self.lines = [*self.lines[self.at :], *self._buffer.splitlines(keepends=True)]
            self.at, self._buffer = 0, b""

    def take_lines(self, count: int) -> None:
        """Takes so many of the lines that were split off."""
        taken = self.lines[self.at : self.at + count]
        self.events += len(taken)
        self.offset += sum(map(len, taken))
        self.at += count

    def parse(self, line: bytes, index: int | None = None) -> TraceEvent:
        """The event of a line.

        Args:
            line: The line.
            index: Its position in the trace; None takes the one that it names.

        Raises:
            DumpError: It is none: the file was forged.
        """
        try:
            return parse_event(line, index)
        except NO_EVENT as error:
            where = "a line" if index is None else f"line {index + 1}"
            raise DumpError(f"{self.file.path}: {where} is damaged ({error})") from error

    def finish(self) -> str | None:
        """Why the whole file is not what the run wrote, where a manifest vouches for it; None where it is.

        Reads what was not read yet.
        """
        self._buffer, self.lines = b"", []
        while self._read():
            self._buffer = b""
        if not self.file.sealed:
            return None
        if self._hasher.hexdigest() != self.file.digest:
            cut = f"; line {self._read_lines + 1} was cut off" if self._partial else ""
            return f"{self.file.path}: was changed after it was written; its digest is not the manifest's{cut}"
        if self._partial or self._read_lines != self.file.events:
            return f"{self.file.path}: has {self._read_lines} events, not {self.file.events} as the manifest says"
        return None

    def _read(self) -> bool:
        """Reads a piece that holds at least one end of a line; whether there was one to take."""
        while not self._over:
            try:
                piece = self._stream.read(CHUNK)
            except OSError as error:
                raise DumpError(f"{self.file.path}: cannot be read ({error.strerror})") from error
            self._hasher.update(piece)
            if not piece:
                self._over = True
                if self._partial and not self.file.sealed:
                    self.problem = f"{self.file.path}: line {self._read_lines + 1} was cut off"
                return False
            whole, newline, rest = piece.rpartition(b"\n")
            if not newline:
                self._partial += piece
                if len(self._partial) > LONGEST_LINE:
                    raise DumpError(f"{self.file.path}: line {self._read_lines + 1} is longer than any event")
                continue
            found = self._partial + whole + newline
            self._partial = rest
            if self._add(found):
                return True
        return False

    def _add(self, found: bytes) -> bool:
        suspect = not self.file.sealed or _NULL_DIGEST in found or b"\r" in found
        good = self._checked(found) if suspect else found
        self._read_lines += good.count(b"\n")
        if self._late:
            return False
        good = self._until_last_step(good)
        self._buffer += good
        return bool(good)

    def _checked(self, found: bytes) -> bytes:
        """The lines up to the first that is no event."""
        good: list[bytes] = []
        for line in found.splitlines(keepends=True):
            index = self._read_lines + len(good)
            try:
                event = parse_event(line, index)
                if b"\r" in line or (not self.file.sealed and line != event.line()):
                    raise ValueError("not as it was written")
                if event.step < self._step:
                    raise ValueError(f"step {event.step} comes after step {self._step}")
            except NO_EVENT as error:
                problem = f"{self.file.path}: line {index + 1} is damaged ({error})"
                if self.file.sealed:
                    raise DumpError(problem) from error
                self.problem, self._over = problem, True
                break
            self._step = event.step
            good.append(line)
        return b"".join(good)

    def _until_last_step(self, good: bytes) -> bytes:
        if self._last_step is None or not good:
            return good
        try:
            if step_of(good[good.rfind(STEP) :]) <= self._last_step:
                return good
            kept = []
            for line in good.splitlines(keepends=True):
                if step_of(line[line.rfind(STEP) :]) > self._last_step:
                    self._late = True
                    break
                kept.append(line)
            return b"".join(kept)
        except ValueError as error:
            raise DumpError(f"{self.file.path}: a line is damaged ({error})") from error
