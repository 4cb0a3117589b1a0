"""Writing a trace: ``trace/rank{r}.jsonl``, one event a line, in execution order.

A line is canonical JSON (sorted keys, no spaces, ASCII) without time, address, path or process, so that the traces of
two equal runs are equal byte for byte. Every event has these keys:

- ``i``: its position in the file, from 0
- ``step``, ``stage`` (null outside any), ``micro_step``
- ``kind``: one of ``KINDS``
- ``name``: a stage, a role, ``role.dotted.module`` (the root is just the role), ``role.dotted.parameter``, a random
  state, ``role:what`` of an optimizer, or a tag
- ``call``: number of this name's calls within the stage's entry, from 0; null where that does not apply
- ``items``: list of ``[path, dtype, shape, digest]``

and where they apply: ``module`` (the class), ``recomputed`` (true: gradient checkpointing runs the call again),
``note``, ``rows`` (of ``data``: path to the digests of the rows).

Additions to this: ``weights`` of a module (``note``: ``gathered``) are the whole weights that a sharded module sees;
``grad_output`` and ``grad_input`` have one event for each gradient as it arrives or is passed on, so that a call may
have several. The manifest's ``traces`` has, for each rank, the file's digest, the number of events, and the algorithms
of the digests in its items.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from probe.store import layout
from probe.store.digest import Hasher, hasher

KINDS = (
    "stage_start",
    "stage_end",
    "weights",
    "buffers",
    "rng",
    "forward_input",
    "forward_output",
    "grad_output",
    "grad_input",
    "param_grad",
    "optimizer",
    "data",
    "not_observed",
)
"""Kinds of event."""

Event = dict[str, Any]
"""An event without its position."""

_BUFFERED = 1 << 18
"""Bytes of lines that are written together."""
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


class _RankTrace:
    """The trace of one rank: its file, and what the manifest says of it.

    Args:
        path: The file; it is made.
        exclusive: Whether it must not exist.
    """

    def __init__(self, path: Path, exclusive: bool) -> None:
        self._file: IO[bytes] = path.open("xb" if exclusive else "wb", buffering=0)
        self._hasher: Hasher = hasher()
        self._lines: list[bytes] = []
        self._bytes = 0
        self._events = 0
        self._algorithms: set[str] = set()

    def append(self, event: Event, algorithms: Iterable[str]) -> None:
        event["i"] = self._events
        line = _encode(event).encode("ascii") + b"\n"
        self._events += 1
        self._algorithms.update(algorithms)
        self._lines.append(line)
        self._bytes += len(line)
        if self._bytes > _BUFFERED:
            self.flush()

    def flush(self) -> None:
        data = b"".join(self._lines)
        self._lines, self._bytes = [], 0
        self._hasher.update(data)
        rest = memoryview(data)
        while rest:  # a disk that fills up may take a part
            rest = rest[self._file.write(rest) :]

    def close(self) -> None:
        self._file.close()

    @property
    def described(self) -> dict[str, Any]:
        return {
            "digest": self._hasher.hexdigest(),
            "events": self._events,
            "algorithms": sorted(self._algorithms),
        }


class TraceWriter:
    """Writes the traces of one process. One thread at a time.

    Lines are written in large pieces, and all of them by the end of a step: what a killed run leaves ends somewhere,
    and no manifest vouches for it.

    Args:
        folder: The dump folder.
        exclusive: Whether a rank's file must not exist, since several processes write into the folder.
    """

    def __init__(self, folder: Path, exclusive: bool) -> None:
        self._folder = folder / layout.TRACE
        self._exclusive = exclusive
        self._ranks: dict[int, _RankTrace] = {}
        self._folder.mkdir(exist_ok=True)

    def append(self, rank: int, event: Event, algorithms: Iterable[str] = ()) -> None:
        """Adds an event.

        Args:
            rank: Whose trace it belongs to.
            event: All of its keys but ``i``, which is set.
            algorithms: Those of the digests in its items.

        Raises:
            OSError: The disk is full, or the rank's file exists.
        """
        if rank not in self._ranks:
            self._ranks[rank] = _RankTrace(self._folder / f"rank{rank}.jsonl", self._exclusive)
        self._ranks[rank].append(event, algorithms)

    def flush(self) -> None:
        """Writes what waits.

        Raises:
            OSError: The disk is full.
        """
        for trace in self._ranks.values():
            trace.flush()

    def close(self) -> None:
        """Closes the files; what waits is lost, unless it was flushed."""
        for trace in self._ranks.values():
            trace.close()

    @property
    def described(self) -> dict[str, dict[str, Any]]:
        """What the manifest says of each rank's trace, as far as it is written."""
        return {str(rank): trace.described for rank, trace in sorted(self._ranks.items())}
