"""``firstdiff doctor``: what this machine has, and what is missing for a check."""

from __future__ import annotations

import platform
import sys
from importlib import metadata
from typing import Any

NEEDED = ("torch", "numpy", "transformers", "prefect", "pydantic", "pyyaml", "xxhash", "pandas", "openpyxl", "jinja2")


def examine() -> dict[str, Any]:
    """Versions, devices and determinism settings of this interpreter, and what is missing."""
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
        "determinism": None,
    }
    if found["torch"] is not None:
        from probe.collect import environment

        document["devices"] = environment.devices()
        document["determinism"] = environment.in_effect()
    return document


def summary(document: dict[str, Any]) -> list[str]:
    """The same for people, a line each."""
    lines = [f"Python {document['python']} on {document['platform']}"]
    lines += [f"{name} {version or 'not installed'}" for name, version in document["packages"].items()]
    for kind, names in (document["devices"] or {}).items():
        lines.append(f"{kind}: {', '.join(names) or 'none'}")
    for key, value in (document["determinism"] or {}).items():
        lines.append(f"{key}: {value}")
    return lines


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
