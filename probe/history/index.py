"""The history of a folder of checks: recording a check that has ended, reading what is there, making it anew."""

from __future__ import annotations

import logging
import os
from datetime import datetime, timezone
from pathlib import Path

from probe.errors import DamagedHistoryError, HistoryError
from probe.history.checks import VERDICT, PastCheck, is_check, read_check
from probe.history.database import History, history_file

log = logging.getLogger("firstdiff")


def record(folder: Path) -> PastCheck | None:
    """Writes a check that has ended into the history. It never fails: what cannot be written is a warning.

    Args:
        folder: The check's folder, with its verdict.

    Returns:
        What was written; None where nothing was.
    """
    try:
        check = read_check(folder)
        history = History(history_file(folder.parent))
        earlier = [] if history.is_there else scan(folder.parent)
        history.put([*earlier, check])
    except HistoryError as error:
        log.warning("the check is not in the history: %s", error)
        return None
    except OSError as error:
        log.warning("the check is not in the history: %s: %s", error.filename or folder, error.strerror or error)
        return None
    return check


def past_checks(checks: Path, profile: str | None = None) -> list[PastCheck]:
    """The checks of a folder, the oldest first; from their folders where there is no index yet.

    Raises:
        HistoryError: The index is damaged, of another program, or cannot be read.
    """
    history = History(history_file(checks))
    if history.is_there:
        return history.checks(profile)
    found = scan(checks)
    if found:
        try:
            history.put(found)
        except HistoryError as error:
            log.warning("the history is not kept: %s", error)
    return [check for check in found if profile in (None, check.profile)]


def rebuild(checks: Path) -> list[PastCheck]:
    """Makes the index anew from the checks' folders; what it alone knows, of checks that were removed, stays in it.

    A damaged file is moved aside.

    Raises:
        HistoryError: The file is another program's, or cannot be written.
    """
    history = History(history_file(checks))
    try:
        known = history.checks()
    except DamagedHistoryError:
        aside = history.file.with_name(f"{history.file.name}.damaged-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}")
        os.replace(history.file, aside)
        log.warning("%s was damaged; it is now %s", history.file, aside.name)
        known = []
    found = scan(checks)
    history.put(found)
    here = {check.id for check in found}
    gone = [check.id for check in known if check.id not in here and not check.removed and not check.folder.exists()]
    history.mark_removed(gone)
    return history.checks()


def scan(checks: Path) -> list[PastCheck]:
    """Reads every check in a folder, the oldest first. One that has no verdict, or none that can be read, is left out.

    Args:
        checks: The folder; nothing is found where there is none.
    """
    found: dict[str, PastCheck] = {}
    try:
        names = sorted(os.listdir(checks))
    except OSError:
        return []
    for name in names:
        folder = checks / name
        if not is_check(folder) or not (folder / VERDICT).exists():  # it runs, or never came to one
            continue
        try:
            check = read_check(folder)
        except (HistoryError, OSError) as error:
            log.info("%s", error)
            continue
        if check.id in found:
            log.warning("%s is a copy of %s; only the latter counts", folder, found[check.id].folder)
            continue
        found[check.id] = check
    return sorted(found.values(), key=lambda check: (check.time, check.id))
