"""``bytes``: comparing two folders of equal values by their bytes, against SingleComparator and against plain reading.

Every contender runs in a fresh process, over files that are in the page cache, since they were just written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from probe.bench.processes import run_child
from probe.bench.rounds import described, ratio, run_rounds
from probe.bench.sizes import BytesSize
from probe.store.layers import msprobe_missing
from probe.types import TAGS

OURS, SINGLE_COMPARATOR, PLAIN = "ours", "single_comparator", "plain_reading"


def measure_bytes(size: BytesSize, scratch: Path) -> dict[str, Any]:
    """Runs the benchmark.

    Args:
        size: How many files of which size.
        scratch: An empty folder.

    Returns:
        ``contenders`` with seconds, ``times_as_fast_as_single_comparator`` (None without msprobe) and
        ``times_as_fast_as_plain_reading``, and our speed in GB of both folders a second.

    Raises:
        InconclusiveError: A process that measures failed.
    """
    a, b = scratch / "a", scratch / "b"
    write_single_save_tree(a, size)
    shutil.copytree(a, b)

    def contender(name: str) -> Callable[[], float]:
        def run() -> float:
            return float(run_child("probe.bench.byte_contenders", [name, str(a), str(b)], scratch)["seconds"])

        return run

    names = [OURS, PLAIN] if msprobe_missing() else [OURS, SINGLE_COMPARATOR, PLAIN]
    contenders = {name: contender(name) for name in names}
    run_rounds({PLAIN: contenders[PLAIN]}, rounds=1)  # all files are in the page cache from here on
    seconds = run_rounds(contenders, size.rounds)
    found = described(seconds)
    return {
        "size": size.to_dict(),
        "contenders": found,
        "times_as_fast_as_single_comparator": ratio(seconds, SINGLE_COMPARATOR, OURS),
        "times_as_fast_as_plain_reading": ratio(seconds, PLAIN, OURS),
        "gigabytes_per_second": round(2 * size.files * size.file_bytes / found[OURS]["median_seconds"] / 1e9, 4),
    }


def write_single_save_tree(folder: Path, size: BytesSize) -> None:
    """Writes key data as SingleSave lays it out: ``data/<tag>/step{n}/rank{r}/micro_step{m}/<tag>.npy``, ``.json``.

    The values are float32 and differ from file to file.
    """
    source = np.random.default_rng(1)
    tags = TAGS[:10]
    for number in range(size.files):
        rest, tag = divmod(number, len(tags))
        rest, micro_step = divmod(rest, 3)
        step, rank = divmod(rest, 4)
        place = folder / "data" / tags[tag] / f"step{step}" / f"rank{rank}" / f"micro_step{micro_step}"
        place.mkdir(parents=True)
        values = source.standard_normal(size.file_bytes // 4, dtype=np.float32)
        np.save(place / f"{tags[tag]}.npy", values)
        numbers = {"max": values.max(), "min": values.min(), "mean": values.mean(), "norm": np.linalg.norm(values)}
        described_values = {**{name: float(number) for name, number in numbers.items()}, "shape": list(values.shape)}
        (place / f"{tags[tag]}.json").write_text(json.dumps({"data": described_values}, indent=4), encoding="utf-8")
