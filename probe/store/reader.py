"""Reading a dump folder: what its manifest says, what is wrong with it, and its records step by step.

Works without torch, and trusts nothing that it reads. A folder that has no index (msprobe's SingleSave wrote it) is
scanned instead; its records have no digest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from probe.errors import DumpError
from probe.store import layout
from probe.store.index import Batch, RankIndex, check_index, lines_with_values, parse_lines
from probe.store.manifests import read_manifest
from probe.store.packing import is_packed, unpack
from probe.store.scan import NAMED, ScannedRank, scan, shown, walk
from probe.store.values import Array, ValueFiles, read_values
from probe.types import STAGES, Record

__all__ = ["Array", "Cursor", "Dump", "ValueFiles", "holds_records", "read_dump", "read_values"]


class Cursor(Protocol):
    """Reads the records of one rank forward, one step at a time."""

    @property
    def next_step(self) -> int | None:
        """Step of the next record; None at the end."""
        ...

    def take(self, step: int, skip: bool = False) -> Batch:
        """The records of a step; those of earlier steps may be passed over where ``skip`` says so."""
        ...


@dataclass(frozen=True)
class Dump:
    """One run's dump folder, as far as it could be read.

    Example:
        >>> Dump(Path("a/msprobe_dump")).complete
        False
    """

    folder: Path
    ranks: Mapping[int, RankIndex | ScannedRank] = field(default_factory=dict)
    """Where the records of each rank are."""
    complete: bool = False
    """Whether the run ended as it should. False where there is no manifest to say so."""
    steps_finished: int | None = None
    """Steps that the run finished; None where there is no manifest."""
    digest_algorithm: str | None = None
    """What the digests are; None where there are none."""
    digests_of_tags: Mapping[int, Mapping[str, str]] = field(default_factory=dict, kw_only=True)
    """Of each rank, what the digests of the tags are that have others."""
    problems: list[str] = field(default_factory=list)
    """What could not be read, and what makes the run incomplete: one sentence each."""

    def algorithm(self, rank: int, tag: str) -> str | None:
        """What the digests of a rank's records of a tag are; None where there are none."""
        return self.digests_of_tags.get(rank, {}).get(tag, self.digest_algorithm)

    def end(self, rank: int) -> int | None:
        """The step in which an incomplete run's records of a rank end: what is absent from it on is unknown.

        None when the run is complete; -1 when the rank has no records, and for a damaged tree without an index, where
        anything may be absent.
        """
        if self.complete:
            return None
        source = self.ranks.get(rank)
        return source.last_step if isinstance(source, RankIndex) and source.last_step is not None else -1

    @property
    def last_whole_step(self) -> int | None:
        """The last step that is known to be whole in this dump, -1 for none; None where it does not count them."""
        if self.steps_finished is None or self.complete:
            return None if self.steps_finished is None else self.steps_finished - 1
        recorded = [source.last_step for source in self.ranks.values() if source.last_step is not None]
        return min(self.steps_finished - 1, max(recorded, default=-1))

    def find(self, rank: int, step: int, key: tuple[str, int, str, int]) -> Record | None:
        """One record; None when there is none."""
        if rank not in self.ranks:
            return None
        return next(
            (record for record in self.ranks[rank].cursor().take(step, skip=True).records if record.key == key), None
        )

    @property
    def records(self) -> dict[int, list[Record]]:
        """Every record of each rank, in order: all in memory, for looking around in a small dump."""
        found: dict[int, list[Record]] = {}
        for rank, source in self.ranks.items():
            cursor = source.cursor()
            found[rank] = []
            while cursor.next_step is not None:
                found[rank] += cursor.take(cursor.next_step).records
        return found


