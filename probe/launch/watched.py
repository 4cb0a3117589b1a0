"""A command that runs under a watcher, which ends all of it when this process is gone: see ``watcher.py``."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from probe.errors import TrainerError
from probe.launch import watcher

_PROGRAM = Path(watcher.__file__).resolve()
_PATIENCE_SECONDS = 3.0
"""How much longer than it may need the watcher is waited for."""


class Watched:
    """A command with all that it starts.

    Args:
        command: Program and arguments.
        cwd: Working folder.
        env: The whole environment.
        output: Descriptor that receives standard output and standard error.
        grace: Time between SIGTERM and SIGKILL, in seconds.
        mark: ``NAME=value`` that the environment of no other command has.
        hold: Descriptors that stay open until nothing of the command is left, such as locks.
        remove: Folders to remove when this process vanishes.

    Raises:
        TrainerError: The command could not be started.
    """

    def __init__(
        self,
        command: list[str],
        *,
        cwd: Path,
        env: dict[str, str],
        output: int,
        grace: float,
        mark: str | None = None,
        hold: Sequence[int] = (),
        remove: Sequence[Path] = (),
    ) -> None:
        self._grace, self._mark = grace, mark
        self._told = b""
        self._status: int | None = None
        self.pid = 0
        """The command's process, and its group."""
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(output, *hold),
            start_new_session=True,
            bufsize=0,
        )
        try:
            self._start(
                {
                    "command": command,
                    "cwd": str(cwd),
                    "env": env,
                    "output": output,
                    "grace": grace,
                    "mark": mark,
                    "remove": [str(path) for path in remove],
                }
            )
        except BaseException:
            self._say(watcher.KILL)
            self._close()
            raise

    @property
    def root(self) -> int:
        """The process below which all of the command is."""
        return self._watcher.pid

    def poll(self) -> int | None:
        """Exit status of the command (negative: ended by that signal); None while it runs.

        Raises:
            TrainerError: Its watcher was ended from outside.
        """
        if self._status is None and (told := self._read_line(0)) is not None:
            self._status = told["status"]
        return self._status

    def end(self, meanwhile: Callable[[float], object]) -> None:
        """Ends what is left of the command: SIGTERM, a grace period, SIGKILL.

        Args:
            meanwhile: Called again and again with the seconds that it may take; reads the output.
        """
        try:
            self._say(watcher.END)
            deadline = time.monotonic() + self._grace + watcher.KILL_SECONDS + _PATIENCE_SECONDS
            while self._watcher.poll() is None and time.monotonic() < deadline:
                meanwhile(0.02)
        except BaseException:  # an output that cannot be handed on, or another Ctrl-C: nothing may be left behind
            self._say(watcher.KILL)
            raise
        finally:
            self._close()

    def _start(self, plan: dict[str, Any]) -> None:
        content = json.dumps(plan).encode()
        assert self._watcher.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._watcher.stdin.write(b"%08x" % len(content))
            while content:
                content = content[self._watcher.stdin.write(content) or 0 :]
        told = self._read_line(None)
        assert told is not None
        if "error" in told:
            raise TrainerError(f"the trainer could not be started: {told['error']}")
        self.pid = told["pid"]

    def _read_line(self, timeout: float | None) -> Any:
        """The next thing that the watcher says; None when it says nothing within the time."""
        assert self._watcher.stdout is not None
        while b"\n" not in self._told:
            if not select.select([self._watcher.stdout], [], [], timeout)[0]:
                return None
            chunk = os.read(self._watcher.stdout.fileno(), 4096)
            if not chunk:
                raise TrainerError("the process that watches the trainer was ended from outside")
            self._told += chunk
        line, _, self._told = self._told.partition(b"\n")
        return json.loads(line)

    def _say(self, what: bytes) -> None:
        assert self._watcher.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self._watcher.stdin.write(what)

    def _close(self) -> None:
        """Waits for the watcher; where it ended without having ended the command, that is done here."""
        try:
            self._watcher.wait(watcher.KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._watcher.kill()
            self._watcher.wait()
        for pipe in (self._watcher.stdin, self._watcher.stdout):
            if pipe is not None:
                pipe.close()
        if self._watcher.returncode != 0 and self.pid:
            self._kill_what_is_left()

    def _kill_what_is_left(self) -> None:
        deadline = time.monotonic() + watcher.KILL_SECONDS
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        while time.monotonic() < deadline:
            left = watcher.remains(self.pid, self.pid, self._mark)
            if not left:
                return
            watcher.send(left, signal.SIGKILL)
            time.sleep(0.02)
