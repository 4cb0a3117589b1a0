"""Which runs of a check are whole, so that a check that is tried again goes on from them and never from half a run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from probe.errors import DumpError, InconclusiveError
from probe.launch.running import MARK
from probe.launch.watcher import carrying, send
from probe.store import layout
from probe.store.reader import read_dump
from probe.store.writer import write_json
from probe.types import RunSpec

FINISHED = "finished.json"
"""In a run's folder: its trainer ended well, recording what this says, under these manifests."""
INTERRUPTED = "interrupted"
"""In a check's folder: the logs of runs that were not whole."""
_RESULTS = ("verdict.json", "report.html", "keydata", "layers")
_END_SECONDS = 10.0
_LONGEST = 1 << 24


def note_finished(folder: Path, spec: RunSpec) -> None:
    """Notes that a run's trainer ended well.

    Args:
        folder: The run's folder.
        spec: What it recorded.
    """
    with contextlib.suppress(OSError):  # then it is done again, if ever
        write_json(folder / FINISHED, _proof(Path(spec.dump_path), spec))


def is_finished(folder: Path, spec: RunSpec) -> bool:
    """Whether a run's folder holds the whole run of this very spec: its launch ended well, and its dump is complete.

    Args:
        folder: The run's folder.
        spec: What is to be recorded.
    """
    try:
        said: Any = layout.read_json(folder / FINISHED, _LONGEST)
        if said != _proof(Path(spec.dump_path), spec):
            return False
        dump = read_dump(Path(spec.dump_path))
    except (OSError, ValueError, DumpError):
        return False
    return dump.complete and not dump.problems


def begin_run(folder: Path) -> None:
    """Makes a run's folder; what an interrupted attempt left there goes, but for its log.

    Args:
        folder: The run's folder, in the check's.
    """
    if os.path.lexists(folder):
        _end_trainers_of(folder)
        kept = folder.parent / INTERRUPTED
        kept.mkdir(exist_ok=True)
        goal = next(path for number in range(1, 1 << 20) if not (path := kept / f"{folder.name}-{number}").exists())
        folder.rename(goal)
        shutil.rmtree(goal / layout.DUMP, ignore_errors=True)
    folder.mkdir()


def forget_results(check: Path) -> None:
    """Takes away what an earlier attempt at a check concluded; its runs stay."""
    for name in _RESULTS:
        path = check / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _proof(dump: Path, spec: RunSpec) -> dict[str, Any]:
    manifests = sorted(layout.manifests(dump).values())
    return {
        "format": 1,
        "run": spec.run,
        "spec": _digest(spec.to_json().encode()),
        "manifests": {path.name: _digest(path.read_bytes()) for path in manifests},
    }


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _end_trainers_of(folder: Path) -> None:
    """Ends trainers that still record into a run's folder: they would go on in the new one of the same name.

    Raises:
        InconclusiveError: One cannot be ended.
    """
    beginning = os.fsencode(f"{MARK}={folder}{os.sep}")
    deadline = time.monotonic() + _END_SECONDS
    while left := set(carrying(lambda variable: variable.startswith(beginning))) - {os.getpid()}:
        if time.monotonic() > deadline:
            raise InconclusiveError(f"{folder}: process {min(left)} of an earlier attempt cannot be ended")
        send(left, signal.SIGKILL)
        time.sleep(0.05)
