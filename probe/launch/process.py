"""One child process in a process group of its own: output to a log and to the caller, deadlines, and a clean end."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from probe.errors import HangError, InternalError, TrainerError
from probe.language import tell
from probe.launch.stacks import dump_stacks
from probe.launch.watched import Watched
from probe.masking import Masker

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL for a trainer and all that it started."""
TAIL_LINES = 40
"""Lines of the log that an error carries."""
LONGEST_LINE = 1 << 16
"""Bytes after which a line without an end is handed on in parts."""

_POLL_SECONDS = 0.2
_DRAIN_SECONDS = 1.0
_ASK_SECONDS = 0.5
_LOOKS_IN_A_STALL = 5


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
    hold: Sequence[int] = (),
    remove: Sequence[Path] = (),
    masker: Masker | None = None,
) -> None:
    """Runs a command to its end; whatever ends this call, or this process, also ends all that the command started.

    A watcher sees to that, a process of its own. It finds what the command started wherever that went: below the
    command, orphaned, and where a variable of the command's environment marks it (on Linux).

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
        hold: Descriptors, of locks say, that stay open until nothing of the command is left.
        remove: Folders that are removed when this process vanishes.
        masker: Takes out of the output what neither the log nor the caller may get.

    Raises:
        TrainerError: The command could not be started, or failed. It carries the log's tail.
        HangError: It ran out of time. The log ends with the stacks of all that it had started.
        InternalError: The mark is this process's own too.
    """
    if mark is not None and os.environ.get(mark) == env[mark]:
        raise InternalError(f"{mark}={env[mark]} marks this process too, and all that share its environment")
    with log_file.open("ab", buffering=0) as log:
        read_end, write_end = os.pipe()
        output = _Output(read_end, log.write, on_line, masker or Masker(()))
        try:
            try:
                child = Watched(
                    command,
                    cwd=cwd,
                    env=env,
                    output=write_end,
                    grace=GRACE_SECONDS,
                    mark=None if mark is None else f"{mark}={env[mark]}",
                    hold=hold,
                    remove=remove,
                )
            finally:
                os.close(write_end)
            try:
                status = _watch(child, output, time_limit, stall_seconds, signs_of_life, must_end)
            except HangError as hang:
                tail = output.tail_text
                dump_stacks(child.root, output.add, output.read)
                raise HangError(str(hang), None, tail) from None
            finally:
                child.end(output.read)
        finally:
            output.close()
            os.close(read_end)
    if status:
        last = next((line.strip()[:300] for line in reversed(output.tail) if line.strip()), tell("it printed nothing"))
        raise TrainerError(_how_it_ended(status, last), status, output.tail_text)


class _Output:
    """Reads a child's output in the caller's thread, so that what logs it has the caller's context."""

    def __init__(
        self, fd: int, write: Callable[[bytes], object], on_line: Callable[[str], None], masker: Masker
    ) -> None:
        self._masker = masker
        self._fd = fd
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
        self._take(self._masker.feed(chunk))
        return True

    def _take(self, chunk: bytes) -> None:
        self._write(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._hand_on(line)

    def add(self, line: str) -> None:
        """Puts a line of our own into the log."""
        self._write(line.encode(errors="backslashreplace") + b"\n")
        self._on_line(line)

    def close(self) -> None:
        """Reads what is left, for a moment: a process that left the group may hold the pipe for ever."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline and self.read(0):
            pass
        if rest := self._masker.rest():
            self._take(rest)
        if self._rest:
            self._hand_on(self._rest)
        self._selector.close()

    def _hand_on(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r")
        self.tail.append(text)
        self._on_line(text)


def _watch(
    child: Watched,
    output: _Output,
    time_limit: float | None,
    stall_seconds: float | None,
    signs_of_life: Callable[[], object],
    must_end: Callable[[], str | None],
) -> int:
    """The exit status of a command that ends by itself.

    Raises:
        HangError: It does not, within its time.
        TrainerError: ``must_end`` has a reason, or the watcher was ended.
    """
    start = last_change = asked = looked = time.monotonic()
    signs: object = None
    seen: object = None
    while (status := child.poll()) is None:
        output.read(_POLL_SECONDS)
        now = time.monotonic()
        if now - asked > _ASK_SECONDS:
            asked, reason = now, must_end()
            if reason is not None:
                raise TrainerError(reason, None, output.tail_text)
        if time_limit is not None and now - start > time_limit:
            raise HangError(tell("the trainer ran longer than {limit:g} s (trainer.time_limit)", limit=time_limit))
        if stall_seconds is None:
            continue
        if now - looked > min(_POLL_SECONDS * 10, stall_seconds / _LOOKS_IN_A_STALL):  # looking costs file accesses
            looked, signs = now, signs_of_life()
        if (output.bytes_read, signs) != seen:
            seen, last_change = (output.bytes_read, signs), now
        elif now - last_change > stall_seconds:
            why = tell("the trainer made no progress for {limit:g} s (trainer.stall_seconds)", limit=stall_seconds)
            raise HangError(why)
    return status


def _how_it_ended(status: int, last: str) -> str:
    if status > 0:
        return tell("the trainer failed with exit status {status}: {last}", status=status, last=last)
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return tell("the trainer was ended by {name}: {last}", name=name, last=last)
