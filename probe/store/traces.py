"""The traces of a dump folder, as its manifest lists them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.errors import DumpError
from probe.language import tell
from probe.store import layout
from probe.store.digest import ALGORITHM
from probe.store.manifests import read_manifest
from probe.store.scan import NAMED, shown
from probe.store.trace_reader import TraceFile

_FILE = re.compile(r"rank(0|[1-9]\d{0,8})\.jsonl")


@dataclass(frozen=True)
class Traces:
    """The traces of a dump.

    Example:
        >>> Traces(Path("a/msprobe_dump")).ranks
        {}
    """

    folder: Path
    ranks: Mapping[int, TraceFile] = field(default_factory=dict)
    complete: bool = False
    """Whether the run ended as it should: what is absent from a rank's end on was not there."""
    digest_algorithm: str | None = None
    problems: list[str] = field(default_factory=list)
    """What cannot be read, one sentence each."""


def read_traces(folder: Path) -> Traces:
    """Finds the traces of a dump folder; does not read them yet.

    Raises:
        DumpError: The folder or its manifest cannot be read.
    """
    place = folder / layout.TRACE
    if place.is_symlink():
        raise DumpError(f"{place}: a link is not followed")
    manifest = read_manifest(folder)
    try:
        names = sorted(os.listdir(place)) if os.path.lexists(place) else []
    except OSError as error:
        raise DumpError(f"{place}: cannot be read ({error.strerror})") from error
    if manifest is None:
        damaged = tell("{folder}: has traces but no {file}; the dump is damaged", folder=folder, file=layout.MANIFEST)
        return Traces(folder, problems=[damaged] if names else [])
    ranks: dict[int, TraceFile] = {}
    problems: list[str] = []
    for key, said in manifest.traces.items():
        path = place / f"rank{key}.jsonl"
        try:
            ranks[int(key)] = _claimed(path, key, said, manifest.complete and manifest.digest == ALGORITHM)
        except (ValueError, KeyError, TypeError) as error:
            raise DumpError(f"{folder}: the manifest is damaged (traces: {error})") from error
        if manifest.complete and manifest.digest != ALGORITHM:
            problems.append(
                tell(
                    "{path}: its digest is {digest}, which this machine cannot check", path=path, digest=manifest.digest
                )
            )
    for name in names if not manifest.complete else ():  # a run that was killed may not have listed its own
        if (match := _FILE.fullmatch(name)) and int(match.group(1)) not in ranks:
            ranks[int(match.group(1))] = TraceFile(place / name, int(match.group(1)))
    listed = {file.path.name for file in ranks.values()}
    problems += [
        tell("{path}: the manifest does not list it", path=shown(place / name)) for name in names if name not in listed
    ]
    if ranks:
        silent = [rank for rank in manifest.ranks if rank not in ranks]
        problems += [tell("{folder}: rank {rank} recorded no trace", folder=folder, rank=rank) for rank in silent]
    more = len(problems) - NAMED
    problems = [
        *problems[:NAMED],
        *([tell("{folder}: {more} more such findings", folder=folder, more=more)] if more > 0 else []),
    ]
    return Traces(folder, dict(sorted(ranks.items())), manifest.complete, manifest.digest, problems)


def _claimed(path: Path, key: str, said: Any, whole: bool) -> TraceFile:
    if not (key.isascii() and key.isdigit() and len(key) < 10 and str(int(key)) == key):
        raise ValueError(f"{key!r} is no rank")
    if type(said) is not dict:
        raise ValueError("a value has the wrong type")
    algorithms = said["algorithms"] if "algorithms" in said else []
    if type(algorithms) is not list or not all(type(name) is str for name in algorithms):
        raise ValueError("a value has the wrong type")
    used = tuple(sorted(algorithms))
    if not whole:
        return TraceFile(path, int(key), None, None, used)
    if type(said["digest"]) is not str or type(said["events"]) is not int:
        raise ValueError("a value has the wrong type")
    return TraceFile(path, int(key), said["digest"], said["events"], used)
