"""What this process may use of its machine: its processor, and what a container or an affinity leaves of it."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

_CGROUP = Path("/sys/fs/cgroup")
_CPUINFO = Path("/proc/cpuinfo")
_UNLIMITED = 1 << 60
"""Bytes from which on a limit of cgroup v1 means none."""


def cpu_model(cpuinfo: Path = _CPUINFO) -> str | None:
    """The processor's name; None where the system does not tell.

    Args:
        cpuinfo: Where Linux tells it.
    """
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "CPU part", "Model Name"):
                return value.strip() or None
    return platform.processor() or None


def limits(cgroup: Path = _CGROUP) -> dict[str, Any]:
    """What this process may use.

    Args:
        cgroup: Where Linux mounts control groups: those of this process, inside a container.

    Returns:
        ``affinity``, the number of processors it may run on; ``cpus``, how many of them a container lets it use at a
        time, a fraction; ``memory_bytes``, the container's limit. None where there is no limit or nobody tells.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"affinity": affinity, "cpus": _cpus(cgroup), "memory_bytes": _memory(cgroup)}


def _cpus(cgroup: Path) -> float | None:
    quota, period = _quota(cgroup)
    return round(quota / period, 3) if quota and period and quota > 0 and period > 0 else None


def _quota(cgroup: Path) -> tuple[int | None, int | None]:
    words = _words(cgroup / "cpu.max")  # version 2
    if len(words) == 2:
        return _number(words[0]), _number(words[1])
    old = cgroup / "cpu"  # version 1
    return _number(*_words(old / "cpu.cfs_quota_us")), _number(*_words(old / "cpu.cfs_period_us"))


def _memory(cgroup: Path) -> int | None:
    found = _number(*_words(cgroup / "memory.max"))
    if found is None:
        found = _number(*_words(cgroup / "memory" / "memory.limit_in_bytes"))
    return None if found is None or found >= _UNLIMITED else found


def _words(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(encoding="ascii", errors="replace").split()
    return []


def _number(*words: str) -> int | None:
    return int(words[0]) if len(words) == 1 and words[0].lstrip("-").isdecimal() else None