def read_dump(folder: Path) -> Dump:
    """Reads what a dump folder holds. One that is packed is unpacked for as long as what is returned is used.

    Raises:
        DumpError: The folder does not exist, or is of a later format, or what is packed in it is damaged.
    """
    if not folder.is_dir():
        raise DumpError(f"{folder}: no such dump folder")
    if is_packed(folder):
        return _read_packed(folder)
    for name in (layout.DATA, layout.INDEX):
        if (folder / name).is_symlink():
            raise DumpError(f"{folder / name}: a link is not followed")
    manifest = read_manifest(folder)
    if manifest is None and (folder / layout.INDEX).exists():
        raise DumpError(f"{folder}: has an index but no {layout.MANIFEST}; the dump is damaged")
    if manifest is None:
        if not any((folder / name).is_dir() for name in (layout.DATA, *STAGES)):
            raise DumpError(f"{folder}: holds no dump; a dump folder has data/ or a stage's folder in it")
        scanned, problems = scan(folder)
        # SingleSave says nowhere whether a run finished: what is there is taken as the whole
        return Dump(folder, scanned, complete=not problems, problems=problems)
    problems = list(manifest.problems)
    ranks: dict[int, RankIndex] = {}
    damaged: list[str] = []
    for rank in manifest.ranks:
        sealed = manifest.index_digests.get(str(rank)) or "none" if manifest.complete else None
        path = folder / layout.INDEX / f"rank{rank}.jsonl"
        ranks[rank], found = check_index(path, rank, manifest.digest, sealed)
        expected = manifest.records.get(str(rank))
        if ranks[rank].seal is not None and expected != ranks[rank].records:
            found = [f"{path}: has {ranks[rank].records} records, not {expected} as the manifest says"]
        damaged += found
    problems += _first_of(damaged, folder)
    whole = _size_of_values(folder) == (manifest.values, manifest.value_bytes)
    if not problems and not whole:
        problems += _unlisted_values(folder, ranks)
    problems += _unlisted_indexes(folder, ranks)
    return Dump(
        folder,
        ranks,
        not problems,
        manifest.steps_finished,
        manifest.digest,
        problems,
        digests_of_tags=manifest.digests,
    )


def holds_records(folder: Path) -> bool:
    """Whether a folder looks like a run's dump folder, rather than like a part of msprobe's layer dumps alone."""
    if not folder.is_dir():
        return False
    tops = any(os.path.lexists(folder / name) for name in (layout.DATA, layout.INDEX, *STAGES))
    return tops or is_packed(folder) or bool(layout.manifests(folder))


def _read_packed(folder: Path) -> Dump:
    scratch = Path(tempfile.mkdtemp(prefix="firstdiff-"))
    try:
        unpack(folder, scratch / layout.DUMP)
        dump = read_dump(scratch / layout.DUMP)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    weakref.finalize(dump, shutil.rmtree, scratch, ignore_errors=True)
    return dump


def _value_files(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Every plain ``.npy`` file below ``data``."""
    for _, entries in walk(folder / layout.DATA):
        for entry in entries or ():
            if entry.name.endswith(".npy") and entry.is_file(follow_symlinks=False):
                yield entry


def _size_of_values(folder: Path) -> tuple[int, int]:
    """How many value files there are, and their bytes in all."""
    count, size = 0, 0
    for entry in _value_files(folder):
        count, size = count + 1, size + entry.stat(follow_symlinks=False).st_size
    return count, size


def _unlisted_values(folder: Path, ranks: Mapping[int, RankIndex]) -> list[str]:
    """Value files that no index line names: what they hold is not compared."""
    listed = {
        record.file
        for source in ranks.values()
        for chunk in source.chunks()
        for record in parse_lines(lines_with_values(chunk), source.path)
    }
    found = (Path(entry.path).relative_to(folder).as_posix() for entry in _value_files(folder))
    return _first_of([f"{shown(folder / file)}: no index names it" for file in found if file not in listed], folder)


def _unlisted_indexes(folder: Path, ranks: Mapping[int, RankIndex]) -> list[str]:
    listed = {f"rank{rank}.jsonl" for rank in ranks}
    try:
        names = sorted(os.listdir(folder / layout.INDEX))
    except OSError as error:
        return [f"{folder / layout.INDEX}: cannot be read ({error.strerror})"] if ranks else []
    unlisted = [
        f"{shown(folder / layout.INDEX / name)}: the manifest does not list it" for name in names if name not in listed
    ]
    return _first_of(unlisted, folder)


def _first_of(findings: list[str], folder: Path) -> list[str]:
    """The first findings of many, and how many more there are."""
    more = len(findings) - NAMED
    return [*sorted(findings)[:NAMED], *([f"{folder}: {more} more such findings"] if more > 0 else [])]
