"""The history in words: as sentences, and as markdown for a page.

Names and values come from trainers, profiles and folders: none of them makes markup.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from datetime import datetime

from probe.history.checks import PastCheck
from probe.history.story import Change, Story

CHANGES = 20
"""Most changes of one story that are listed; all are counted."""
_LONGEST = 120
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#|~!$^])")
_UNSAID = {"configuration": "the configuration", "environment": "the environment", "code": "the code's revision"}


def summary_markdown(told: Sequence[Story]) -> str:
    """A summary of some stories: one table of all, then what there is to say of each that is not identical.

    Args:
        told: What ``stories`` gave.
    """
    if not told:
        return "No checks yet.\n"
    rows = [[escape(cell) for cell in row] for row in overview(told)]
    lines = [_row(OVERVIEW), _row(["---"] * len(OVERVIEW)), *map(_row, rows), ""]
    for story in told:
        if story.divergent or story.latest.verdict == "inconclusive" or story.flaky:
            lines += _section(story)
    return "\n".join(lines)


OVERVIEW = ("Profile", "Latest check (UTC)", "Verdict", "Divergent since", "Cause", "Checks")
"""Columns of ``overview``."""


def overview(told: Sequence[Story]) -> list[list[str]]:
    """One row for each story, as plain text."""
    return [
        [
            story.name,
            _moment(story.latest.time),
            story.latest.verdict,
            _moment(story.divergent[0].time) if story.divergent else "",
            cause_of(story.divergent[-1]) if story.divergent else "",
            str(len(story.checks)),
        ]
        for story in told
    ]


def sentences(story: Story) -> list[str]:
    """What there is to say of a story, one plain sentence each."""
    said: list[str] = []
    latest = story.latest
    if latest.verdict == "inconclusive":
        said.append(f"The latest check is inconclusive: {latest.error or 'it says not why'}.")
    if not story.divergent:
        if story.last_identical is not None:
            said.append(f"Its latest verdict is {story.last_identical.verdict}, of {when(story.last_identical.time)}.")
    else:
        said += _divergent(story)
    if story.flaky:
        said.append(
            f"Flaky: with the same configuration, environment and code the verdict changed {story.switches} times."
        )
    return said


def _divergent(story: Story) -> list[str]:
    first, latest, last = story.divergent[0], story.divergent[-1], story.last_identical
    count = len(story.divergent)
    said = [
        f"New: divergent for the first time, {when(first.time)}."
        if story.is_new and story.same_cause is None
        else f"Divergent since {when(first.time)} ({count} check{'s' * (count > 1)})."
    ]
    said.append(f"First difference: {place_of(latest)}; cause: {cause_of(latest)}.")
    if last is None:
        said.append("No earlier check was identical: what changed is not known.")
    else:
        said.append(f"The last identical check was {when(last.time)}; {_what_changed(story)}.")
    if story.same_cause is True and story.cause_since is not None:
        since = story.cause_since
        said.append(f"The cause is the same as before, since {when(since.time)}." if count > 1 else _AS_EARLIER)
    elif story.same_cause is False:
        said.append("The cause is another than before.")
    return said


_AS_EARLIER = "The cause is the same as that of the divergent check before."


def _what_changed(story: Story) -> str:
    unknown = " and ".join(_UNSAID[part] for part in story.unknown)
    unsaid = f"{unknown} cannot be compared" if unknown else ""
    if not story.changes:
        return f"between the two, nothing that is recorded changed{'; ' * bool(unsaid)}{unsaid}"
    total = len(story.changes) + story.changes_left_out
    named = ", ".join(in_words(change) for change in story.changes[:3])
    named += f" and {total - 3} more" if total > 3 else ""
    return f"between the two changed: {named}{'; ' * bool(unsaid)}{unsaid}"


def in_words(change: Change) -> str:
    """A change as plain text."""
    key = f"{change.key} of the code" if change.part == "code" else change.key
    return f"{cut(key)} ({value(change.before)} to {value(change.after)})"


def _section(story: Story) -> list[str]:
    lines = [f"### {escape(story.name)}", "", *(f"- {escape(sentence)}" for sentence in sentences(story)), ""]
    if story.changes:
        lines += [_row(["Changed", "Key", "Before", "After"]), _row(["---"] * 4)]
        for change in story.changes[:CHANGES]:
            cells = [change.part, change.key, value(change.before), value(change.after)]
            lines.append(_row([escape(cut(cell)) for cell in cells]))
        more = len(story.changes) - CHANGES + story.changes_left_out
        lines += ["", *([f"{more} more changed.", ""] if more > 0 else [])]
    return lines


def place_of(check: PastCheck) -> str:
    """Where a check's first difference is."""
    first = check.first or {}
    return f"step {first.get('step')}, {first.get('stage') or 'no stage'}" if first else "not known"


def cause_of(check: PastCheck) -> str:
    """A check's cause: its name and its kind."""
    cause, first = check.cause or {}, check.first or {}
    name = cause.get("name") or first.get("name") or first.get("tag")
    return " ".join(cut(str(part)) for part in (name, f"({cause.get('kind')})" if cause.get("kind") else None) if part)


def when(time: datetime) -> str:
    """A time as people read it."""
    return f"{_moment(time)} UTC"


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}"


def value(said: object) -> str:
    """A value as short JSON; text as it is."""
    return cut(said if isinstance(said, str) else json.dumps(said, ensure_ascii=False))


def cut(text: str) -> str:
    """Text that is not too long for a line."""
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"


def escape(text: str) -> str:
    r"""Text as markdown that shows it, whatever it holds: no markup, no HTML, no link, one line.

    Example:
        >>> escape("a|b <i> [x](http://y)")
        'a\\|b &lt;i&gt; \\[x\\]\\(http&#58;//y\\)'
    """
    plain = "".join(c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode() for c in text)
    marked = _SPECIAL.sub(r"\\\1", html.escape(" ".join(plain.split()), quote=False))
    unlinked = marked.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")
    return re.sub(r"^([-+=>]|\d+(?=[.)]))", r"&#8203;\1", unlinked)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
