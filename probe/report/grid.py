"""Long tables for the report: as compact JSON of which the page's script shows only the rows that are seen.

A column is a name, a width, and either its values, or the values that it has and for each row which of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from probe.language import said

MOST_ROWS = 100_000
"""Most rows of one table; the rest is counted."""
_IN_SCRIPT = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


@dataclass(frozen=True, slots=True)
class Grid:
    """A table.

    Example:
        >>> grid("events", [("name", "1fr")], [("actor",)], ["same"], None).rows
        1
    """

    name: str
    """Of the element that holds it."""
    data: Markup
    """JSON that is safe inside a script element."""
    rows: int
    left_out: int = 0


def grid(
    name: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Any]],
    statuses: Sequence[str],
    first: int | None,
    left_out: int = 0,
) -> Grid:
    """Packs a table.

    Args:
        name: Name of the element.
        columns: Heading and width of each column.
        rows: Texts, numbers and None.
        statuses: What each row is: a word of the page's style.
        first: The row that people look for.
        left_out: Rows that are not there.
    """
    kept = [[_exact(plain(shown(value))) for value in row] for _, row in zip(range(MOST_ROWS), rows, strict=False)]
    packed = [
        {"name": shown(heading), "width": width, **_packed([row[number] for row in kept])}
        for number, (heading, width) in enumerate(columns)
    ]
    content = {"columns": packed, "status": _packed(list(statuses[: len(kept)])), "rows": len(kept), "first": first}
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return Grid(name, Markup(text.translate(_IN_SCRIPT)), len(kept), left_out)  # noqa: S704


def shown(value: Any) -> Any:
    """What people read of a value: a sentence in their language, anything else as it is."""
    return said(value) if isinstance(value, str) else value


def plain(value: Any) -> Any:
    """Text that shows as it is: no character of it is invisible, or turns the direction of others."""
    if not isinstance(value, str):
        return value
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in value)


def _exact(value: Any) -> Any:
    """A number that the page's script cannot hold, or has no word for, as text."""
    inexact = isinstance(value, float) or (isinstance(value, int) and abs(value) >= 2**53)
    return str(value) if inexact else value


def _packed(values: list[Any]) -> dict[str, list[Any]]:
    """The values, or which of a few each is."""
    known = dict.fromkeys((type(value), value) for value in values)  # 1, 1.0 and true are three values
    places = {key: place for place, key in enumerate(known)}
    if len(places) * 2 > len(values):
        return {"values": values}
    return {"known": [value for _, value in places], "codes": [places[type(value), value] for value in values]}
