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
from probe.masking import Hidden

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL for a process group."""
TAIL_LINES = 40
"""Lines of the log that an error carries."""
LONGEST_LINE = 1 << 16
"""Bytes after which a line without an end is handed on in parts."""

_POLL_SECONDS = 0.2
_DRAIN_SECONDS = 1.0
_ASK_SECONDS = 0.5


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
    must_end: Callable[[], str | None] = lambda: None,
    mark: str | None = None,
    hidden: Hidden | None = None,
) -> None:
    """Runs a command to its end; whatever ends this call also ends the whole process group.

    torchrun gives every process that it starts a group of its own. They carry the command's environment: where one of
    its variables marks it, every process that carries it is ended too (on Linux).

    Args:
        command: Program and arguments.
        cwd: Working folder.
        env: The whole environment.
        log_file: Receives standard output and standard error, whole.
        on_line: Called with each line of output, in the caller's thread.
        time_limit: Longest run, in seconds.
        stall_seconds: Longest time without output and without a change of ``signs_of_life()``, in seconds.
        signs_of_life: Anything that changes while the child makes progress.
        must_end: Asked again and again; a sentence ends the command, which then failed with it.
        mark: Name of a variable in ``env`` whose value no other command has.
        hidden: What is taken out of the output before it is written or handed on.

    Raises:
        TrainerError: The command could not be started, failed, or ran out of time. It carries the log's tail.
    """
    with log_file.open("ab", buffering=0) as log:
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
        assert process.stdout is not None
        output = _Output(process.stdout.fileno(), log.write, on_line, hidden or Hidden(()))
        try:
            _watch(process, output, time_limit, stall_seconds, signs_of_life, must_end)
        finally:
            _end_group(process, output, None if mark is None else f"{mark}={env[mark]}".encode())
            output.close()
            process.stdout.close()
    if process.returncode:
        last = next((line.strip() for line in reversed(output.tail) if line.strip()), "it printed nothing")
        message = f"{_how_it_ended(process.returncode)}: {last[:300]}"
        raise TrainerError(message, process.returncode, output.tail_text)


class _Output:
    """Reads a child's output in the caller's thread, so that what logs it has the caller's context."""

    def __init__(
        self, fd: int, write: Callable[[bytes], object], on_line: Callable[[str], None], hidden: Hidden
    ) -> None:
        self._fd = fd
        self._hidden = hidden
        self._write = write
        self._on_line = on_line
        self._rest = b""
        self._open = True
        self._selector = selectors.DefaultSelector()
        self._selector.register(fd, selectors.EVENT_READ)
        self.bytes_read = 0
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    @property
    def tail_text(self) -> str:
        """The last lines."""
        return "\n".join(self.tail)

    def read(self, timeout: float) -> bool:
        """Reads what is there, waiting at most ``timeout`` seconds. False when there was nothing."""
        if not self._open:
            time.sleep(timeout)
            return False
        if not self._selector.select(timeout):
            return False
        chunk = os.read(self._fd, 1 << 16)
        if not chunk:
            self._open = False
            return False
        self.bytes_read += len(chunk)
        self._take(self._hidden.feed(chunk))
        return True

    def _take(self, chunk: bytes) -> None:
        self._write(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._hand_on(line)

    def close(self) -> None:
        """Reads what is left, for a moment: a process that left the group may hold the pipe for ever."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline and self.read(0):
            pass
        self._take(self._hidden.flush())
        if self._rest:
            self._hand_on(self._rest)
        self._selector.close()

    def _hand_on(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.tail.append(text)
        self._on_line(text)


def _watch(
    process: subprocess.Popen[bytes],
    output: _Output,
    time_limit: float | None,
    stall_seconds: float | None,
    signs_of_life: Callable[[], object],
    must_end: Callable[[], str | None],
) -> None:
    start = last_change = asked = time.monotonic()
    seen: object = None
    while process.poll() is None:
        output.read(_POLL_SECONDS)
        now = time.monotonic()
        if now - asked > _ASK_SECONDS:
            asked, reason = now, must_end()
            if reason is not None:
                raise TrainerError(reason, None, output.tail_text)
        if time_limit is not None and now - start > time_limit:
            message = f"the trainer ran longer than {time_limit:g} s (trainer.time_limit)"
            raise TrainerError(message, None, output.tail_text)
        if stall_seconds is None:
            continue
        signs = (output.bytes_read, signs_of_life())
        if signs != seen:
            seen, last_change = signs, now
        elif now - last_change > stall_seconds:
            message = f"the trainer made no progress for {stall_seconds:g} s (trainer.stall_seconds)"
            raise TrainerError(message, None, output.tail_text)


def _end_group(process: subprocess.Popen[bytes], output: _Output, mark: bytes | None) -> None:
    """Ends a process, everything in its group and all that is marked: SIGTERM, a grace period, SIGKILL.

    The last words are read.
    """
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not _signal_all(process, mark, number):
                break
            deadline = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < deadline and _any_lives(process, mark):
                output.read(0.02 if mark is None else 0.1)
    except BaseException:  # an output that cannot be handed on, or another Ctrl-C: nothing may be left behind
        _signal_all(process, mark, signal.SIGKILL)
        raise
    finally:
        process.wait()


def _signal_all(process: subprocess.Popen[bytes], mark: bytes | None, number: int) -> bool:
    """Sends a signal to the group and to all that is marked. False when nothing is there any more."""
    found = False
    process.poll()  # a child that ended must be collected before its group can vanish
    for send, target in [(os.killpg, process.pid), *((os.kill, pid) for pid in _marked(mark))]:
        try:
            send(target, number)
            found = True
        except (ProcessLookupError, PermissionError):
            continue
    return found


def _any_lives(process: subprocess.Popen[bytes], mark: bytes | None) -> bool:
    return _signal_all(process, mark, 0)


def _marked(mark: bytes | None) -> list[int]:
    """Processes whose environment holds ``NAME=value``, whichever group they are in and whoever their parent is."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ") if mark is not None else ():
        try:
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
        except OSError:
            continue  # it ended, or is another user's
    return found


def _how_it_ended(status: int) -> str:
    if status > 0:
        return f"the trainer failed with exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"the trainer was ended by {name}"
