"""Notes in a dump's manifests: what people should know beside a verdict, and that keeps no run from being whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from probe.store import layout
from probe.store.writer import write_json

_KEY = "notes"


def keep_notes(folder: Path, notes: Sequence[str]) -> None:
    """Writes notes into every manifest of a dump.

    Args:
        folder: The dump folder; nothing happens where it has no manifest that can be read.
        notes: One sentence each.
    """
    for path in _manifests(folder) if notes else []:
        try:
            manifest = json.loads(path.read_bytes())
            write_json(path, {**manifest, _KEY: list(notes)})
        except (OSError, ValueError, TypeError):
            continue  # whoever reads the dump says so


def notes_of(folder: Path) -> list[str]:
    """The notes in the manifests of a dump, each once.

    Args:
        folder: The dump folder.
    """
    found: dict[str, None] = {}
    for path in _manifests(folder):
        try:
            said = json.loads(path.read_bytes()).get(_KEY, [])
        except (OSError, ValueError, AttributeError):
            continue
        found.update((text, None) for text in said if isinstance(text, str))
    return list(found)


def _manifests(folder: Path) -> list[Path]:
    try:
        return sorted(layout.manifests(folder).values())
    except OSError:
        return []
