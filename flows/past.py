"""``firstdiff history`` and ``firstdiff unpack``: past checks for people and programs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from probe.errors import DumpError, UsageError
from probe.history import Story, past_checks, rebuild, stories
from probe.history.markdown import OVERVIEW, overview, sentences
from probe.language import join, said, tell, verdict_word
from probe.store.packing import is_packed, unpack

_WIDTH = 180
"""Columns where the output is no terminal."""
COLOURS = {"identical": "green", "equivalent": "green", "divergent": "red", "inconclusive": "yellow"}


def history_of(profile: str | None, checks: Path, anew: bool) -> tuple[dict[str, Any], Callable[[TextIO], None], str]:
    """The history of a folder of checks.

    Args:
        profile: A profile's name or path; None for all.
        checks: The folder.
        anew: Whether the index is made again from the checks' folders.

    Returns:
        What there is for programs, what shows people the same on a stream, and the last line.

    Raises:
        UsageError: There is no such folder, or no check of that profile.
    """
    if not checks.is_dir():
        raise UsageError(f"{checks}: no such folder of checks; name it with --checks")
    if profile is not None and not profile.strip():
        raise UsageError("PROFILE is empty; name a profile, or leave it out for all of them")
    known = rebuild(checks) if anew else past_checks(checks)
    told = stories(known)
    if profile is not None:
        profile = Path(profile).stem if profile.endswith((".yaml", ".yml")) else profile
        own = [story for story in told if story.profile == profile]
        if not own:
            names = ", ".join(sorted({story.profile for story in told})) or "none at all"
            raise UsageError(f"{profile}: no check of this profile is in {checks}; there are checks of {names}")
        told = own
    document = {"format": 1, "profiles": [story.as_dict() for story in told]}
    return document, partial(_show, told, profile is not None), _last_line(told)


def _show(told: list[Story], whole: bool, stream: TextIO) -> None:
    """Shows some histories; of those that are fine, only with ``whole`` more than the table's row."""
    width = None if stream.isatty() else _WIDTH
    console = Console(file=stream, width=width, highlight=False, markup=False, emoji=False)
    if told:
        _show_table(console, told)
    for story in told:
        if whole or story.divergent or story.flaky:
            for sentence in sentences(story):
                line = said(tell("{name}: {sentence}", name=story.name, sentence=sentence))
                console.print(Text(_plain(line)), soft_wrap=True)


def unpack_dump(dump: Path, target: Path) -> dict[str, Any]:
    """Writes the files of a compressed dump into a new folder.

    Raises:
        UsageError: The dump is none, or not compressed; the folder is there.
        DumpError: The dump is damaged.
    """
    if not dump.is_dir():
        raise UsageError(f"{dump}: no such dump folder")
    if not is_packed(dump):
        raise UsageError(f"{dump}: is not compressed; its files lie there as they are")
    if target.exists():
        raise UsageError(f"{target}: is there already; name a new folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DumpError(f"{target}: the folder cannot be made ({error.strerror})") from error
    unpack(dump, target)
    return {"format": 1, "dump": str(dump.absolute()), "folder": str(target.absolute())}


def _show_table(console: Console, told: list[Story]) -> None:
    table = Table(*(said(column) for column in OVERVIEW), box=None, pad_edge=False)
    for story, row in zip(told, overview(told), strict=True):
        colour, verdict = COLOURS.get(story.latest.verdict, ""), verdict_word(story.latest.verdict)
        table.add_row(*(Text(_plain(said(cell)), style=colour if cell == verdict else "") for cell in row))
    console.print(table)


def _last_line(told: list[Story]) -> str:
    counted = {verdict: sum(story.latest.verdict == verdict for story in told) for verdict in COLOURS}
    found = join(", ", (tell("{count} {verdict}", count=count, verdict=verdict_word(verdict))
                        for verdict, count in counted.items() if count))  # fmt: skip
    if not told:
        return said(tell("no checks yet"))
    if len(told) == 1:
        return said(tell("{count} history: {found}", count=1, found=found))
    return said(tell("{count} histories: {found}", count=len(told), found=found))


def _plain(text: str) -> str:
    """Text of one line that moves no cursor, whatever a trainer called its modules."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
