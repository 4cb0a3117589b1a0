"""Writing a dump folder: records, index and manifest. No torch: it takes NumPy arrays.

Files are written to a temporary name and then renamed, so that a killed run leaves no half file under a real name.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from probe.store import layout
from probe.store.digest import ALGORITHM
from probe.types import Record

Array = npt.NDArray[Any]


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a whole file or nothing."""
    temporary = path.with_name(f".{path.name}.partial")
    with temporary.open("wb") as file:
        file.write(data)
    os.replace(temporary, path)


def write_json(path: Path, value: object) -> None:
    """Writes strict JSON (NaN and infinity are errors here; make them strings first), a whole file or nothing."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(path, text.encode(errors="backslashreplace"))  # a lone surrogate becomes its JSON escape


def strict_number(value: float | int) -> float | int | str:
    """A number as any JSON parser reads it: NaN and infinity become strings."""
    return value if math.isfinite(value) else str(value)


def statistics(values: Array) -> dict[str, Any]:
    """The seed's statistics of an array: max, min, mean, norm (L2), shape.

    Complex arrays are described by their magnitudes. Empty arrays have null statistics, as there is no number to give.
    """
    shape = list(values.shape)
    if values.size == 0:
        return {"max": None, "min": None, "mean": None, "norm": None, "shape": shape}
    reals = np.abs(values) if np.iscomplexobj(values) else values
    with np.errstate(all="ignore"):
        wide = reals.astype(np.float64)
        numbers = {
            "max": reals.max().item(),
            "min": reals.min().item(),
            "mean": wide.mean().item(),
            "norm": float(np.sqrt(np.square(wide).sum())),
        }
    return {**{name: strict_number(number) for name, number in numbers.items()}, "shape": shape}


class DumpWriter:
    """Writes the records of one process into one dump folder.

    Args:
        folder: The dump folder, claimed already.
        run: Name of the run, for the manifest.
        keep_values: Whether ``.npy`` files are written.
    """

    def __init__(self, folder: Path, run: str, keep_values: bool) -> None:
        self._folder = folder
        self._keep_values = keep_values
        self._indexes: dict[int, IO[bytes]] = {}
        self._counts: Counter[int] = Counter()
        self._numbers: Counter[tuple[str, int, int, int]] = Counter()
        self._calls: Counter[tuple[str, int, int, int, str]] = Counter()
        self._manifest: dict[str, Any] = {
            "format": layout.FORMAT,
            "digest": ALGORITHM,
            "run": run,
            "ranks": [],
            "records": {},
            "steps_finished": 0,
            "complete": False,
            "errors": [],
        }
        (folder / layout.INDEX).mkdir(exist_ok=True)
        self._write_manifest()

    def add(
        self,
        tag: str,
        step: int,
        rank: int,
        micro_step: int,
        path: str,
        stage: str | None,
        values: Array | None,
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
            values: Numbers for people and for msprobe, of a type that ``.npy`` holds; None keeps the digest only.
            dtype: Name of the original element type.
            shape: Original shape.
            digest: Digest of the original bytes.
            masked: Digest with the entries outside the mask set to zero.
        """
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

    def add_digests(self, tag: str, step: int, rank: int, entries: list[tuple[str, str, tuple[int, ...], str]]) -> None:
        """Writes many digest-only records of one tag, with one ``.json`` for all.

        Args:
            tag: Key-data name.
            step: Training step.
            rank: Rank.
            entries: Path, dtype, shape and digest of each.
        """
        folder = self._folder / layout.record_folder(tag, step, rank, 0)
        folder.mkdir(parents=True, exist_ok=True)
        place = (tag, step, rank, 0)
        stem = layout.record_stem(tag, self._numbers[place])
        self._numbers[place] += 1
        described = {path: {"dtype": dtype, "shape": list(shape), "digest": d} for path, dtype, shape, d in entries}
        write_json(folder / f"{stem}.json", {"data": described})
        for path, dtype, shape, value in entries:
            self.add(tag, step, rank, 0, path, None, None, dtype, shape, value)

    def finish_step(self, step: int) -> None:
        """Notes that a step is whole."""
        self._manifest["steps_finished"] = step + 1
        self._count_records()
        self._write_manifest()

    def note_error(self, message: str) -> None:
        """Notes why nothing more is recorded: the dump stays incomplete."""
        self._manifest["errors"].append(message)
        self._write_manifest()

    def close(self, complete: bool) -> None:
        """Ends the dump.

        Args:
            complete: Whether the trainer ended as it should.
        """
        for file in self._indexes.values():
            file.close()
        self._manifest["complete"] = complete and not self._manifest["errors"]
        self._count_records()
        self._write_manifest()

    def _write_values(
        self, place: tuple[str, int, int, int], number: int, path: str, values: Array, dtype: str, digest: str
    ) -> str | None:
        relative = layout.record_folder(*place)
        folder = self._folder / relative
        folder.mkdir(parents=True, exist_ok=True)
        stem = layout.record_stem(place[0], number)
        described = {**statistics(values), "dtype": dtype, "path": path, "digest": digest}
        file = None
        if self._keep_values:
            file = f"{relative}/{stem}.npy"
            temporary = folder / f".{stem}.partial"
            with temporary.open("wb") as stream:
                np.save(stream, values, allow_pickle=False)
            os.replace(temporary, self._folder / file)
        write_json(folder / f"{stem}.json", {"data": described})
        return file

    def _count_records(self) -> None:
        self._manifest["records"] = {str(rank): count for rank, count in sorted(self._counts.items())}

    def _append(self, record: Record) -> None:
        index = self._indexes.get(record.rank)
        if index is None:
            path = self._folder / layout.INDEX / f"rank{record.rank}.jsonl"
            index = self._indexes[record.rank] = path.open("wb", buffering=0)
            self._manifest["ranks"] = sorted(self._indexes)
            self._write_manifest()
        fields = {name: getattr(record, name) for name in Record.__dataclass_fields__}
        line = json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)
        index.write(line.encode() + b"\n")
        self._counts[record.rank] += 1

    def _write_manifest(self) -> None:
        write_json(self._folder / layout.MANIFEST, self._manifest)


def mark_incomplete(folder: Path, reason: str) -> None:
    """Notes in a dump's manifest that its run failed, which only whoever started the run may know.

    Args:
        folder: The dump folder; nothing happens where it has no manifest that can be read.
        reason: One sentence.
    """
    path = folder / layout.MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        write_json(path, {**manifest, "complete": False, "errors": [*manifest["errors"], reason]})
    except (OSError, ValueError, KeyError, TypeError):
        return  # without a readable manifest the dump is not complete either
