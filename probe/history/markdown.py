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
from probe.language import join, recall, said, tell, verdict_word

CHANGES = 20
"""Most changes of one story that are listed; all are counted."""
_LONGEST = 120
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#|~!$^])")
_UNSAID = {
    "configuration": tell("the configuration"),
    "environment": tell("the environment"),
    "code": tell("the code's revision"),
}


_PARTS = {"configuration": tell("configuration"), "environment": tell("environment"), "code": tell("code")}


def summary_markdown(told: Sequence[Story]) -> str:
    """A summary of some stories in the language that is spoken here: one table, then what there is to say of each.

    Args:
        told: What ``stories`` gave.
    """
    if not told:
        return said(tell("No checks yet.\n"))
    rows = [[escape(cell) for cell in row] for row in overview(told)]
    lines = [_row([said(column) for column in OVERVIEW]), _row(["---"] * len(OVERVIEW)), *map(_row, rows), ""]
    for story in told:
        if story.divergent or story.latest.verdict == "inconclusive" or story.flaky:
            lines += _section(story)
    return "\n".join(lines)


OVERVIEW = (
    tell("Profile"),
    tell("Latest check (UTC)"),
    tell("Verdict"),
    tell("Divergent since"),
    tell("Cause"),
    tell("Checks"),
)
"""Columns of ``overview``."""


def overview(told: Sequence[Story]) -> list[list[str]]:
    """One row for each story, as text without markup."""
    return [
        [
            story.name,
            _moment(story.latest.time),
            verdict_word(story.latest.verdict),
            _moment(story.divergent[0].time) if story.divergent else "",
            cause_of(story.divergent[-1]) if story.divergent else "",
            str(len(story.checks)),
        ]
        for story in told
    ]


def sentences(story: Story) -> list[str]:
    """What there is to say of a story, one plain sentence each."""
    found: list[str] = []
    latest = story.latest
    if latest.verdict == "inconclusive":
        why = recall(latest.error) if latest.error else tell("it says not why")
        found.append(tell("The latest check is inconclusive: {why}.", why=why))
    if not story.divergent:
        if (last := story.last_identical) is not None:
            verdict = verdict_word(last.verdict)
            found.append(tell("Its latest verdict is {verdict}, of {time}.", verdict=verdict, time=when(last.time)))
    else:
        found += _divergent(story)
    if story.flaky:
        found.append(
            tell(
                "Flaky: with the same configuration, environment and code the verdict changed {count} times.",
                count=story.switches,
            )
        )
    return found


def _divergent(story: Story) -> list[str]:
    first, latest, last = story.divergent[0], story.divergent[-1], story.last_identical
    count = len(story.divergent)
    found: list[str] = []
    if story.is_new and story.same_cause is None:
        found.append(tell("New: divergent for the first time, {time}.", time=when(first.time)))
    elif count == 1:
        found.append(tell("Divergent since {time} ({count} check).", time=when(first.time), count=count))
    else:
        found.append(tell("Divergent since {time} ({count} checks).", time=when(first.time), count=count))
    place = {"place": place_of(latest), "cause": cause_of(latest)}
    found.append(tell("First difference: {place}; cause: {cause}.", **place))
    if last is None:
        found.append(tell("No earlier check was identical: what changed is not known."))
    else:
        changed = _what_changed(story)
        found.append(tell("The last identical check was {time}; {changed}.", time=when(last.time), changed=changed))
    if story.same_cause is True and story.cause_since is not None:
        since = tell("The cause is the same as before, since {time}.", time=when(story.cause_since.time))
        found.append(since if count > 1 else _AS_EARLIER)
    elif story.same_cause is False:
        found.append(tell("The cause is another than before."))
    return found


_AS_EARLIER = tell("The cause is the same as that of the divergent check before.")


def _what_changed(story: Story) -> str:
    unknown = join(" and ", (_UNSAID[part] for part in story.unknown))
    unsaid = tell("; {parts} cannot be compared", parts=unknown) if unknown else ""
    if not story.changes:
        return tell("between the two, nothing that is recorded changed{unsaid}", unsaid=unsaid)
    total = len(story.changes) + story.changes_left_out
    named = join(", ", (in_words(change) for change in story.changes[:3]))
    named += tell(" and {more} more", more=total - 3) if total > 3 else ""
    return tell("between the two changed: {changes}{unsaid}", changes=named, unsaid=unsaid)


def in_words(change: Change) -> str:
    """A change as text without markup."""
    key = tell("{key} of the code", key=change.key) if change.part == "code" else cut(change.key)
    return tell("{key} ({before} to {after})", key=key, before=value(change.before), after=value(change.after))


def _section(story: Story) -> list[str]:
    lines = [f"### {escape(story.name)}", "", *(f"- {escape(sentence)}" for sentence in sentences(story)), ""]
    if story.changes:
        columns = (tell("Changed"), tell("Key"), tell("Before"), tell("After"))
        lines += [_row([said(column) for column in columns]), _row(["---"] * 4)]
        for change in story.changes[:CHANGES]:
            cells = [said(_PARTS[change.part]), change.key, value(change.before), value(change.after)]
            lines.append(_row([escape(cut(cell)) for cell in cells]))
        more = len(story.changes) - CHANGES + story.changes_left_out
        lines += ["", *([said(tell("{more} more changed.", more=more)), ""] if more > 0 else [])]
    return lines


def place_of(check: PastCheck) -> str:
    """Where a check's first difference is."""
    first = check.first or {}
    if not first:
        return tell("not known")
    return tell("step {step}, {stage}", step=first.get("step"), stage=first.get("stage") or tell("no stage"))


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
    r"""Text as markdown that shows it in the language that is spoken here: no markup, no HTML, no link, one line.

    Example:
        >>> escape("a|b <i> [x](http://y)")
        'a\\|b &lt;i&gt; \\[x\\]\\(http&#58;//y\\)'
    """
    plain = "".join(
        c if c.isprintable() else " " if c.isspace() else c.encode("unicode_escape").decode() for c in said(text)
    )
    marked = _SPECIAL.sub(r"\\\1", html.escape(" ".join(plain.split()), quote=False))
    unlinked = marked.replace("://", "&#58;//").replace("www.", "www&#46;").replace("@", "&#64;")
    return re.sub(r"^([-+=>]|\d+(?=[.)]))", r"&#8203;\1", unlinked)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
