"""``digests``: comparing two dumps that hold no values, by the digests in their indexes.

They are compared in a fresh process, whose memory is then the comparison's own.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

from probe.bench.processes import run_child
from probe.bench.rounds import described, run_rounds
from probe.bench.sizes import DigestsSize
from probe.store import layout
from probe.store.writer import DumpWriter
from probe.types import TAGS

OURS = "ours"


def measure_digests(size: DigestsSize, scratch: Path) -> dict[str, Any]:
    """Runs the benchmark.

    Args:
        size: How many ranks and records.
        scratch: An empty folder.

    Returns:
        ``contenders`` with seconds; ``records_per_second``, counting the records of one dump, reading both included;
        and ``peak_memory_mb``, the largest of all rounds, in MB of 1,000,000 bytes.

    Raises:
        InconclusiveError: A process that measures failed.
    """
    a, b = scratch / "a", scratch / "b"
    write_digests(a, size)
    shutil.copytree(a, b)
    memory: list[float] = []

    def compare() -> float:
        measured = run_child("probe.bench.digest_comparison", [str(a), str(b), str(size.total)], scratch)
        memory.append(measured["peak_memory_mb"])
        return float(measured["seconds"])

    found = described(run_rounds({OURS: compare}, size.rounds))
    return {
        "size": size.to_dict(),
        "contenders": found,
        "records_per_second": round(size.total / found[OURS]["median_seconds"]),
        "peak_memory_mb": max(memory),
    }


def write_digests(folder: Path, size: DigestsSize) -> None:
    """Writes a whole dump of digest-only records, spread over steps, ranks and tags."""
    layout.claim(folder)
    writer = DumpWriter(folder, "bench", keep_values=False)
    source = random.Random(1)
    for step in range(size.steps):
        first, end = (size.records * number // size.steps for number in (step, step + 1))
        for rank in range(size.ranks):
            for number in range(end - first):
                writer.add(
                    tag=TAGS[number * len(TAGS) // (end - first)],
                    step=step,
                    rank=rank,
                    micro_step=0,
                    path=f"model.layers.{number}.weight",
                    stage=None,
                    values=None,
                    dtype="float32",
                    shape=(512, 512),
                    digest=f"{source.getrandbits(128):032x}",
                )
        writer.finish_step(step)
    writer.close(complete=True)
