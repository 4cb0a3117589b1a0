"""Whose a check's folder is: one check's at a time, whether it still runs, and what a killed one left.

::

    <check>/
      check.json    which flow run the folder is of; stays
      check.pid     which process runs the check; there while it does, touched again and again

Process ids come again after a reboot: ``check.pid`` has the boot and the process's start time too. Whether a process
of another host or container lives can only be seen by that it touches the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from probe.errors import UsageError
from probe.launch.hosts import FOLDER as HOSTS
from probe.store import layout
from probe.store.writer import write_json

RECORD = "check.json"
MARKER = "check.pid"
TOUCH_SECONDS = 15.0
SILENT_SECONDS = 120.0
"""Age of a marker from another host after which its check is gone: shared file systems may show a change late."""
_POLL_SECONDS = 0.5
_LONGEST_MARKER = 1 << 16
_log = logging.getLogger("firstdiff")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, so that no other is ever taken for it.

    Example:
        >>> Owner.of_this_process().lives()
        True
    """

    host: str
    boot: str
    """The boot of the machine; empty where it does not say."""
    space: str
    """The namespace that its number is of: containers have their own."""
    pid: int
    started: int
    """When it began, in ticks since the boot; 0 where the machine does not say."""

    @classmethod
    def of_this_process(cls) -> Owner:
        """This one."""
        boot = _text(Path("/proc/sys/kernel/random/boot_id"))
        space = ""
        with contextlib.suppress(OSError):
            space = os.readlink("/proc/self/ns/pid")
        return cls(socket.gethostname(), boot, space, os.getpid(), _started(os.getpid()) or 0)

    def lives(self) -> bool | None:
        """Whether it runs; None when it cannot be seen from here."""
        here = Owner.of_this_process()
        if self.host == here.host and self.boot != here.boot:
            return False
        if (self.host, self.boot, self.space) != (here.host, here.boot, here.space):
            return None
        if self.started:
            return _started(self.pid) == self.started
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True


def is_running(folder: Path) -> bool:
    """Whether a process works on the check in this folder.

    A check of another host counts as running as long as its marker is touched.
    """
    return _has_marker(folder) and _owner_lives(folder)


def running_checks(parent: Path) -> list[Path]:
    """The folders in this one whose check runs."""
    return [folder for folder in _marked_checks(parent) if _owner_lives(folder)]


def abandoned_checks(parent: Path) -> list[Path]:
    """This user's folders in this one whose check says that it runs, though its process is gone."""
    return [folder for folder in _marked_checks(parent) if _is_own(folder) and not _owner_lives(folder)]


@contextmanager
def taken_from_the_dead(folder: Path) -> Iterator[bool]:
    """Whether a folder's check is abandoned, while nobody else may enter it; then its marker is taken away."""
    with alone(folder):
        dead = _has_marker(folder) and not _owner_lives(folder)
        yield dead
        if dead:
            (folder / MARKER).unlink(missing_ok=True)


def is_of(folder: Path, flow_run: str | None) -> bool:
    """Whether a folder was begun by this very flow run: it is tried again."""
    if flow_run is None:
        return False
    try:
        record = layout.read_json(folder / RECORD, _LONGEST_MARKER)
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("flow_run") == flow_run


@contextmanager
def claimed(folder: Path, flow_run: str | None) -> Iterator[bool]:
    """Takes a folder for this process's check; no other gets it, however close they start.

    Args:
        folder: The check's folder, which exists.
        flow_run: The flow run that the check is; None where there is none that could be tried again.

    Yields:
        Whether this flow run worked in the folder before.

    Raises:
        UsageError: It is another check's, or one runs in it.
        OSError: It cannot be written to.
    """
    if is_of(folder, flow_run):
        _wait_for_silence(folder)
    with alone(folder):
        goes_on = _may_enter(folder, flow_run)
        write_json(folder / MARKER, asdict(Owner.of_this_process()))
        write_json(folder / RECORD, {"format": 1, "flow_run": flow_run})
    ended = threading.Event()
    thread = threading.Thread(target=_touch, args=(folder / MARKER, ended), name="firstdiff-marker", daemon=True)
    thread.start()
    try:
        yield goes_on
    finally:
        ended.set()
        thread.join()
        (folder / MARKER).unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process is here with the same folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the marker alone has to do
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _wait_for_silence(folder: Path) -> None:
    """Waits until an earlier attempt of another host or container shows that it runs or, by silence, that it does not.

    It may have been killed just now, and this flow run started anew in its place.
    """
    deadline = time.monotonic() + SILENT_SECONDS
    first = _touched(folder)
    if first is None or (owner := _owner(folder)) is None or owner.lives() is not None:
        return
    _log.info("waiting for a sign of %s, which worked on this check", _who(folder))
    while _owner_lives(folder) and _touched(folder) == first and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _may_enter(folder: Path, flow_run: str | None) -> bool:
    names = set(os.listdir(folder))
    if MARKER in names and _owner_lives(folder):
        raise UsageError(f"{folder}: {_who(folder)} runs a check in this folder; end it, or name another with --out")
    goes_on = is_of(folder, flow_run)
    if names - {MARKER} and not goes_on:
        raise UsageError(f"{folder}: the check's folder is not empty; name another with --out")
    if HOSTS in names:
        raise UsageError(f"{folder}: a check of several hosts cannot go on; start it anew in another folder (--out)")
    return goes_on


def _touch(marker: Path, ended: threading.Event) -> None:
    while not ended.wait(TOUCH_SECONDS):
        with contextlib.suppress(OSError):  # somebody removed the folder, or the disk vanished for a while
            os.utime(marker)


def _marked_checks(parent: Path) -> list[Path]:
    try:
        names = sorted(os.listdir(parent))
    except OSError:
        return []
    return [parent / name for name in names if _has_marker(parent / name)]


def _has_marker(folder: Path) -> bool:
    return os.path.lexists(folder / MARKER)


def _is_own(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _owner_lives(folder: Path) -> bool:
    owner = _owner(folder)
    lives = None if owner is None else owner.lives()
    if lives is not None:
        return lives
    touched = _touched(folder)
    return touched is not None and _now(folder) - touched < SILENT_SECONDS


def _touched(folder: Path) -> float | None:
    try:
        return (folder / MARKER).lstat().st_mtime
    except OSError:
        return None


def _now(folder: Path) -> float:
    """The time by the clock of a folder's file system, which may be another machine's."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"1")
            file.flush()
            return os.fstat(file.fileno()).st_mtime
    except OSError:
        return time.time()


def _owner(folder: Path) -> Owner | None:
    """The process that a marker names; None where it is damaged."""
    try:
        raw: Any = layout.read_json(folder / MARKER, _LONGEST_MARKER)
        owner = Owner(**raw)
    except (OSError, ValueError, TypeError):
        return None
    whole = isinstance(owner.pid, int) and isinstance(owner.started, int) and owner.pid > 0
    return owner if whole else None


def _who(folder: Path) -> str:
    owner = _owner(folder)
    return "another process" if owner is None else f"process {owner.pid} on {owner.host}"


def _started(pid: int) -> int | None:
    """When a process began, in ticks since the boot; None when it does not run, or nothing says so."""
    fields = _text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] not in "ZX" else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
