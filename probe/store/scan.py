"""Key data without an index, as msprobe's SingleSave writes it: found by walking the tree, without digests."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from probe.errors import DumpError, RecordError
from probe.store import layout
from probe.store.index import Batch
from probe.types import STAGE_OF_TAG, TAGS, Record

NAMED = 100
"""Most findings of one kind that are named; the rest is counted."""

_STEP, _RANK, _MICRO = (re.compile(rf"{name}(0|[1-9]\d{{0,8}})") for name in ("step", "rank", "micro_step"))


@dataclass(frozen=True, slots=True)
class _Place:
    """A folder that holds records: ``data/<tag>/step{n}/rank{r}[/micro_step{m}]``."""

    relative: str
    tag: str
    micro_step: int


@dataclass(frozen=True, slots=True)
class ScannedRank:
    """The key data of one rank in a tree without an index.

    Example:
        >>> ScannedRank(Path("dump"), 0).cursor().next_step is None
        True
    """

    folder: Path
    rank: int
    places: dict[int, list[_Place]] = field(default_factory=dict)
    """Folders of each step."""
    seal: None = None

    @property
    def last_step(self) -> int | None:
        """The last step that has a folder."""
        return max(self.places, default=None)

    def cursor(self) -> ScanCursor:
        """Reads it from its first step."""
        return ScanCursor(self)


class ScanCursor:
    """Lists the records of a scanned rank, one step at a time.

    Args:
        source: The rank.
    """

    def __init__(self, source: ScannedRank) -> None:
        self._source = source
        self._steps = sorted(source.places, reverse=True)

    @property
    def next_step(self) -> int | None:
        """The next step that has records; None at the end."""
        return self._steps[-1] if self._steps else None

    def take(self, step: int, skip: bool = False) -> Batch:
        """The records of a step, in causal order of their tags. See ``IndexCursor``.

        Raises:
            DumpError: A folder cannot be read any more.
        """
        del skip  # steps are sorted here: nothing can be overlooked
        while self._steps and self._steps[-1] <= step:
            self._steps.pop()
        places = self._source.places.get(step, ())
        try:
            records = [record for place in places for record in self._records(place, step)]
        except OSError as error:  # it was there when the tree was walked
            raise DumpError(f"{error.filename}: cannot be read ({error.strerror})") from error
        records.sort(key=lambda r: (TAGS.index(r.tag) if r.tag in TAGS else len(TAGS), r.tag, r.micro_step, r.path))
        return Batch([], records)

    def _records(self, place: _Place, step: int) -> Iterator[Record]:
        with os.scandir(self._source.folder / place.relative) as entries:
            for entry in entries:
                if entry.name.endswith(".npy") and is_text(entry.name):
                    yield Record(
                        tag=place.tag,
                        step=step,
                        rank=self._source.rank,
                        micro_step=place.micro_step,
                        path=entry.name.removesuffix(".npy").removeprefix(place.tag).removeprefix("."),
                        call=0,
                        stage=STAGE_OF_TAG.get(place.tag),
                        dtype="",
                        shape=(),
                        digest=None,
                        masked=None,
                        file=f"{place.relative}/{entry.name}",
                    )


def scan(folder: Path) -> tuple[dict[int, ScannedRank], list[str]]:
    """Finds the ranks, steps and tags of a tree without an index; lists no records yet.

    Args:
        folder: The dump folder.

    Returns:
        The ranks, and what lies there that cannot be compared, one sentence each.
    """
    ranks: dict[int, ScannedRank] = {}
    findings: list[str] = []
    left_out = 0
    for base, entries in walk(folder / layout.DATA):
        place, rank, step = _place_of(folder, base)
        placed = place is not None and any(entry.name.endswith(".npy") for entry in entries or ())
        if place is not None and placed:
            source = ranks.setdefault(rank, ScannedRank(folder, rank))
            source.places.setdefault(step, []).append(place)
        found = _findings(base, entries, placed)
        findings += islice(found, max(0, NAMED - len(findings)))
        left_out += sum(1 for _ in found)
    return ranks, findings + ([f"{folder}: {left_out} more such findings"] if left_out else [])


def walk(folder: Path, without: frozenset[str] = frozenset()) -> Iterator[tuple[str, list[os.DirEntry[str]] | None]]:
    """Every folder from one on, with its entries in order; None where it is a link or cannot be read.

    Args:
        folder: The folder.
        without: Names in it that are left out.
    """
    waiting = [str(folder)]
    while waiting:
        base = waiting.pop()
        try:
            if os.path.islink(base):
                raise OSError(f"{base} is a link")
            with os.scandir(base) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            if without and base == str(folder):
                entries = [entry for entry in entries if entry.name not in without]
        except FileNotFoundError:
            continue
        except OSError:
            yield base, None
            continue
        yield base, entries
        waiting += [entry.path for entry in reversed(entries) if entry.is_dir(follow_symlinks=False)]


def _findings(base: str, entries: list[os.DirEntry[str]] | None, placed: bool) -> Iterator[str]:
    if entries is None:
        yield f"{shown(Path(base))}: cannot be read, or is a link, which is not followed"
        return
    stems = {entry.name[:-4] for entry in entries if entry.name.endswith(".npy")}
    heads = {stem[:end] for stem in stems for end in range(len(stem)) if stem[end] == "."}
    for entry in entries:
        if entry.is_symlink():
            yield f"{shown(Path(entry.path))}: a link is not followed"
        elif not is_text(entry.name):
            yield f"{shown(Path(entry.path))}: its name is not UTF-8"
        elif entry.is_dir(follow_symlinks=False):
            continue
        elif entry.name.endswith(".npy"):
            if not placed:
                yield f"{entry.path}: not in a step and rank folder"
        elif not entry.name.endswith(".json"):
            yield f"{entry.path}: not a record"
        elif entry.name[:-5] not in stems and entry.name[:-5] not in heads:
            yield f"{entry.path}: its values are missing"


def _place_of(folder: Path, base: str) -> tuple[_Place | None, int, int]:
    """The place that a folder is, its rank and its step; None when it is none."""
    relative = Path(os.path.relpath(base, folder)).as_posix()
    parts = relative.split("/")
    micro = _MICRO.fullmatch(parts[-1])
    match = [*parts[1:], ""] if not micro else [*parts[1:-1], ""]
    if len(match) != 4:
        return None, 0, 0
    step, rank = _STEP.fullmatch(match[1]), _RANK.fullmatch(match[2])
    try:
        layout.check_tag(match[0])
    except RecordError:
        return None, 0, 0
    if step is None or rank is None:
        return None, 0, 0
    place = _Place(relative, match[0], int(micro.group(1)) if micro else 0)
    return place, int(rank.group(1)), int(step.group(1))


def is_text(name: str) -> bool:
    """Whether a file's name is UTF-8, as the reports are."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def shown(path: Path) -> str:
    """A path as text that any report can hold, whatever bytes its name has."""
    return str(path).encode(errors="backslashreplace").decode()
