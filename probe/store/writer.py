"""Writing a dump folder: records, index and manifest. No torch: it takes NumPy arrays.

Files are written to a temporary name and then renamed, so that a killed run leaves no half file under a real name.
"""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from probe.errors import RecordError
from probe.store import layout
from probe.store.digest import ALGORITHM, Hasher, hasher
from probe.store.index import index_line
from probe.store.numeric import Numbers, statistics, write_npy
from probe.store.trace import Event, TraceWriter
from probe.types import Record

DigestEntry = tuple[str, str, tuple[int, ...], str]
"""Path, dtype, shape and digest of a record whose values are not kept."""

RESERVE_BYTES = 64 << 10
"""Room that is given free when the disk is full, so that the manifest can say so."""


@dataclass(frozen=True, slots=True)
class Place:
    """Which of a run's several processes this is.

    Example:
        >>> Place(rank=1, world_size=2).first_of_host
        False
    """

    rank: int
    world_size: int
    first_of_host: bool = False
    """Whether it is its host's first process."""
    launch: str | None = None
    """What names the launch that all of them are from; None where nothing does."""


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that takes the path's place at the end; after an error nothing of it is left."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with temporary.open("wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, error.strerror, str(path)) from error  # a full disk does not say where
        raise


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a whole file or nothing."""
    with _replacing(path) as file:
        file.write(data)


def write_json(path: Path, value: object) -> None:
    """Writes strict JSON (NaN and infinity are errors here; make them strings first), a whole file or nothing."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(path, text.encode(errors="backslashreplace"))  # a lone surrogate becomes its JSON escape


def _write_whole(file: IO[bytes], data: bytes) -> None:
    """Writes all of the data to an unbuffered file, which may take it in parts when the disk fills up."""
    while data:
        data = data[file.write(data) :]


