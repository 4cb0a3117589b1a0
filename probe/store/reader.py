"""Reading a dump folder: manifest, records, values. Works without torch, trusts nothing that it reads.

A folder that has no index (msprobe's SingleSave wrote it) is scanned instead; its records have no digest.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.errors import DumpError
from probe.store import layout
from probe.types import STAGE_OF_TAG, STAGES, TAGS, Record

Array = npt.NDArray[Any]

_TEXT = {"tag": str, "path": str, "dtype": str}
_COUNTS = ("step", "rank", "micro_step", "call")
_OPTIONAL_TEXT = ("stage", "digest", "masked", "file")


@dataclass(frozen=True)
class Dump:
    """One run's dump folder, as far as it could be read.

    Example:
        >>> Dump(Path("a/msprobe_dump")).complete
        False
    """

    folder: Path
    records: dict[int, list[Record]] = field(default_factory=dict)
    """Every record of each rank, in the order in which it was saved."""
    complete: bool = False
    """Whether the run ended as it should. False where there is no manifest to say so."""
    steps_finished: int | None = None
    """Steps that the run finished; None where there is no manifest."""
    digest_algorithm: str | None = None
    """What the digests are; None where there are none."""
    problems: list[str] = field(default_factory=list)
    """What could not be read, and what makes the run incomplete: one sentence each."""


def read_dump(folder: Path) -> Dump:
    """Reads what a dump folder holds.

    Raises:
        DumpError: The folder does not exist, or is of a later format.
    """
    if not folder.is_dir():
        raise DumpError(f"{folder}: no such dump folder")
    manifest = _read_manifest(folder)
    if manifest is None and (folder / layout.INDEX).exists():
        raise DumpError(f"{folder}: has an index but no {layout.MANIFEST}; the dump is damaged")
    if manifest is None:
        if not any((folder / name).is_dir() for name in (layout.DATA, *STAGES)):
            raise DumpError(f"{folder}: holds no dump; a dump folder has data/ or a stage's folder in it")
        return _scan(folder)
    problems = [f"{folder}: {error}" for error in manifest["errors"]]
    if not manifest["complete"] and not problems:
        problems.append(f"{folder}: the run did not finish; {manifest['steps_finished']} steps are whole")
    records: dict[int, list[Record]] = {}
    for rank in manifest["ranks"]:
        records[rank], found = _read_index(folder, rank)
        problems += found
        expected = manifest["records"].get(str(rank))
        if manifest["complete"] and not found and expected != len(records[rank]):
            problems.append(f"{folder}: the index of rank {rank} has {len(records[rank])} records, not {expected}")
    if not problems:
        problems += _unlisted_values(folder, records)
    listed = {f"rank{rank}.jsonl" for rank in manifest["ranks"]}
    for file in sorted((folder / layout.INDEX).glob("*")):
        if file.name not in listed:
            problems.append(f"{file}: the manifest does not list it")
    return Dump(folder, records, not problems, manifest["steps_finished"], manifest["digest"], problems)


def read_values(folder: Path, record: Record) -> Array:
    """The stored numbers of a record, mapped from its file rather than loaded.

    Raises:
        DumpError: The file is missing, damaged, holds Python objects, or lies outside the folder.
    """
    if record.file is None:
        raise DumpError(f"{folder}: {record.tag} has no stored values")
    path = folder / record.file
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            raise DumpError(f"{path}: lies outside the dump folder")
        if path.exists() and not path.is_file():
            raise DumpError(f"{path}: not a file")
        return _open_npy(path)
    except DumpError:
        raise
    except Exception as error:  # noqa: BLE001  (NumPy's header parser raises anything on damaged bytes)
        raise DumpError(f"{path}: not a readable .npy file ({' '.join(str(error).split())})") from error


def _open_npy(path: Path) -> Array:
    size = path.stat().st_size
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise ValueError(f"unknown .npy version {version}")
        shape, _, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("it holds Python objects, which are never unpickled")
        needed = file.tell() + int(np.prod(shape, dtype=object)) * dtype.itemsize
        if needed != size:
            raise ValueError(f"it has {size} bytes where its header asks for {needed}")
        if needed == file.tell():
            return np.empty(shape, dtype)
    values: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return values


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    path = folder / layout.MANIFEST
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] > layout.FORMAT:
            raise DumpError(f"{path}: format {manifest['format']} is newer than this Firstdiff reads")
        if manifest["format"] != layout.FORMAT:
            raise ValueError(f"there is no format {manifest['format']}")
        expected = {
            "ranks": list,
            "complete": bool,
            "steps_finished": int,
            "digest": str,
            "errors": list,
            "records": dict,
        }
        if not all(isinstance(manifest[key], kind) for key, kind in expected.items()):
            raise ValueError("a value has the wrong type")
        if not all(isinstance(rank, int) and rank >= 0 for rank in manifest["ranks"]):
            raise ValueError("a rank is not a number")
        if isinstance(manifest["steps_finished"], bool) or manifest["steps_finished"] < 0 or not manifest["digest"]:
            raise ValueError("a value has the wrong type")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{path}: damaged ({error})") from error
    return dict(manifest)


def _unlisted_values(folder: Path, records: dict[int, list[Record]]) -> list[str]:
    """Value files that no index line names: what they hold is not compared."""
    listed = {record.file for found in records.values() for record in found}
    return [
        f"{file}: no index names it"
        for file in sorted((folder / layout.DATA).rglob("*.npy"))
        if file.relative_to(folder).as_posix() not in listed
    ]


def _read_index(folder: Path, rank: int) -> tuple[list[Record], list[str]]:
    path = folder / layout.INDEX / f"rank{rank}.jsonl"
    records: list[Record] = []
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    return records, [f"{path}: line {number} was cut off"]
                records.append(_parse(line))
    except OSError as error:
        return records, [f"{path}: cannot be read ({error.strerror})"]
    except (ValueError, KeyError, TypeError, DumpError, RecursionError) as error:
        return records, [f"{path}: line {len(records) + 1} is damaged ({error})"]
    if any(record.rank != rank for record in records):
        return records, [f"{path}: holds records of another rank"]
    if len({(record.step, record.key) for record in records}) < len(records):
        return records, [f"{path}: holds a record twice"]
    return records, []


def _parse(line: bytes) -> Record:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not an object")
    good = (
        all(isinstance(fields[name], kind) for name, kind in _TEXT.items())
        and all(isinstance(fields[name], int) and fields[name] >= 0 for name in _COUNTS)
        and all(fields[name] is None or isinstance(fields[name], str) for name in _OPTIONAL_TEXT)
        and all(isinstance(size, int) and size >= 0 for size in fields["shape"])
    )
    if not good:
        raise ValueError("a value has the wrong type")
    layout.check_tag(fields["tag"])
    return Record(**{**fields, "shape": tuple(fields["shape"])})


_STEP, _RANK, _MICRO = (re.compile(rf"{name}(\d{{1,9}})") for name in ("step", "rank", "micro_step"))


def _scan(folder: Path) -> Dump:
    """Records of a tree without an index, in causal order of the tags."""
    found: list[Record] = []
    problems: list[str] = []
    for base, folders, files in os.walk(folder / layout.DATA, followlinks=False):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(base, name))]
        problems += [f"{os.path.join(base, name)}: a link is not followed" for name in links]
        for name in sorted(files):
            relative = Path(os.path.relpath(os.path.join(base, name), folder)).as_posix()
            if name.endswith(".npy"):
                record = _record_of_file(folder, relative, problems)
                found += [record] if record else []
            elif not name.endswith(".json"):
                problems.append(f"{folder / relative}: not a record")
            elif not any(other.startswith(name[:-4]) and other.endswith(".npy") for other in files):
                problems.append(f"{folder / relative}: its values are missing")
    found.sort(key=lambda r: (r.step, TAGS.index(r.tag) if r.tag in TAGS else len(TAGS), r.tag, r.micro_step, r.path))
    records: dict[int, list[Record]] = {}
    for record in found:
        records.setdefault(record.rank, []).append(record)
    # SingleSave says nowhere whether a run finished: what is there is taken as the whole.
    return Dump(folder, records, complete=not problems, problems=problems)


def _record_of_file(folder: Path, relative: str, problems: list[str]) -> Record | None:
    """A record for ``data/<tag>/step{n}/rank{r}[/micro_step{m}]/<name>.npy``."""
    parts = relative.split("/")
    micro = _MICRO.fullmatch(parts[-2])
    places = parts[2:-2] if micro else parts[2:-1]
    matches = [pattern.fullmatch(part) for pattern, part in zip((_STEP, _RANK), places, strict=False)]
    if len(places) != 2 or not all(matches):
        problems.append(f"{folder / relative}: not in a step and rank folder")
        return None
    step, rank = (int(match.group(1)) for match in matches if match)
    tag = parts[1]
    record = Record(
        tag=tag,
        step=step,
        rank=rank,
        micro_step=int(micro.group(1)) if micro else 0,
        path=parts[-1].removesuffix(".npy").removeprefix(tag).removeprefix("."),
        call=0,
        stage=STAGE_OF_TAG.get(tag),
        dtype="",
        shape=(),
        digest=None,
        masked=None,
        file=relative,
    )
    try:
        values = read_values(folder, record)
    except DumpError as error:
        problems.append(str(error))
        return record  # it is there: comparing it finds it unreadable, not missing
    fields = {name: getattr(record, name) for name in Record.__dataclass_fields__}
    return Record(**{**fields, "dtype": str(values.dtype), "shape": values.shape})
