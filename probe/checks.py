"""A check's folder while its check lasts: claimed by one process, gone on in, and never left without a verdict."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probe.errors import is_interruption
from probe.launch import abandoned_checks, check_folder, claimed, forget_results, taken_from_the_dead
from probe.report import CheckResult, verdict_document, write_verdict

ENDED = "the check was ended before its verdict"
_log = logging.getLogger("firstdiff")


@contextmanager
def open_check(profile: str, out: str | None, flow_run: str | None = None) -> Iterator[Path]:
    """The folder of a check, this process's alone until the check has ended.

    A flow run that is tried again gets its own folder back; what it concluded before is taken away, its runs are not.
    Checks beside it whose process is gone get their verdict now.

    Args:
        profile: Name or path of the profile.
        out: The folder asked for; None makes a new one in ``checks``.
        flow_run: The flow run that the check is.

    Raises:
        UsageError: The folder is another check's, or cannot be made.
    """
    folder = check_folder(profile, out, flow_run)
    conclude_abandoned(folder.parent)
    with claimed(folder, flow_run) as goes_on:
        if goes_on:
            _log.info("the check goes on in %s: runs that are whole are not done again", folder)
            forget_results(folder)
        try:
            yield folder
        except Exception as error:
            why = "" if is_interruption(error) else f": {' '.join(str(error).split()) or type(error).__name__}"
            _leave_verdict(folder, f"{ENDED}{why}")
            raise
        except BaseException:
            _leave_verdict(folder, ENDED)
            raise


def conclude_abandoned(parent: Path) -> list[Path]:
    """Gives the checks in a folder whose process is gone, by a kill or a reboot, their verdict: inconclusive.

    Args:
        parent: The folder that holds the checks' folders.

    Returns:
        Their folders.
    """
    found: list[Path] = []
    for folder in abandoned_checks(parent):
        with contextlib.suppress(OSError), taken_from_the_dead(folder) as dead:
            if dead:
                _leave_verdict(folder, ENDED)
                found.append(folder)
                _log.info("%s: %s, and is inconclusive", folder, ENDED)
    return found


def _leave_verdict(folder: Path, reason: str) -> None:
    """Writes that a check is inconclusive, unless it has concluded."""
    if (folder / "verdict.json").exists():
        return
    runs = {run: folder / run / "msprobe_dump" for run in "abcd"}
    there = {run: path for run, path in runs.items() if path.is_dir()}
    document = verdict_document(CheckResult("inconclusive", error=reason, runs=there), folder)
    with contextlib.suppress(OSError):  # a full disk: the reason itself, often
        write_verdict(document, folder)
