"""Processes that outlive the command that started them: noted in files, recognised, and ended with all they started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Noted:
    """A process, and when it started: another process may get its number later.

    Example:
        >>> Noted(os.getpid(), started(os.getpid())).lives
        True
    """

    pid: int
    start: str | None

    @property
    def lives(self) -> bool:
        """Whether this very process is there and has not ended."""
        return self.start is not None and started(self.pid) == self.start


def started(pid: int) -> str | None:
    """When a process started, as its system says it; None where there is none, or it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _started_by_ps(pid)
    return None if fields[0] == "Z" else fields[19]


def note(file: Path, pid: int) -> None:
    """Writes down a process."""
    file.write_text(json.dumps({"pid": pid, "start": started(pid)}), encoding="utf-8")


def noted(file: Path) -> Noted | None:
    """The process that a file notes; None where there is no such file, or it is damaged."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return Noted(int(content["pid"]), content["start"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def marked(mark: str) -> list[int]:
    """The processes whose environment holds ``NAME=value``, on Linux; none elsewhere. Never this process itself."""
    wanted, found = mark.encode(), []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in entry.read_bytes().split(b"\0") and int(entry.parent.name) != os.getpid():
                found.append(int(entry.parent.name))
        except OSError:
            continue  # it ended, or is another user's
    return found


def values_of(name: str) -> set[str] | None:
    """The values of a variable in the environments of all processes of this user; None where nothing shows them."""
    if not Path("/proc/self/environ").exists():
        return None
    beginning, found = f"{name}=".encode(), set[str]()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = entry.read_bytes().split(b"\0")
        except OSError:
            continue  # it ended, or is another user's
        found |= {each[len(beginning) :].decode(errors="replace") for each in variables if each.startswith(beginning)}
    return found


def parent(pid: int) -> int | None:
    """The parent of a process, on Linux; None elsewhere, or where there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(text.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def children(pid: int) -> list[int]:
    """The processes that a process started and that are still its children, on Linux; none elsewhere."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in file.read_text(encoding="ascii").split()]
        except OSError:
            continue
    return found


def end(processes: Iterable[Noted], grace: float) -> None:
    """Ends processes: SIGTERM, a grace period, SIGKILL.

    Args:
        processes: The processes.
        grace: Seconds between the two.
    """
    processes = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            send(process, number)
        deadline = time.monotonic() + grace
        while any(process.lives for process in processes) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def send(process: Noted, number: signal.Signals) -> None:
    """Sends a signal to a process, if it is still that one."""
    if process.lives:
        try:
            os.kill(process.pid, number)
        except (ProcessLookupError, PermissionError):
            return


def _started_by_ps(pid: int) -> str | None:
    """The same on a system without /proc."""
    command = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    fields = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return " ".join(fields[1:]) if fields and not fields[0].startswith("Z") else None
