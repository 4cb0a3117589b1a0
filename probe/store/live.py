"""How far a run that is still recording has come, from what it has written so far.

Only what was added is read, and only of one rank's index: watching slows no trainer.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from probe.store import layout

_MOST_BYTES = 1 << 23
"""Bytes of an index that are read at once; what is beyond is skipped but for its end."""
_LINES_LOOKED_AT = 400
_NOT_OURS = (OSError, ValueError, KeyError, TypeError, RecursionError)
"""What reading something raises that no recording of ours has, or that is not there yet."""
_RANK = re.compile(r"rank(\d+)\.jsonl")


@dataclass(frozen=True)
class Seen:
    """What a run has recorded.

    Example:
        >>> Seen().steps
        0
    """

    steps: int = 0
    """Training steps that it has finished; of several ranks, the one that is watched."""
    records: int = 0
    tags: dict[str, None] = field(default_factory=dict)
    """Its tags, the latest last."""


class LiveRun:
    """Watches a dump folder, which need not exist yet.

    Args:
        folder: The dump folder.

    Example:
        >>> LiveRun(Path("nowhere")).look().records
        0
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index: Path | None = None
        self._read = 0
        self._records = 0
        self._step = -1
        self._tags: dict[str, None] = {}

    def look(self) -> Seen:
        """How far the run is now."""
        try:
            self._read_on()
        except _NOT_OURS:
            self._index = None  # the next look may see more
        return Seen(max(self._step, self._finished()), self._records, dict(self._tags))

    def _read_on(self) -> None:
        if self._index is None:
            ranks = {}
            for name in os.listdir(self._folder / layout.INDEX):
                if match := _RANK.fullmatch(name):
                    ranks[int(match.group(1))] = name
            if not ranks:
                return
            self._index = self._folder / layout.INDEX / ranks[min(ranks)]
        with layout.open_plain(self._index) as file:
            size = os.fstat(file.fileno()).st_size
            self._read = max(self._read, size - _MOST_BYTES)
            file.seek(self._read)
            added = file.read(size - self._read)
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        self._records += whole.count(b"\n")
        for line in whole.splitlines()[-_LINES_LOOKED_AT:]:
            record = json.loads(line)
            tag, step = str(record["tag"]), int(record["step"])
            self._tags.pop(tag, None)
            self._tags[tag] = None
            self._step = max(self._step, step)  # a record of step n: n steps are behind it

    def _finished(self) -> int:
        """The steps that the manifest says are finished."""
        try:
            files = layout.manifests(self._folder)
            if not files:
                return 0
            content = layout.read_json(files[min(files, key=lambda rank: -1 if rank is None else rank)])
            return int(content["steps_finished"]) if isinstance(content, dict) else 0
        except _NOT_OURS:
            return 0
