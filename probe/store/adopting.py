"""Making a dump of ours of what msprobe's SingleSave and PrecisionDebugger left: an index with digests, and a manifest.

Nothing of msprobe's is changed or moved. What is there gets an index as our own recording writes it, so that it is
compared, packed and pruned as that is; a layer dump gets the mark of a window that was closed. SingleSave itself says
nowhere whether a run ended, nor how many ranks and steps there should be: whoever started the run knows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import DumpError
from probe.store import layout
from probe.store.digest import ALGORITHM, digest, hasher
from probe.store.index import index_line
from probe.store.scan import NAMED, ScannedRank, scan
from probe.store.values import ValueFiles
from probe.store.windows import DUMP_FILE, find_windows
from probe.store.writer import write_json
from probe.types import Record


def adopt(folder: Path, run: str, *, steps: int | None, ranks: int | None, complete: bool) -> bool:
    """Writes an index and a manifest for key data that SingleSave left.

    Args:
        folder: The dump folder.
        run: Name of the run.
        steps: Training steps that there should be; None where nobody knows.
        ranks: Processes that should have saved something; None where nobody knows.
        complete: Whether the trainer ended as it should.

    Returns:
        Whether there was any key data, or any layers; else nothing is written.
    """
    found, problems = scan(folder)
    try:
        windows = find_windows(folder)
    except DumpError as error:
        windows, problems = [], [*problems, str(error)]
    if not found and not windows:
        return False
    problems += _gaps(found, steps, ranks)
    (folder / layout.INDEX).mkdir(exist_ok=True)
    counts: dict[str, int] = {}
    digests: dict[str, str] = {}
    values = size = 0
    for rank, source in sorted(found.items()):
        taken = hasher()
        counts[str(rank)] = 0
        with (folder / layout.INDEX / f"rank{rank}.jsonl").open("wb") as file:
            try:
                for record, length in _with_digests(folder, source):
                    line = index_line(record)
                    file.write(line)
                    taken.update(line)
                    counts[str(rank)] += 1
                    values, size = values + 1, size + length
            except DumpError as error:
                problems.append(str(error))
        digests[str(rank)] = taken.hexdigest()
    if complete and not problems:
        for number, window in enumerate(windows):
            if (window.folder / DUMP_FILE).is_file() and not window.ours:
                write_json(window.folder / layout.WINDOW, {"role": window.role, "order": number})
    manifest: dict[str, Any] = {
        "format": layout.FORMAT,
        "digest": ALGORITHM,
        "run": run,
        "ranks": sorted(found),
        "records": counts,
        "index_digests": digests,
        "values": values,
        "value_bytes": size,
        "files": [layout.CONFIGURATIONS] if (folder / layout.CONFIGURATIONS).is_file() else [],
        "steps_finished": _whole_steps(found),
        "complete": complete and not problems,
        "errors": problems[:NAMED],
    }
    write_json(folder / layout.MANIFEST, manifest)
    return True


def _whole_steps(found: dict[int, ScannedRank]) -> int:
    """Steps of which every rank has something."""
    return min(((source.last_step or 0) + 1 for source in found.values()), default=0)


def _gaps(found: dict[int, ScannedRank], steps: int | None, ranks: int | None) -> list[str]:
    """Ranks and steps that should be there and are not."""
    said = []
    lacking = [rank for rank in range(ranks or 0) if rank not in found]
    if lacking:
        named = ", ".join(map(str, lacking[:NAMED]))
        said.append(f"of {ranks} processes, rank {named} saved no key data")
    for rank, source in sorted(found.items()):
        expected = range(max(steps or 0, (source.last_step or 0) + 1))
        if gone := [step for step in expected if step not in source.places]:
            said.append(f"rank {rank} saved nothing in step {', '.join(map(str, gone[:NAMED]))}")
    return said[:NAMED]


def _with_digests(folder: Path, source: ScannedRank) -> Iterator[tuple[Record, int]]:
    """The records of a rank, step by step, as our index lists them; each with the size of its file.

    Raises:
        DumpError: A value file cannot be read.
    """
    files, cursor = ValueFiles(folder), source.cursor()
    while (step := cursor.next_step) is not None:
        for record in cursor.take(step).records:
            array = files.array(record)
            plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            kind = array.dtype.name
            value = digest(kind, array.shape, plain.data)
            fields = {name: getattr(record, name) for name in Record.__dataclass_fields__}
            known = {"dtype": kind, "shape": array.shape, "digest": value}
            length = 0
            with contextlib.suppress(OSError):
                length = (folder / str(record.file)).stat().st_size
            yield Record(**{**fields, **known}), length
