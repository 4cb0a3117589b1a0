"""The map of steps, tags and stages: which cell is the same, and a small picture of it."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any
from xml.sax.saxutils import escape

from probe.compare import KeyDataComparison, TraceComparison
from probe.compare.entries import Status
from probe.language import said, tell
from probe.report.stage_map import stage_cells, stage_order
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


def step_map(key_data: KeyDataComparison | None, traces: TraceComparison | None = None) -> dict[str, Any] | None:
    """Steps by tags and stages (and ranks): the worst status of each cell. None where nothing was recorded.

    Args:
        key_data: What was compared.
        traces: How the traces compare; each stage that they show is a row.
    """
    cells: dict[tuple[str, int, int], Status] = {}
    for place, cell in (key_data.cells if key_data else {}).items():
        if found := [status for status in WORST if cell.counts[status]]:
            cells[place] = found[0]
    stages = stage_cells(traces)
    if not cells and not stages:
        return None
    steps = sorted({step for _, step, _ in [*cells, *stages]})
    several = len({rank for _, _, rank in [*cells, *stages]}) > 1
    rows = [(tag, rank, cells) for tag, rank in _rows(cells, lambda tag: (tag_order(tag), tag))]
    rows += [(stage, rank, stages) for stage, rank in _rows(stages, stage_order)]
    table = [
        (
            tell("{name} · rank {rank}", name=name, rank=rank) if several else name,
            [known.get((name, step, rank), "none") for step in steps],
        )
        for name, rank, known in rows
    ]
    return {"steps": steps, "rows": table}


def condensed(found: dict[str, Any] | None, most_rows: int, most_columns: int) -> dict[str, Any] | None:
    """A map of bounded size.

    Of more steps several share a column, which shows the worst of them. Of more rows those are kept that differ.

    Args:
        found: What ``step_map`` gave.
        most_rows: Rows that are kept.
        most_columns: Columns that are kept.

    Returns:
        ``columns`` as (first step, last step), ``rows``, and how many rows are left out.
    """
    if found is None:
        return None
    steps, rows = found["steps"], found["rows"]
    left_out = max(0, len(rows) - most_rows)
    if left_out:
        kept = {number for number, row in enumerate(rows) if set(row[1]) - {"same", "none"}}
        order = sorted(range(len(rows)), key=lambda number: number not in kept)
        rows = [rows[number] for number in sorted(order[:most_rows])]
    together = max(1, -(-len(steps) // most_columns))
    starts = range(0, len(steps), together)
    columns = [(steps[at], steps[min(at + together, len(steps)) - 1]) for at in starts]
    table = [
        (name, [next((one for one in WORST if one in states[at : at + together]), "none") for at in starts])
        for name, states in rows
    ]
    return {"columns": columns, "rows": table, "left_out": left_out}


def _rows(cells: Iterable[tuple[str, int, int]], order: Callable[[str], Any]) -> list[tuple[str, int]]:
    return sorted({(name, rank) for name, _, rank in cells}, key=lambda row: (order(row[0]), row))


def picture(found: dict[str, Any] | None) -> str | None:
    """The map as a small SVG picture; None where there is no map.

    At most 40 rows and 60 columns: what differs is kept of more rows, and of more steps several share a column, which
    shows the worst of them.

    Args:
        found: What ``step_map`` gave.
    """
    small = condensed(found, _MOST_ROWS, _MOST_COLUMNS)
    if small is None:
        return None
    columns, rows = small["columns"], small["rows"]
    width = _MARGIN + _WIDTH * len(columns) + 8
    height = _HEIGHT * len(rows) + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        ' font-size="11" fill="#7d8790">'
    ]
    for number, (name, states) in enumerate(rows):
        top = number * _HEIGHT
        parts.append(f'<text x="{_MARGIN - 8}" y="{top + 12}" text-anchor="end">{_text(name)}</text>')
        for column, worst in enumerate(states):
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
    shown = "".join(c if c.isprintable() else "�" for c in said(name))
    return escape(shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…")
