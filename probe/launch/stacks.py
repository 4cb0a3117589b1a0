"""The stacks of a trainer that hangs, into its log: of every Python process that it started.

A process whose ``Probe`` is open shows its stacks on a signal of ours and goes on. Of others py-spy tells, where it is
installed and allowed to. What is left shows them by ``faulthandler`` as it ends by SIGABRT, if that was switched on.
"""

from __future__ import annotations

import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from probe.launch.watcher import descendants, send
from probe.types import STACK_SIGNAL

TOGETHER_SECONDS = 10.0
"""Time after which the stacks of those that are left are asked for at once."""
_QUIET_SECONDS = 0.3
_GAP_SECONDS = 0.02
_LONGEST_SECONDS = 2.0
_PY_SPY_SECONDS = 10.0
_AGENT = "probe.launch.agent"


def dump_stacks(root: int, say: Callable[[str], object], read: Callable[[float], bool]) -> None:
    """Has every process below one write its stacks to its standard error, one after the other.

    Args:
        root: The watcher of the trainer.
        say: Puts a line into the log.
        read: Reads the trainer's output; waits at most that many seconds, false when nothing came.
    """
    deadline = time.monotonic() + TOGETHER_SECONDS
    deaf: list[int] = []
    for pid in descendants(root):
        if _AGENT in _command(pid):
            continue  # torchrun, which only waits
        hears = _catches(pid, STACK_SIGNAL)
        if not hears and not _catches(pid, signal.SIGABRT):
            continue  # no Python, or one that can say nothing
        told = None if hears else _asked_py_spy(pid)
        if not hears and told is None:
            deaf.append(pid)
            continue
        say(f"firstdiff: stacks of {_name(pid)}")
        for line in told or ():
            say(line)
        if hears:
            send([pid], STACK_SIGNAL)
        if time.monotonic() < deadline:
            _read_until_quiet(read)
    for pid in deaf:
        say(f"firstdiff: ending, for its stacks, {_name(pid)}")
        _leave_no_core(pid)
    for pid in reversed(deaf):  # quickly, children first: whoever sees that one has ended may end the others
        send([pid], signal.SIGABRT)
        time.sleep(_GAP_SECONDS)
    _read_until_quiet(read)


def _read_until_quiet(read: Callable[[float], bool]) -> None:
    """Torchrun hands on what its ranks wrote ten times a second."""
    deadline = time.monotonic() + _LONGEST_SECONDS
    while time.monotonic() < deadline and read(_QUIET_SECONDS):
        pass


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal: without one it would end."""
    for line in _text(pid, "status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def _asked_py_spy(pid: int) -> list[str] | None:
    program = shutil.which("py-spy")
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PY_SPY_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None  # it may not look into other processes here
    return done.stdout.splitlines()


def _leave_no_core(pid: int) -> None:
    """A dead rank's memory, written to the disk, could fill it."""
    try:
        _, most = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (0, most))
    except (OSError, AttributeError, ValueError):
        return  # it has just ended


def _name(pid: int) -> str:
    ranks = [entry for entry in _text(pid, "environ").split("\0") if entry.startswith("RANK=")]
    rank = f" (rank {ranks[0][5:]})" if ranks else ""
    return f"process {pid}{rank}: {_command(pid)[:200]}"


def _command(pid: int) -> str:
    return " ".join(_text(pid, "cmdline").replace("\0", " ").split())


def _text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
