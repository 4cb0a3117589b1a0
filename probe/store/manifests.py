"""Reading the manifests of a dump folder: one of a run of one process, or one a rank, which are merged.

A merged manifest is complete only when every rank of the world is there and complete, and all say the same of the run.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.errors import DumpError
from probe.language import join, recall, tell
from probe.store import layout

_NAMED_RANKS = 20
"""Most missing ranks that are named; the rest is counted."""
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a run says of its dump.

    Example:
        >>> Manifest("xxh3_128", [0], True, 2).problems
        []
    """

    digest: str
    """Name of the digests' algorithm."""
    digests: dict[int, dict[str, str]] = field(default_factory=dict, kw_only=True)
    """Of each rank, the algorithm for the tags that have another."""
    ranks: list[int]
    """Ranks that have an index."""
    complete: bool
    steps_finished: int
    problems: list[str] = field(default_factory=list)
    """What went wrong with the run, one sentence each."""
    records: dict[str, Any] = field(default_factory=dict)
    """Lines in the index of each rank."""
    index_digests: dict[str, Any] = field(default_factory=dict)
    """Digest of the index of each rank."""
    traces: dict[str, Any] = field(default_factory=dict)
    """What is said of the trace of each rank: ``digest`` of the file, ``events`` in it."""
    values: int = 0
    """Value files of all ranks."""
    value_bytes: int = 0


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a dump folder; None where there is none.

    Raises:
        DumpError: One is damaged or of a later format, or they cannot be of one run.
    """
    try:
        paths = layout.manifests(folder)
    except OSError as error:
        raise DumpError(f"{folder}: cannot be read ({error.strerror})") from error
    if not paths:
        return None
    if None in paths:
        if len(paths) > 1:
            other = next(path.name for rank, path in paths.items() if rank is not None)
            raise DumpError(f"{folder}: holds {layout.MANIFEST} and {other}: the dumps of two runs")
        return _manifest_of_one(folder, _read(paths[None]))
    return _merged(folder, {rank: _read_of_rank(path, rank) for rank, path in sorted(_by_rank(paths).items())})


def files_written(folder: Path) -> set[str]:
    """The files that say what was run, by the manifests that can be read: they should be there.

    Args:
        folder: A dump folder.

    Raises:
        OSError: It cannot be listed.
    """
    names: set[str] = set()
    for path in layout.manifests(folder).values():
        with contextlib.suppress(DumpError):  # whoever reads the dump says so
            names.update(_read(path)["files"])
    return names


def _by_rank(paths: dict[int | None, Path]) -> dict[int, Path]:
    return {rank: path for rank, path in paths.items() if rank is not None}


def _manifest_of_one(folder: Path, raw: dict[str, Any]) -> Manifest:
    problems: list[str] = [tell("{folder}: {why}", folder=folder, why=recall(str(error))) for error in raw["errors"]]
    if not raw["complete"] and not problems:
        problems.append(
            tell(
                "{folder}: the run did not finish; {steps} steps are whole", folder=folder, steps=raw["steps_finished"]
            )
        )
    return Manifest(
        digest=raw["digest"],
        digests=dict.fromkeys(raw["ranks"], raw["digests"]),
        ranks=raw["ranks"],
        complete=raw["complete"],
        steps_finished=raw["steps_finished"],
        problems=problems,
        records=raw["records"],
        index_digests=raw["index_digests"],
        traces=raw["traces"],
        values=raw["values"],
        value_bytes=raw["value_bytes"],
    )


def _merged(folder: Path, by_rank: dict[int, dict[str, Any]]) -> Manifest:
    for key, what in (
        ("world_size", "numbers of processes"),
        ("launch", "launches"),
        ("run", "runs"),
        ("digest", "digest algorithms"),
    ):
        said = {raw[key]: rank for rank, raw in by_rank.items()}
        if len(said) > 1:
            (one, rank), (two, other) = list(said.items())[:2]
            raise DumpError(f"{folder}: ranks {rank} and {other} are of two {what}: {one} and {two}")
    size = next(iter(by_rank.values()))["world_size"]
    problems = _problems(folder, by_rank, size)
    one_by_one = list(by_rank.values())
    finished = [raw["steps_finished"] for raw in one_by_one]
    return Manifest(
        digest=one_by_one[0]["digest"],
        digests={rank: raw["digests"] for raw in one_by_one for rank in raw["ranks"]},
        ranks=[rank for raw in one_by_one for rank in raw["ranks"]],
        complete=not problems,
        steps_finished=min(finished) if len(by_rank) == size else 0,
        problems=problems,
        records={key: value for raw in one_by_one for key, value in raw["records"].items()},
        index_digests={key: value for raw in one_by_one for key, value in raw["index_digests"].items()},
        traces={key: value for raw in one_by_one for key, value in raw["traces"].items()},
        values=sum(raw["values"] for raw in one_by_one),
        value_bytes=sum(raw["value_bytes"] for raw in one_by_one),
    )


def _problems(folder: Path, by_rank: dict[int, dict[str, Any]], size: int) -> list[str]:
    problems: list[str] = []
    missing = [rank for rank in range(size) if rank not in by_rank][: _NAMED_RANKS + 1]
    if missing:
        ranks = join(", ", map(str, missing[:_NAMED_RANKS]))
        ranks += tell(" and more") if len(missing) > _NAMED_RANKS else ""
        problem = tell(
            "{folder}: of {size} processes, rank {ranks} did not record; every process opens a Probe",
            folder=folder, size=size, ranks=ranks,
        )  # fmt: skip
        problems.append(problem)
    said: dict[str, list[int]] = {}
    for rank, raw in by_rank.items():
        reasons = raw["errors"]
        if not raw["complete"] and not reasons:
            reasons = [tell("the run did not finish; {steps} steps are whole", steps=raw["steps_finished"])]
        for reason in reasons:
            said.setdefault(recall(str(reason)), []).append(rank)
    for reason, ranks_of in said.items():
        everywhere = len(ranks_of) == size
        problems.append(
            tell("{folder}: {why}", folder=folder, why=reason)
            if everywhere
            else tell("{folder}: rank {ranks}: {why}", folder=folder, ranks=_listed(ranks_of), why=reason)
        )
    finished = {raw["steps_finished"]: rank for rank, raw in by_rank.items()}
    if len(finished) > 1 and not problems:
        few, many = min(finished), max(finished)
        problems.append(
            tell(
                "{folder}: rank {one} finished {few} steps, rank {other} {many}; the run is not whole",
                folder=folder,
                one=finished[few],
                few=few,
                other=finished[many],
                many=many,
            )
        )
    return problems


def _listed(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _NAMED_RANKS} more" if len(ranks) > _NAMED_RANKS else ""
    return ", ".join(map(str, ranks[:_NAMED_RANKS])) + more


def _read_of_rank(path: Path, rank: int) -> dict[str, Any]:
    raw = _read(path, {"rank": int, "world_size": int, "run": str})
    try:
        if isinstance(raw["world_size"], bool) or not 0 < raw["world_size"] <= _MOST_RANKS:
            raise ValueError(f"there are no {raw['world_size']} processes")
        if raw["rank"] != rank or isinstance(raw["rank"], bool):
            raise ValueError(f"it is of rank {raw['rank']}")
        if rank >= raw["world_size"]:
            raise ValueError(f"there is no rank {rank} among {raw['world_size']} processes")
        listed = {*raw["records"], *raw["index_digests"], *raw["traces"]}
        if not set(raw["ranks"]) <= {rank} or not listed <= {str(rank)}:
            raise ValueError("it lists another rank")
        if raw["launch"] is not None and not isinstance(raw["launch"], str):
            raise ValueError("a value has the wrong type")
    except (ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{path}: damaged ({error})") from error
    return raw


def _read(path: Path, further: dict[str, type] | None = None) -> dict[str, Any]:
    try:
        # traces: where there are any; digests: where a tag has another than the rest; files: not in earlier recordings
        manifest = {"traces": {}, "digests": {}, "files": [], **layout.read_json(path)}
        if manifest["format"] > layout.FORMAT:
            raise DumpError(f"{path}: format {manifest['format']} is newer than this Firstdiff reads")
        if manifest["format"] != layout.FORMAT:
            raise ValueError(f"there is no format {manifest['format']}")
        expected = {
            "ranks": list,
            "complete": bool,
            "steps_finished": int,
            "digest": str,
            "digests": dict,
            "errors": list,
            "records": dict,
            "index_digests": dict,
            "traces": dict,
            "values": int,
            "value_bytes": int,
            **(further or {}),
        }
        if not all(isinstance(manifest[key], kind) for key, kind in expected.items()):
            raise ValueError("a value has the wrong type")
        if not all(isinstance(name, str) and name for name in manifest["digests"].values()):
            raise ValueError("a digest's algorithm has no name")
        if not all(isinstance(rank, int) and rank >= 0 for rank in manifest["ranks"]):
            raise ValueError("a rank is not a number")
        if len(set(manifest["ranks"])) < len(manifest["ranks"]):
            raise ValueError("a rank is listed twice")
        if isinstance(manifest["steps_finished"], bool) or manifest["steps_finished"] < 0 or not manifest["digest"]:
            raise ValueError("a value has the wrong type")
        files = manifest["files"]
        if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
            raise ValueError("a value has the wrong type")
        if not all(layout.says_what_was_run(name) for name in files):
            raise ValueError("it lists a file that no recording writes")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DumpError(f"{path}: damaged ({error})") from error
    return dict(manifest)
