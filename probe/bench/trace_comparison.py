"""``python -m probe.bench.trace_comparison A B EVENTS RESULT``: comparing and locating, its time and its memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from probe.bench.child import leave_result, peak_memory_mb
from probe.compare import compare_traces
from probe.errors import InternalError
from probe.locate import locate_trace


def _locate(a: Path, b: Path, total: int) -> dict[str, Any]:
    start = time.perf_counter()
    comparison = compare_traces(a, b)
    answer = locate_trace(comparison)
    seconds = time.perf_counter() - start
    if not comparison.whole or comparison.compared != total or answer is None:
        raise InternalError(f"traces of {total} events: {comparison.compared} compared, {comparison.problems}")
    loaded = [name for name in ("torch", "pandas") if name in sys.modules]
    if loaded:
        raise InternalError(f"comparing traces has loaded {loaded[0]}")
    found = {"rank": list(answer.first.rank), "index": answer.index, "name": answer.first.name}
    return {"seconds": seconds, "peak_memory_mb": peak_memory_mb(), "found": found}


if __name__ == "__main__":
    leave_result(sys.argv[4], _locate(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
