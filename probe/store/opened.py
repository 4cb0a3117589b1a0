"""Whatever somebody names to be compared, opened: where its records and its layers can be read."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from probe.store import layout
from probe.store.packing import unpacked
from probe.store.reader import Dump, holds_records, read_dump
from probe.store.rollouts import RolloutFile, convert_rollouts, find_rollouts
from probe.store.windows import window_folders


@dataclass(frozen=True)
class Source:
    """One side of a comparison.

    Example:
        >>> Source(Path("dump"), Path("dump")).to_show
        PosixPath('dump')
    """

    records: Path
    """The dump folder with its records."""
    layers: Path
    """The folder with msprobe's layer dumps."""
    rollouts: list[RolloutFile] = field(default_factory=list)
    """The samples that the records were made of."""
    notes: list[str] = field(default_factory=list)

    @property
    def to_show(self) -> Path:
        """Where a report reads values again: layers, where there are any."""
        return self.layers if self.rollouts and window_folders(self.layers) else self.records

    def read(self) -> Dump:
        """The records; none of what msprobe's PrecisionDebugger alone wrote, whatever part of it.

        Raises:
            DumpError: It is no dump, or cannot be read.
        """
        if not self.rollouts and not holds_records(self.records) and window_folders(self.records):
            return Dump(self.records, complete=True)
        return read_dump(self.records)


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """Opens a dump, a checkpoint, or verl's folders; what has to be unpacked or converted lives as long as this.

    Args:
        path: What somebody named; a link that is named is followed, none inside it is.

    Raises:
        DumpError: It is damaged.
    """
    path = path.resolve() if path.is_symlink() else path
    rollouts = [] if path.is_dir() and holds_records(path) else find_rollouts(path)
    if not rollouts:
        with unpacked(path) as read:
            yield Source(read, read)
        return
    with tempfile.TemporaryDirectory(prefix="firstdiff-", ignore_cleanup_errors=True) as scratch:
        records = Path(scratch, layout.DUMP)
        notes = convert_rollouts(rollouts, records)
        yield Source(records, path, rollouts, notes)
