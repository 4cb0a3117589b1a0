"""``firstdiff doctor``: what this machine has and lacks, and what is in effect in the workers of a profile."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from probe.errors import FirstdiffError

NEEDED = ("torch", "numpy", "transformers", "prefect", "pydantic", "pyyaml", "xxhash", "pandas", "openpyxl", "jinja2")
_LATER = (
    "what the script itself sets comes later: {settings} are not judged here; the notes of a check say what was in"
    " effect after the first training step"
)
_NEVER = (
    "this is the interpreter that trains, asked alone: {settings} are not judged here, and what is in effect in the"
    " training's workers no check records"
)


def examine() -> dict[str, Any]:
    """Versions, devices, limits and determinism settings of this interpreter, and what is missing."""
    found = {name: _version(name) for name in (*NEEDED, "mindstudio-probe", "torch-npu")}
    missing = [name for name in NEEDED if found[name] is None]
    if sys.platform == "linux" and found["mindstudio-probe"] is None:
        missing.append("mindstudio-probe")
    document: dict[str, Any] = {
        "format": 1,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": found,
        "missing": missing,
        "devices": None,
        "processor": None,
        "limits": None,
        "build": None,
        "determinism": None,
    }
    if found["torch"] is not None:
        from probe.collect import environment

        said = environment.describe({})
        document["devices"], document["limits"] = said["devices"], said["limits"]
        document["processor"] = {name: said["platform"][name] for name in ("cpu_model", "cpu_capability")}
        document["build"] = said["build"]
        document["determinism"] = said["determinism"]["in_effect"]
    return document


def examine_profile(name: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What is in effect in every worker process of a profile, against what it asks for.

    Args:
        name: A path, or the name of a profile.
        overrides: ``dotted.key=value`` entries.

    Returns:
        ``workers``, the environment of each by its rank as text, None where they cannot be asked; ``problem``, why not;
        ``not_in_effect``, what is asked for and a worker does not have; ``unlike``, in what workers differ; ``notes``.

    Raises:
        UsageError: There is no such profile, or a key is wrong.
    """
    from probe.compare import not_in_effect, read_environments, unlike_workers
    from probe.compare.workers import OF_A_SCRIPT
    from probe.config import load_profile
    from probe.launch import examine_workers

    profile = load_profile(name, list(overrides))
    own = profile.trainer.kind == "integrated"
    found: dict[str, Any] = {"profile": name, "workers": None, "problem": None, "not_in_effect": [], "unlike": []}
    later = _LATER if profile.trainer.workers_are_recorded else _NEVER
    notes = [] if own else [later.format(settings=", ".join(f"determinism.{key}" for key in OF_A_SCRIPT))]
    if profile.trainer.nnodes > 1:
        notes.append("of several hosts, the workers of this one are asked")
    with tempfile.TemporaryDirectory(prefix="firstdiff-doctor-") as folder:
        try:
            workers = read_environments(examine_workers(profile, Path(folder, "check")))
        except FirstdiffError as error:
            return {**found, "problem": str(error), "notes": notes}
    return {
        **found,
        "workers": {str(rank): said for rank, said in sorted(workers.items())},
        "not_in_effect": not_in_effect(workers, left_to_script=not own),
        "unlike": unlike_workers(workers),
        "notes": notes,
    }


def is_well(document: dict[str, Any]) -> bool:
    """Whether nothing is missing, and a profile's workers have what it asks for, all of them the same."""
    workers = document.get("workers_of_profile")
    bad = workers is not None and (workers["problem"] or workers["not_in_effect"] or workers["unlike"])
    return not document["missing"] and not bad


def summary(document: dict[str, Any]) -> list[str]:
    """The same for people, a line each."""
    lines = [f"Python {document['python']} on {document['platform']}"]
    lines += [f"{name} {version or 'not installed'}" for name, version in document["packages"].items()]
    for kind, names in (document["devices"] or {}).items():
        lines.append(f"{kind}: {', '.join(names) or 'none'}")
    for section in ("processor", "limits", "determinism"):
        for key, value in (document[section] or {}).items():
            lines.append(f"{key}: {value}")
    return [*lines, *_lines_of_workers(document.get("workers_of_profile"))]


def last_line(document: dict[str, Any]) -> str:
    """What people see last."""
    if document["missing"]:
        return f"missing: {', '.join(document['missing'])}"
    workers = document.get("workers_of_profile")
    if workers is None:
        return "everything that is needed is here"
    if workers["problem"]:
        return str(workers["problem"])
    count = len(workers["workers"])
    said = f"{count} worker{'s' * (count != 1)} of {workers['profile']}"
    if is_well(document):
        return f"{said}: what the profile asks for is in effect in each"
    return f"{said}: {len(workers['not_in_effect'])} settings are not in effect, {len(workers['unlike'])} are not alike"


def _lines_of_workers(workers: dict[str, Any] | None) -> list[str]:
    if workers is None:
        return []
    told = [f"not in effect: {line}" for line in workers["not_in_effect"]]
    return [*told, *(f"not alike: {line}" for line in workers["unlike"]), *workers["notes"]]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
