"""The revision of the code that a check runs: that of the trainer's repository, and Firstdiff's own version.

Git is asked, and never changes anything: no lock is taken, no hook, pager or external diff is run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

SECONDS = 20.0
"""Longest time for one question to git."""
NAMED = 20
"""Most changed files that are named; the digest is of all."""
SOURCES = frozenset({".py", ".pyi", ".sh", ".c", ".cc", ".cpp", ".cu", ".h", ".hpp"})
"""Endings of files that count as code though git does not know them yet."""
_LARGEST_SOURCE = 1 << 22
_MOST_SOURCES = 5000
_NO_FOLDER = "no folder of it is in a git repository"


@dataclass(frozen=True, slots=True)
class Revision:
    """Which code was run.

    Example:
        >>> Revision("0.1.0", commit="5a…", dirty=False).as_dict()["dirty"]
        False
    """

    firstdiff: str
    """Firstdiff's version."""
    commit: str | None = None
    """Commit of the trainer's repository; None where there is none."""
    dirty: bool | None = None
    """Whether code differs from that commit."""
    changes: str | None = None
    """Digest of how it differs; None where it does not."""
    changed_files: tuple[str, ...] = ()
    """The files that differ: at most ``NAMED``."""
    unknown: str | None = None
    """Why there is no commit."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "changed_files": list(self.changed_files)}


def revision_of(folders: Iterable[Path]) -> Revision:
    """The revision of the first of some folders that lies in a git repository.

    Args:
        folders: The trainer's working folder, then others that may hold its code.
    """
    version = firstdiff_version()
    reason = _NO_FOLDER
    for folder in folders:
        try:
            top = _git(folder, "rev-parse", "--show-toplevel").decode(errors="replace").strip()
            commit = _git(folder, "rev-parse", "--verify", "HEAD").decode(errors="replace").strip()
            return _of_repository(Path(top), commit, version)
        except _NoAnswerError as error:
            if error.reason:
                reason = error.reason
    return Revision(version, unknown=reason)


def firstdiff_version() -> str:
    """The version that is installed, or ``unknown``."""
    try:
        return metadata.version("firstdiff")
    except metadata.PackageNotFoundError:
        return "unknown"


def _of_repository(top: Path, commit: str, version: str) -> Revision:
    diff = _git(top, "diff", "HEAD", "--no-ext-diff", "--no-textconv", "--no-color", "--binary")
    changed = _names(_git(top, "diff", "HEAD", "--no-ext-diff", "--name-only", "-z"))
    new = [name for name in _names(_git(top, "ls-files", "--others", "--exclude-standard", "-z")) if _is_source(name)]
    if not diff and not new:
        return Revision(version, commit, False)
    digest = hashlib.sha256(diff)
    for name in sorted(new)[:_MOST_SOURCES]:
        digest.update(b"\0" + os.fsencode(name) + b"\0" + _content(top / name))
    named = tuple(sorted([*changed, *new])[:NAMED])
    return Revision(version, commit, True, digest.hexdigest()[:32], named)


def _is_source(name: str) -> bool:
    return Path(name).suffix in SOURCES


def _names(output: bytes) -> list[str]:
    return [name.decode(errors="replace") for name in output.split(b"\0") if name]


def _content(path: Path) -> bytes:
    try:
        if path.is_symlink() or not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(_LARGEST_SOURCE)
    except OSError:
        return b""


class _NoAnswerError(Exception):
    """Git gave no answer.

    Args:
        reason: What people should know; empty where the folder is simply in no repository.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


def _git(folder: Path, *arguments: str) -> bytes:
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", "-C", str(folder), *arguments]
    hidden = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**hidden, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False
        )
    except FileNotFoundError as error:
        raise _NoAnswerError("git is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise _NoAnswerError(f"git took longer than {SECONDS:g} s in {folder}") from error
    except (OSError, ValueError) as error:
        raise _NoAnswerError(f"git could not be run ({error})") from error
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())[:200]
        raise _NoAnswerError("" if "not a git repository" in said else f"git says: {said}")
    return done.stdout
