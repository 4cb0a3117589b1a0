"""What the runs of a check say of where they ran: their ``environment.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.store import layout


def environments(runs: Mapping[str, Path]) -> dict[str, dict[str, Any]]:
    """The content of each run's file; a run whose file is missing or damaged is left out.

    Args:
        runs: Dump folder of every run.
    """
    found: dict[str, dict[str, Any]] = {}
    for run, dump in runs.items():
        try:
            content = layout.read_json(dump / layout.ENVIRONMENT)
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            found[run] = content
    return found