class DumpWriter:
    """Writes the records of one process into one dump folder. One thread at a time.

    From any other, ``note_error`` and ``write_file``.

    Args:
        folder: The dump folder, claimed already.
        run: Name of the run, for the manifest.
        keep_values: Whether ``.npy`` files are written.
        place: The process's own place, where several record one run.
        trace: Whether events are written too.
    """

    def __init__(
        self, folder: Path, run: str, keep_values: bool, place: Place | None = None, trace: bool = False
    ) -> None:
        self._folder = folder
        self._place = place
        rank = None if place is None else place.rank
        self._manifest_file = folder / layout.of_rank(layout.MANIFEST, rank)
        self._reserve = folder / layout.of_rank(layout.RESERVE, rank)
        self._keep_values = keep_values
        self._indexes: dict[int, IO[bytes]] = {}
        self._hashers: dict[int, Hasher] = {}
        self._counts: Counter[int] = Counter()
        self._steps: Counter[int] = Counter()
        self._digests: dict[str, str] = {}
        self._lock = threading.Lock()
        self._numbers: Counter[tuple[str, int, int, int]] = Counter()
        self._calls: Counter[tuple[str, int, int, int, str]] = Counter()
        self._manifest: dict[str, Any] = {
            "format": layout.FORMAT,
            "digest": ALGORITHM,
            "run": run,
            "ranks": [],
            "records": {},
            "index_digests": {},
            "values": 0,
            "value_bytes": 0,
            "files": [],
            "steps_finished": 0,
            "complete": False,
            "errors": [],
            **({} if place is None else {"rank": place.rank, "world_size": place.world_size, "launch": place.launch}),
        }
        (folder / layout.INDEX).mkdir(exist_ok=True)
        self._trace = TraceWriter(folder, exclusive=place is not None) if trace else None
        self._reserve.write_bytes(bytes(RESERVE_BYTES))
        self._update()

    def add(
        self,
        tag: str,
        step: int,
        rank: int,
        micro_step: int,
        path: str,
        stage: str | None,
        values: Numbers | None,
        dtype: str,
        shape: tuple[int, ...],
        digest: str,
        masked: str | None = None,
    ) -> None:
        """Writes one record and its index line.

        Args:
            tag: Key-data name.
            step: Training step, from 0.
            rank: Rank it belongs to.
            micro_step: Micro-step in the step, from 0.
            path: Dotted path inside what was saved, ``""`` for the whole.
            stage: The open stage.
            values: What people and msprobe read; None keeps the digest only.
            dtype: Name of the original element type.
            shape: Original shape.
            digest: Digest of the original bytes.
            masked: Digest of the entries inside the mask, zeros for the others, and the mask.
        """
        if step < self._manifest["steps_finished"]:
            raise RecordError(f"step {step} is finished: nothing can be added to it")
        if self._place is not None and rank != self._place.rank:
            raise RecordError(f"a record of rank {rank} in the process of rank {self._place.rank}: each saves its own")
        place = (tag, step, rank, micro_step)
        file = None
        if values is not None:
            number = self._numbers[place]
            self._numbers[place] += 1
            file = self._write_values(place, number, path, values, dtype, digest)
        entry = (*place, path)
        call = self._calls[entry]
        self._calls[entry] += 1
        record = Record(tag, step, rank, micro_step, path, call, stage, dtype, shape, digest, masked, file)
        self._append(record)

    def add_digests(self, tag: str, step: int, rank: int, entries: list[DigestEntry]) -> None:
        """Writes many digest-only records of one tag, with one ``.json`` for all.

        Args:
            tag: Key-data name.
            step: Training step.
            rank: Rank.
            entries: Path, dtype, shape and digest of each; nothing is written where there are none.
        """
        if not entries:
            return
        folder = self._folder / layout.record_folder(tag, step, rank, 0)
        folder.mkdir(parents=True, exist_ok=True)
        place = (tag, step, rank, 0)
        stem = layout.record_stem(tag, self._numbers[place])
        self._numbers[place] += 1
        described = {path: {"dtype": dtype, "shape": list(shape), "digest": d} for path, dtype, shape, d in entries}
        write_json(folder / f"{stem}.json", {"data": described})
        for path, dtype, shape, value in entries:
            self.add(tag, step, rank, 0, path, None, None, dtype, shape, value)

    def add_events(self, rank: int, events: list[Event], algorithms: Iterable[str]) -> None:
        """Adds events to a rank's trace, in execution order.

        Args:
            rank: Whose they are.
            events: All of their keys but the position.
            algorithms: Those of the digests in them.
        """
        assert self._trace is not None
        if events and self._place is not None and rank != self._place.rank:
            raise RecordError(f"an event of rank {rank} in the process of rank {self._place.rank}: each traces its own")
        for event in events:
            self._trace.append(rank, event, algorithms)

    def name_digest(self, tag: str, algorithm: str) -> None:
        """Says by which algorithm the digests of a tag are made, before the first of them is added.

        Args:
            tag: Key-data name.
            algorithm: Its name; that of all other records needs not be named.
        """
        if algorithm != ALGORITHM:
            self._digests[tag] = algorithm
            self._update(digests=self._digests)

    def finish_step(self, step: int) -> None:
        """Notes that a step is whole: nothing can be added to it any more."""
        if self._trace is not None:
            self._trace.flush()
        self._numbers.clear()
        self._calls.clear()
        self._update(steps_finished=step + 1, **self._counted())

    def write_file(self, name: str, content: dict[str, Any]) -> None:
        """Writes a file that says what was run, and notes in the manifest that there is one.

        Args:
            name: Its name, at the top of the dump folder.
            content: What it holds.
        """
        write_json(self._folder / name, content)
        self._update(files=[*self._manifest["files"], name])

    def note_error(self, message: str) -> None:
        """Notes why nothing more is recorded: the dump stays incomplete."""
        self._reserve.unlink(missing_ok=True)
        self._update(errors=[*self._manifest["errors"], message])

    def close(self, complete: bool) -> None:
        """Ends the dump.

        Args:
            complete: Whether the trainer ended as it should.

        Raises:
            OSError: The disk is full.
        """
        if self._trace is not None:
            try:
                if not self._manifest["errors"]:  # after one, a file may end inside a line
                    self._trace.flush()
            finally:
                self._trace.close()
        for file in self._indexes.values():
            file.close()
        self._reserve.unlink(missing_ok=True)
        self._update(complete=complete and not self._manifest["errors"], **self._counted())

    def _write_values(
        self, place: tuple[str, int, int, int], number: int, path: str, values: Numbers, dtype: str, digest: str
    ) -> str | None:
        relative = layout.record_folder(*place)
        folder = self._folder / relative
        folder.mkdir(parents=True, exist_ok=True)
        stem = layout.record_stem(place[0], number)
        described = {**statistics(values), "dtype": dtype, "path": path, "digest": digest}
        file = None
        if self._keep_values:
            file = f"{relative}/{stem}.npy"
            with _replacing(self._folder / file) as stream:
                write_npy(stream, values)
                size = stream.tell()
            self._manifest["values"] += 1
            self._manifest["value_bytes"] += size
        write_json(folder / f"{stem}.json", {"data": described})
        return file

    def _append(self, record: Record) -> None:
        rank = record.rank
        if rank not in self._indexes:
            path = self._folder / layout.INDEX / f"rank{rank}.jsonl"
            path.touch(exist_ok=self._place is None)  # of several processes, no two write one index
            self._indexes[rank] = path.open("wb", buffering=0)
            self._hashers[rank] = hasher()
            self._update(ranks=sorted(self._indexes))
        line = index_line(record)
        if record.step < self._steps[rank]:
            raise RecordError(f"step {record.step} of rank {rank} comes after step {self._steps[rank]}")
        self._steps[rank] = record.step
        _write_whole(self._indexes[rank], line)
        self._hashers[rank].update(line)
        self._counts[rank] += 1

    def _counted(self) -> dict[str, Any]:
        """What the manifest says of the indexes: they can be checked, and compared, without being parsed."""
        ranks = sorted(self._counts)
        return {
            **({} if self._trace is None else {"traces": self._trace.described}),
            "records": {str(rank): self._counts[rank] for rank in ranks},
            "index_digests": {str(rank): self._hashers[rank].hexdigest() for rank in ranks},
        }

    def _update(self, **changes: Any) -> None:
        with self._lock:
            self._manifest.update(changes)
            write_json(self._manifest_file, self._manifest)


def mark_incomplete(folder: Path, reason: str) -> None:
    """Notes in every manifest of a dump that its run failed, which only whoever started the run may know.

    Args:
        folder: The dump folder; nothing happens where it has no manifest that can be read.
        reason: One sentence.
    """
    try:
        paths = sorted(layout.manifests(folder).values())
    except OSError:
        return  # without a readable manifest the dump is not complete either
    for path in paths:
        try:
            manifest = json.loads(path.read_bytes())
            write_json(path, {**manifest, "complete": False, "errors": [*manifest["errors"], reason]})
        except (OSError, ValueError, KeyError, TypeError):
            continue  # the same
