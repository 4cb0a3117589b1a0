"""What ``Probe.save`` hands on of one value: to the index, and to the trace."""

from __future__ import annotations

from typing import Any

from probe.collect.values import Snapshot
from probe.store.digest import digest
from probe.store.writer import DumpWriter

MOST_ROWS = 4096
"""Rows of saved data that are hashed one by one at most."""


class Saved:
    """A value that was saved: its digest, which the writing thread works out once for the index and the trace.

    Args:
        shot: Its bytes.
    """

    __slots__ = ("_digest", "_rows", "dtype", "shape")

    def __init__(self, shot: Snapshot) -> None:
        self.dtype = shot.dtype
        self.shape = shot.shape
        self._digest = ""
        self._rows: list[str] | None = None

    def take(self, shot: Snapshot) -> str:
        """Works the digests out, in the writing thread. Returns that of the whole."""
        self._digest = shot.digest
        self._rows = row_digests(shot.dtype, shot.shape, shot.data, MOST_ROWS)
        return self._digest

    def text(self) -> str:
        """The digest."""
        return self._digest

    @property
    def rows(self) -> list[str] | None:
        """The rows' digests."""
        return self._rows


def write(
    writer: DumpWriter, place: tuple[str, int, int, int, str, str | None] | None, shot: Snapshot, saved: Saved | None
) -> None:
    """Works the digests of a value out, and writes its record; called in the writing thread.

    Args:
        writer: The dump's.
        place: Tag, step, rank, micro-step, path and stage; None where key data is not recorded.
        shot: The value.
        saved: What the trace gets of it; None without a trace.
    """
    value = shot.digest if saved is None else saved.take(shot)
    if place is not None:
        writer.add(*place, shot.numbers, shot.dtype, shot.shape, value, shot.masked)


def row_digests(dtype: str, shape: tuple[int, ...], data: Any, most: int = MOST_ROWS) -> list[str] | None:
    """The digest of each row of an array.

    Args:
        dtype: Name of its dtype.
        shape: Its shape; the first axis is that of the rows.
        data: Its bytes; uint8, one axis.
        most: Rows that are hashed at most.

    Returns:
        One digest for each row; None where it has no rows, or too many.
    """
    if not shape or not 0 < shape[0] <= most:
        return None
    size = data.nbytes // shape[0]
    return [digest(dtype, shape[1:], data.data[row * size : (row + 1) * size]) for row in range(shape[0])]
