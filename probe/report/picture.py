"""The map of steps and tags: which cell is the same, and a small picture of it."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any
from xml.sax.saxutils import escape

from probe.compare import KeyDataComparison
from probe.compare.entries import Status
from probe.report.summary import tag_order

WORST: tuple[Status, ...] = ("different", "missing", "extra", "unreadable", "not_compared", "same")
"""What a cell shows: the first of these that is in it."""
_COLOURS = {
    "same": "#2f9e5f",
    "different": "#d6453d",
    "missing": "#e0912f",
    "extra": "#e0912f",
    "unreadable": "#98a2ac",
    "not_compared": "#98a2ac",
    "none": "#dde2e6",
}
_MOST_ROWS = 40
_MOST_COLUMNS = 60
_WIDTH, _HEIGHT, _MARGIN, _FOOT = 16, 16, 180, 24
"""Pixels of a cell, of the names beside it, and of the numbers below."""
_LONGEST = 26


def step_map(key_data: KeyDataComparison | None) -> dict[str, Any] | None:
    """Steps by tags (and ranks): the worst status of each cell. None where nothing was recorded.

    Args:
        key_data: What was compared.
    """
    if key_data is None or not key_data.cells:
        return None
    cells = key_data.cells
    steps = sorted({step for _, step, _ in cells})
    rows = sorted({(tag, rank) for tag, _, rank in cells}, key=lambda row: (tag_order(row[0]), row))
    several = len({rank for _, rank in rows}) > 1
    table = []
    for tag, rank in rows:
        states = [
            next((status for status in WORST if found[status]), "none")
            for found in (cells[tag, step, rank].counts if (tag, step, rank) in cells else Counter() for step in steps)
        ]
        table.append((f"{tag} · rank {rank}" if several else tag, states))
    return {"steps": steps, "rows": table}


def picture(found: dict[str, Any] | None) -> str | None:
    """The map as a small SVG picture; None where there is no map.

    At most 40 rows and 60 columns: what differs is kept of more rows, and of more steps several share a column, which
    shows the worst of them.

    Args:
        found: What ``step_map`` gave.
    """
    if found is None:
        return None
    steps, rows = found["steps"], found["rows"]
    if len(rows) > _MOST_ROWS:
        differing = [row for row in rows if set(row[1]) - {"same", "none"}]
        rows = (differing + [row for row in rows if row not in differing])[:_MOST_ROWS]
    together = -(-len(steps) // _MOST_COLUMNS)
    columns = [steps[i : i + together] for i in range(0, len(steps), together)]
    width = _MARGIN + _WIDTH * len(columns) + 8
    height = _HEIGHT * len(rows) + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        ' font-size="11" fill="#7d8790">'
    ]
    for number, (name, states) in enumerate(rows):
        top = number * _HEIGHT
        parts.append(f'<text x="{_MARGIN - 8}" y="{top + 12}" text-anchor="end">{_text(name)}</text>')
        for column in range(len(columns)):
            cell = states[column * together : (column + 1) * together]
            worst = next((status for status in WORST if status in cell), "none")
            parts.append(
                f'<rect x="{_MARGIN + column * _WIDTH}" y="{top + 1}" width="{_WIDTH - 2}" height="{_HEIGHT - 2}"'
                f' rx="2" fill="{_COLOURS[worst]}"/>'
            )
    every = max(1, -(-len(columns) // 12))
    for column in range(0, len(columns), every):
        x = _MARGIN + column * _WIDTH + _WIDTH // 2 - 1
        parts.append(f'<text x="{x}" y="{height - 8}" text-anchor="middle">{int(columns[column][0])}</text>')
    return "".join(parts) + "</svg>"


def data_uri(svg: str) -> str:
    """A picture as an address that holds all of it."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode(errors="replace")).decode()


def _text(name: str) -> str:
    shown = "".join(c if c.isprintable() else "�" for c in name)
    return escape(shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…")
