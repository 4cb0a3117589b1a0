"""One child process in a process group of its own: output to a log and to the caller, deadlines, and a clean end."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from probe.errors import TrainerError

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL for a process group."""
TAIL_LINES = 40
"""Lines of the log that an error carries."""

_POLL_SECONDS = 0.2


def run_process(
    command: list[str],
    *,
    cwd: Path,
    env: dict[str, str],
    log_file: Path,
    on_line: Callable[[str], None],
    time_limit: float | None = None,
    stall_seconds: float | None = None,
    signs_of_life: Callable[[], object] = lambda: None,
) -> None:
    """Runs a command to its end; whatever ends this call also ends the whole process group.

    Args:
        command: Program and arguments.
        cwd: Working folder.
        env: The whole environment.
        log_file: Receives standard output and standard error, whole.
        on_line: Called with each line of output.
        time_limit: Longest run, in seconds.
        stall_seconds: Longest time without output and without a change of ``signs_of_life()``, in seconds.
        signs_of_life: Anything that changes while the child makes progress.

    Raises:
        TrainerError: The command could not be started, failed, or ran out of time. It carries the log's tail.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    try:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise TrainerError(f"the trainer could not be started: {error.strerror}: {error.filename}") from error

    def take(line: str) -> None:
        tail.append(line)
        on_line(line)

    try:
        with _OutputReader(process, log_file, take) as reader:
            _watch(process, reader, time_limit, stall_seconds, signs_of_life, tail)
    finally:
        end_group(process)
    if process.returncode:
        last = next((line.strip() for line in reversed(tail) if line.strip()), "it printed nothing")
        raise TrainerError(f"{_how_it_ended(process.returncode)}: {last[:300]}", process.returncode, _text(tail))


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and everything in its group: SIGTERM, a grace period, SIGKILL."""
    for number, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline and _group_lives(process):
            time.sleep(0.02)
    process.wait()


def _group_lives(process: subprocess.Popen[bytes]) -> bool:
    process.poll()  # a child that ended must be collected before its group can vanish
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


class _OutputReader:
    """Reads a child's output in the caller's thread, so that what logs it has the caller's context."""

    def __init__(self, process: subprocess.Popen[bytes], log_file: Path, on_line: Callable[[str], None]) -> None:
        assert process.stdout is not None
        self._pipe = process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._log_file = log_file
        self._on_line = on_line
        self._rest = b""
        self.bytes_read = 0

    def __enter__(self) -> _OutputReader:
        self._log = self._log_file.open("ab", buffering=0)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._pipe, selectors.EVENT_READ)
        return self

    def __exit__(self, *_: object) -> None:
        while self.read(0):
            pass
        if self._rest:
            self._on_line(self._rest.decode(errors="replace"))
        self._selector.close()
        self._log.close()
        self._pipe.close()

    def read(self, timeout: float) -> bool:
        """Reads what is there, waiting at most ``timeout`` seconds. False when there was nothing."""
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        if not self._selector.select(timeout):
            return False
        chunk = self._pipe.read(1 << 16)
        if not chunk:
            self._selector.unregister(self._pipe)
            return False
        self.bytes_read += len(chunk)
        self._log.write(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._on_line(line.decode(errors="replace").rstrip("\r"))
        return True


def _watch(
    process: subprocess.Popen[bytes],
    reader: _OutputReader,
    time_limit: float | None,
    stall_seconds: float | None,
    signs_of_life: Callable[[], object],
    tail: deque[str],
) -> None:
    start = last_change = time.monotonic()
    seen: object = None
    while process.poll() is None:
        reader.read(_POLL_SECONDS)
        now = time.monotonic()
        if time_limit is not None and now - start > time_limit:
            raise TrainerError(f"the trainer ran longer than {time_limit:g} s (trainer.time_limit)", None, _text(tail))
        if stall_seconds is None:
            continue
        signs = (reader.bytes_read, signs_of_life())
        if signs != seen:
            seen, last_change = signs, now
        elif now - last_change > stall_seconds:
            message = f"the trainer made no progress for {stall_seconds:g} s (trainer.stall_seconds)"
            raise TrainerError(message, None, _text(tail))


def _text(tail: deque[str]) -> str:
    return "\n".join(tail)


def _how_it_ended(status: int) -> str:
    if status > 0:
        return f"the trainer failed with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the trainer was ended by {name}"
