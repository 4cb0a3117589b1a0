"""``python -m probe.bench.digest_comparison A B RECORDS RESULT``: our comparison by digest, its time and its memory."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from probe.bench.child import leave_result, peak_memory_mb
from probe.compare import compare_key_data
from probe.errors import InternalError
from probe.store.reader import read_dump


def _compare(a: Path, b: Path, total: int) -> dict[str, Any]:
    start = time.perf_counter()
    comparison = compare_key_data(read_dump(a), read_dump(b))
    seconds = time.perf_counter() - start
    if comparison.verdict != "identical" or comparison.compared != total:
        raise InternalError(f"equal dumps of {total} records: {comparison.verdict}, {comparison.compared} compared")
    loaded = [name for name in ("torch", "pandas") if name in sys.modules]
    if loaded:
        raise InternalError(f"comparing digests has loaded {loaded[0]}")
    return {"seconds": seconds, "peak_memory_mb": peak_memory_mb()}


if __name__ == "__main__":
    leave_result(sys.argv[4], _compare(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
