"""What happens to a check after its verdict: it enters the history, values go where the profile says, dumps shrink.

Nothing here changes a verdict or fails: what cannot be done is a warning, and what was there stays.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from probe.config import Keep, Profile
from probe.disk.sizes import folder_size, show_size
from probe.errors import FirstdiffError
from probe.history import PastCheck, note_size, past_checks, record
from probe.keys import CONFIGURATIONS
from probe.language import tell
from probe.launch import dump_folder, is_running
from probe.store.packing import is_packed, pack, unpacked
from probe.store.reduction import is_reduced, reduce

log = logging.getLogger("firstdiff")

RUNS = "abcd"


def settle(folder: Path, profile: Profile) -> None:
    """Ends a check whose verdict is written.

    Args:
        folder: The check's folder.
        profile: The resolved profile.
    """
    with _warning(f"{folder}: its size is not noted"):
        note_size(folder, folder_size(folder))
    check: PastCheck | None = None
    with _warning("the check is not in the history"):
        check = record(folder)
    if check is not None and check.is_same and profile.check.keep.identical == "digests":
        keep_digests(folder)
    elif profile.check.compress:
        compress(folder)
    with _warning("what earlier checks keep is not looked at"):
        expire(past_checks(folder.parent))


def compress(folder: Path) -> int:
    """Packs every dump of a check; returns the bytes that were gained."""
    saved = 0
    for dump in _dumps(folder):
        with _warning(f"{dump} is not compressed"):
            packed = pack(dump)
            saved += packed.saved if packed else 0
    if saved > 0:
        log.info("%s", tell("the dumps are compressed: {size} less", size=show_size(saved)))
    return saved


def keep_digests(folder: Path) -> None:
    """Removes the values of every dump of a check: what is left is packed, and compares by digests."""
    before = folder_size(folder)
    for dump in _dumps(folder):
        with _warning(f"the values of {dump} stay"):
            _reduce(dump)
    saved = before - folder_size(folder)
    if saved > 0:
        gained = {"check": folder.name, "size": show_size(saved)}
        log.info("%s", tell("values were removed from {check}, digests are kept: {size} less", **gained))


def expire(checks: Iterable[PastCheck], now: datetime | None = None) -> list[Path]:
    """Removes the values of checks whose days are over; returns their folders.

    Args:
        checks: Checks of one folder.
        now: The time; None for now.
    """
    known = list(checks)
    newest = {check.profile: check.id for check in known if check.verdict == "divergent" and not check.removed}
    done = []
    for check in known:
        days = _days(check)
        old = days is not None and (now or datetime.now(timezone.utc)) - check.time > timedelta(days=days)
        if not old or check.is_same or check.removed or newest.get(check.profile) == check.id:
            continue
        if not check.folder.is_dir() or is_running(check.folder) or (check.folder / _DONE).exists():
            continue
        keep_digests(check.folder)
        with _warning(f"{check.folder}: will be looked at again"):
            (check.folder / _DONE).touch()
        done.append(check.folder)
    return done


_DONE = ".reduced"
"""In a check's folder: its days are over, and what could be removed was."""


def _days(check: PastCheck) -> int | None:
    """``check.keep.divergent`` of the profile that a check was made with."""
    section: Any = check.experiment.get(CONFIGURATIONS, {}).get("check")
    keep = section.get("keep") if isinstance(section, dict) else None
    try:
        return Keep.model_validate(keep or "all").divergent
    except ValueError:
        return None


def _reduce(dump: Path) -> None:
    """Puts a dump without values in a dump's place, in one go."""
    with tempfile.TemporaryDirectory(prefix=".reducing-", dir=dump.parent) as scratch:
        with unpacked(dump, Path(scratch)) as whole:
            if is_reduced(whole):
                return
            copy = whole if is_packed(dump) else _linked(whole, Path(scratch, "copy"))
            reduce(copy)
            pack(dump, copy)


def _linked(dump: Path, copy: Path) -> Path:
    """A copy of a dump that takes no room: of hard links, which ``reduce`` replaces and never writes into."""
    for base, folders, files in os.walk(dump, followlinks=False):
        target = copy / os.path.relpath(base, dump)
        target.mkdir(parents=True, exist_ok=True)
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(base, name))]
        for name in files:
            if not os.path.islink(os.path.join(base, name)):
                os.link(os.path.join(base, name), target / name)
    return copy


def _dumps(folder: Path) -> list[Path]:
    return [dump for run in RUNS if (dump := dump_folder(folder, run)).is_dir() and not dump.is_symlink()]


class _warning:  # noqa: N801  (reads as the statement that it is)
    """Turns whatever fails into a warning: a verdict is never lost for what comes after it."""

    def __init__(self, consequence: str) -> None:
        self._consequence = consequence

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        known = isinstance(error, (FirstdiffError, OSError))
        log.warning("%s: %s%s", self._consequence, "" if known else f"{type(error).__name__}: ", error)
        return True
