"""What a process that measures needs: to leave its result, and to know its memory. Standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def leave_result(path: str, document: dict[str, Any]) -> None:
    """What a child calls at its end.

    Args:
        path: Its last argument.
        document: Strict JSON.
    """
    Path(path).write_text(json.dumps(document, allow_nan=False), encoding="utf-8")


def peak_memory_mb() -> float:
    """Most memory that this process and its children ever had resident, in MB (1,000,000 bytes).

    On Linux the process's own part is read from ``/proc``: the ``ru_maxrss`` of a new program starts from that of
    whoever started it.
    """
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    status = Path("/proc/self/status")
    if status.is_file():
        lines = dict(line.split(":", 1) for line in status.read_text(encoding="utf-8").splitlines() if ":" in line)
        own = int(lines["VmHWM"].split()[0]) * 1024
    largest_child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    return round((own + largest_child) / 1e6, 1)
