"""Removing old checks, by age, number and size.

Only folders that are checks of ours go, and only those that lie in the folder of checks itself: no link is followed.
A check that runs stays, and so does the newest divergent check of each profile. The history keeps all rows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from probe.disk.settle import expire
from probe.disk.sizes import folder_size, show_size
from probe.errors import HistoryError, UsageError
from probe.history import History, PastCheck, history_file, is_check, past_checks, read_unfinished
from probe.history.checks import read_check
from probe.launch import is_running
from probe.launch.claim import alone

log = logging.getLogger("firstdiff")

_REMOVING = re.compile(r"\.removing-[0-9a-f]{8}-.+")


_MOST = {"--older-than": 1_000_000, "--max-checks": 10**12, "--max-bytes": 10**24}
"""Largest limits."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A check's folder that is removed, or that stays and why.

    Example:
        >>> Doomed(Path("checks/x"), "demo", datetime(2026, 1, 6, tzinfo=timezone.utc), None, 100).reason
        ''
    """

    folder: Path
    profile: str
    time: datetime
    verdict: str | None
    """None of a check that never came to one."""
    bytes: int
    reason: str = ""
    id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "folder": str(self.folder),
            "profile": self.profile,
            "time": self.time.isoformat(timespec="seconds"),
            "verdict": self.verdict,
            "bytes": self.bytes,
            "reason": self.reason,
        }


@dataclass
class Pruned:
    """What pruning did, or would do.

    Example:
        >>> Pruned(dry_run=True).bytes
        0
    """

    dry_run: bool
    removed: list[Doomed] = field(default_factory=list)
    protected: list[Doomed] = field(default_factory=list)
    """Checks that would have gone, and why they stay."""
    kept: list[Doomed] = field(default_factory=list)
    """Checks within the limits."""
    reduced: list[Path] = field(default_factory=list)
    """Checks of which only digests are left, since ``check.keep.divergent`` days are over."""
    failed: list[str] = field(default_factory=list)
    """What could not be removed, one sentence each."""

    @property
    def bytes(self) -> int:
        """Bytes that were gained by what was removed."""
        return sum(one.bytes for one in self.removed)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "dry_run": self.dry_run,
            "bytes": self.bytes,
            "removed": [one.as_dict() for one in self.removed],
            "protected": [one.as_dict() for one in self.protected],
            "kept": [one.as_dict() for one in self.kept],
            "reduced": [str(folder) for folder in self.reduced],
            "failed": self.failed,
        }


def prune(
    checks: Path,
    older_than: float | None = None,
    max_checks: int | None = None,
    max_bytes: int | None = None,
    dry_run: bool = False,
    now: datetime | None = None,
) -> Pruned:
    """Removes checks from a folder of checks.

    Args:
        checks: The folder.
        older_than: Checks of more days go.
        max_checks: The oldest go until no more than so many are left.
        max_bytes: The oldest go until all together take no more.
        dry_run: Whether it is only said what would go.
        now: The time; None for now.

    Raises:
        UsageError: There is no such folder, nothing says what is to go, or a limit is negative.
    """
    if older_than is None and max_checks is None and max_bytes is None:
        raise UsageError("say which checks may go, with --older-than, --max-checks or --max-bytes")
    for name, limit in (("--older-than", older_than), ("--max-checks", max_checks), ("--max-bytes", max_bytes)):
        if limit is not None and not 0 <= limit <= _MOST[name]:
            raise UsageError(f"{name}: {limit:.6g} is no limit; it must be from 0 to {_MOST[name]:,}")
    if not checks.is_dir():
        raise UsageError(f"{checks}: no such folder of checks; name it with --checks")
    time = now or datetime.now(timezone.utc)
    result = Pruned(dry_run)
    if not dry_run:
        _finish_removing(checks, result)
    found = sorted(_checks_in(checks), key=lambda one: (one.time, one.folder))
    protected = _protected(found)
    chosen = _chosen(found, protected, time, older_than, max_checks, max_bytes)
    gone = {one.folder for one in chosen}
    result.kept = [replace(one, reason="within the limits") for one in found if one.folder not in gone]
    for one in chosen:
        if one.folder in protected:
            result.protected.append(replace(one, reason=protected[one.folder]))
        elif dry_run or _remove(one, checks, result):
            result.removed.append(one)
    if not dry_run:
        _tell_history(checks, result.removed)
        with contextlib.suppress(HistoryError):  # told by whoever reads it
            result.reduced = expire(past_checks(checks), time)
    return result


def pruned_lines(result: Pruned) -> list[str]:
    """What was done, for people, one line each; the last sums it up."""
    verb = "would remove" if result.dry_run else "removed"
    lines = [
        f"{verb} {one.folder} ({one.verdict or 'no verdict'}, {show_size(one.bytes)}): {one.reason}"
        for one in result.removed
    ]
    lines += [f"kept {one.folder}: {one.reason}" for one in [*result.protected, *result.kept]]
    lines += [f"removed the values of {folder}: check.keep says so" for folder in result.reduced]
    lines += result.failed
    count = len(result.removed)
    return [*lines, f"{verb} {count} check{'s' * (count != 1)}, {show_size(result.bytes)}"]


def _checks_in(checks: Path) -> Iterator[Doomed]:
    """Every check in a folder."""
    for name in sorted(os.listdir(checks)):
        folder = checks / name
        if _REMOVING.fullmatch(name) or not is_check(folder):
            continue
        check: PastCheck | None = None
        try:
            check = read_check(folder)
        except (HistoryError, OSError):
            check = read_unfinished(folder)
        if check is not None:
            verdict = check.verdict or None
            yield Doomed(folder, check.profile, check.time, verdict, folder_size(folder), id=check.id)


def _protected(found: Sequence[Doomed]) -> dict[Path, str]:
    """Folders that stay whatever is asked for, and why."""
    newest = {one.profile: one.folder for one in found if one.verdict == "divergent"}
    protected = {folder: f"the newest divergent check of {profile}" for profile, folder in newest.items()}
    protected.update({one.folder: "its check runs" for one in found if is_running(one.folder)})
    return protected


def _chosen(
    found: Sequence[Doomed],
    protected: dict[Path, str],
    now: datetime,
    older_than: float | None,
    max_checks: int | None,
    max_bytes: int | None,
) -> list[Doomed]:
    """What is to go by the limits, the oldest first; protected ones among it do not make room for others."""
    count, size = len(found), sum(one.bytes for one in found)
    chosen = []
    for one in found:
        reason = ""
        if older_than is not None and now - one.time > timedelta(days=older_than):
            reason = f"older than {older_than:g} days"
        elif max_checks is not None and count > max_checks:
            reason = f"more than {max_checks} checks"
        elif max_bytes is not None and size > max_bytes:
            reason = f"more than {show_size(max_bytes)}"
        if not reason:
            continue
        chosen.append(replace(one, reason=reason))
        if one.folder not in protected:
            count, size = count - 1, size - one.bytes
    return chosen


def _remove(one: Doomed, checks: Path, result: Pruned) -> bool:
    """Removes a check's folder: first its name, so that no half of it is ever taken for a check."""
    doomed = checks / f".removing-{secrets.token_hex(4)}-{one.folder.name[:200]}"
    try:
        with alone(one.folder):
            if one.folder.is_symlink() or is_running(one.folder):
                result.protected.append(replace(one, reason="its check runs"))
                return False
            os.rename(one.folder, doomed)
        shutil.rmtree(doomed)
    except OSError as error:
        result.failed.append(f"{error.filename or one.folder}: cannot be removed ({error.strerror or error})")
        return False
    return True


def _finish_removing(checks: Path, result: Pruned) -> None:
    """Removes what an earlier call was killed over."""
    for name in sorted(os.listdir(checks)):
        folder = checks / name
        if _REMOVING.fullmatch(name) and folder.is_dir() and not folder.is_symlink():
            try:
                shutil.rmtree(folder)
            except OSError as error:
                result.failed.append(f"{error.filename or folder}: cannot be removed ({error.strerror or error})")


def _tell_history(checks: Path, removed: Sequence[Doomed]) -> None:
    history = History(history_file(checks))
    ids = [one.id for one in removed if one.id is not None]
    if not ids or not history.is_there:
        return
    try:
        history.mark_removed(ids)
    except HistoryError as error:
        log.warning("the history does not say what was removed: %s", error)
