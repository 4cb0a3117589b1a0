"""``python -m probe.bench.byte_contenders CONTENDER A B RESULT``: one contender of ``bytes``, timed without imports."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probe.bench.byte_files import OURS, PLAIN, SINGLE_COMPARATOR
from probe.bench.child import leave_result
from probe.errors import InternalError


def ours(a: Path, b: Path) -> float:
    """Seconds that our comparison takes, reading what the folders hold included.

    Raises:
        InternalError: It does not find the two folders identical.
    """
    from probe.compare import compare_key_data
    from probe.store.reader import read_dump

    start = time.perf_counter()
    verdict = compare_key_data(read_dump(a), read_dump(b)).verdict
    seconds = time.perf_counter() - start
    if verdict != "identical":
        raise InternalError(f"the comparison of equal folders gave {verdict}")
    return seconds


def plain_reading(a: Path, b: Path) -> float:
    """Seconds that it takes to read every ``.npy`` file of both folders whole and compare the two as bytes.

    Raises:
        InternalError: Two files differ.
    """
    start = time.perf_counter()
    for base, _, files in os.walk(a):
        other = os.path.join(b, os.path.relpath(base, a))
        for name in files:
            if not name.endswith(".npy"):
                continue
            with open(os.path.join(base, name), "rb") as one, open(os.path.join(other, name), "rb") as two:
                if one.read() != two.read():
                    raise InternalError(f"{base}/{name} differs in the two folders")
    return time.perf_counter() - start


def single_comparator(a: Path, b: Path) -> float:
    """Seconds that msprobe's SingleComparator takes, with a process for each processor; its output is thrown away."""
    from msprobe.core import SingleComparator

    output = a.parent / "tables"
    with _silence():
        start = time.perf_counter()
        SingleComparator.compare(str(a), str(b), str(output), num_processes=os.cpu_count() or 1)
        seconds = time.perf_counter() - start
    made = len(list(output.glob("*.xlsx")))
    shutil.rmtree(output)
    if not made:
        raise InternalError("SingleComparator made no table")
    return seconds


@contextmanager
def _silence() -> Iterator[None]:
    """Throws standard output and standard error away, also what child processes write there."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = {stream: os.dup(stream) for stream in (1, 2)}
    for stream in kept:
        os.dup2(nowhere, stream)
    try:
        yield
    finally:
        for stream, before in kept.items():
            os.dup2(before, stream)


if __name__ == "__main__":
    run = {OURS: ours, SINGLE_COMPARATOR: single_comparator, PLAIN: plain_reading}[sys.argv[1]]
    leave_result(sys.argv[4], {"seconds": run(Path(sys.argv[2]), Path(sys.argv[3]))})
