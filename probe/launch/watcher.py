"""``python -I -S watcher.py``: starts a trainer, and ends all of it when it ends or when whoever asked for it is gone.

It is a session of its own, so that no signal for Firstdiff's process group reaches it, and what the trainer leaves
behind becomes its child (on Linux): nothing hides from it. Standard library only, and little of it: it starts in
milliseconds and is small.

::

    standard input     eight hex digits, and as many bytes of JSON: what to start. Then END or KILL; its end of file, or
                       another parent process, says that Firstdiff's process is gone
    standard output    lines of JSON: {"pid"} or {"error"}, then {"status"} as soon as the trainer has ended
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

END, KILL = b"e", b"k"
KILL_SECONDS = 5.0
"""How long SIGKILL is sent: a process in the kernel ends when it comes out."""

_LOOK_SECONDS = 1.0
_NEW_CHILD_OF_NOBODY, _END_WITH_PARENT = 36, 1
"""``prctl``'s PR_SET_CHILD_SUBREAPER and PR_SET_PDEATHSIG."""


def descendants(root: int) -> list[int]:
    """Processes below one, parents first, without those that have ended (on Linux; elsewhere none)."""
    children: dict[int, list[int]] = {}
    ended: set[int] = set()
    for name in _processes():
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        children.setdefault(int(parent), []).append(int(name))
        if state in (b"Z", b"X"):
            ended.add(int(name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return [pid for pid in found[1:] if pid not in ended]


def carrying(is_mark: Callable[[bytes], bool]) -> list[int]:
    """Processes in whose environment a ``NAME=value`` is a mark, whoever their parent is (on Linux)."""
    found = []
    for name in _processes():
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if any(map(is_mark, file.read().split(b"\0"))):
                    found.append(int(name))
        except OSError:
            continue  # it ended, or is another user's
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Sends a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def remains(root: int, group: int, mark: str | None) -> set[int]:
    """What is left of a trainer: below a process, or marked; without both, the leader of its group.

    Args:
        root: The watcher.
        group: The trainer's process group.
        mark: ``NAME=value`` in the environment of the trainer alone.
    """
    found = set(descendants(root))
    if mark is not None:
        wanted = os.fsencode(mark)
        found |= set(carrying(lambda variable: variable == wanted))
    if not os.path.exists("/proc/self/stat"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, 0)
            found.add(-group)
    return found - {os.getpid(), os.getppid(), root}


def _processes() -> list[str]:
    try:
        return [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


class _Watcher:
    """Waits for the trainer's end, or a reason to end it."""

    def __init__(self, plan: dict[str, Any], parent: int) -> None:
        self._plan = plan
        self._parent = parent
        self._trainer = 0
        self._ended = False
        self._must_end = self._at_once = self._alone = False
        self._wake, write_end = os.pipe()
        for descriptor in (self._wake, write_end):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # a handler, which the trainer does not inherit
                signal.signal(number, self._told_to_end)

    def start(self) -> bool:
        """Starts the trainer, and says so; False when it cannot be started."""
        control = _prctl()
        control(_NEW_CHILD_OF_NOBODY, 1)
        me = os.getpid()

        def end_with_the_watcher() -> None:
            control(_END_WITH_PARENT, signal.SIGKILL)
            if os.getppid() != me:
                os._exit(1)

        output = self._plan["output"]
        try:
            process = subprocess.Popen(
                self._plan["command"],
                cwd=self._plan["cwd"],
                env=self._plan["env"],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=end_with_the_watcher,
            )
        except OSError as error:
            _say({"error": f"{error.strerror}: {error.filename}"})
            return False
        except ValueError as error:  # a zero byte in an argument
            _say({"error": str(error)})
            return False
        finally:
            os.close(output)
        process.returncode = 0  # it is waited for here, among all that became children of this process
        self._trainer = process.pid
        _say({"pid": process.pid})
        return True

    def watch(self) -> None:
        """Returns when nothing of the trainer is left."""
        while not (self._ended or self._must_end):
            self._wait(_LOOK_SECONDS)
        self._send_until_gone(signal.SIGTERM, self._plan["grace"], again=False)
        self._send_until_gone(signal.SIGKILL, KILL_SECONDS, again=True)
        self._wait(0)
        if self._alone:
            import shutil

            for path in self._plan["remove"]:
                shutil.rmtree(path, ignore_errors=True)

    def _send_until_gone(self, number: int, seconds: float, again: bool) -> None:
        deadline = time.monotonic() + seconds
        sent: set[int] = set()
        while time.monotonic() < deadline and not (self._at_once and number != signal.SIGKILL):
            left = remains(os.getpid(), self._trainer, self._plan["mark"])
            if not left:
                return
            send(left if again else left - sent, number)
            sent |= left
            self._wait(0.05)

    def _wait(self, seconds: float) -> None:
        ready, _, _ = select.select([self._wake] if self._alone else [self._wake, 0], [], [], seconds)
        if self._wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake, 4096)
        if 0 in ready:
            told = os.read(0, 64)
            self._alone = not told
            self._must_end = True
            self._at_once |= KILL in told
        if os.getppid() != self._parent:
            self._alone = self._must_end = True
        self._collect()

    def _collect(self) -> None:
        """Collects every child that has ended; of the trainer, tells the status."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._trainer and not self._ended:
                    self._ended = True
                    _say({"status": os.waitstatus_to_exitcode(status)})

    def _told_to_end(self, number: int, frame: object) -> None:
        self._must_end = True


def _prctl() -> Callable[[int, int], object]:
    """``prctl`` of Linux; elsewhere nothing."""
    try:
        import ctypes

        function = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return lambda option, value: None
    return lambda option, value: function(option, ctypes.c_ulong(value), 0, 0, 0)


def _say(what: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        os.write(1, json.dumps(what).encode() + b"\n")


def _read(size: int) -> bytes:
    found = b""
    while len(found) < size:
        chunk = os.read(0, size - len(found))
        if not chunk:
            sys.exit(1)  # gone before it said what to start
        found += chunk
    return found


def main() -> None:
    """Reads what to start, and watches it."""
    parent = os.getppid()
    watcher = _Watcher(json.loads(_read(int(_read(8), 16))), parent)
    if watcher.start():
        watcher.watch()


if __name__ == "__main__":
    main()
