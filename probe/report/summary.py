"""The key data by tag and step: for ``verdict.json``, and as ``keydata/summary.xlsx`` for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from io import BytesIO
from pathlib import Path
from typing import Any

from openpyxl import Workbook
from openpyxl.cell import WriteOnlyCell
from openpyxl.styles import Font

from probe.compare import Cell, KeyDataComparison
from probe.compare.cosine import Products
from probe.compare.entries import Status
from probe.language import counted, join, recall, tell
from probe.store.numeric import strict_number
from probe.store.writer import write_atomic
from probe.types import TAGS

SUMMARY = "summary.xlsx"
"""Its name in a check's folder ``keydata``."""
_MOST_ROWS = 1_000_000
"""A sheet ends at 1,048,576 rows."""
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What an XML 1.0 document may not hold (section 2.2, Char)."""
_MOST_TEXT = 30_000
"""A cell ends at 32,767 characters."""

_STATUSES: tuple[Status, ...] = ("same", "different", "missing", "extra", "unreadable", "not_compared")
_COLUMNS = (
    *("step", "tag", *_STATUSES, "ranks", "elements_differing", "max_absolute", "max_relative", "max_ulp", "cosine"),
    *("first_rank", "first_micro_step", "first_path", "first_call", "first_status"),
    *("first_index", "first_a", "first_b", "first_harmless"),
)


def summary_rows(comparison: KeyDataComparison) -> Iterator[dict[str, Any]]:
    """One row for every step and tag, in execution order as far as it is known.

    Errors are those of all entries whose values were kept; null where there were none. ``max_ulp`` counts units in the
    last place of the recorded type. ``cosine`` is that of the values of all entries that differ, in a row. Numbers are
    strict JSON: infinity and NaN are text.

    Args:
        comparison: What was found.
    """
    found: dict[tuple[int, str], list[tuple[int, Cell]]] = {}
    for (tag, step, rank), cell in comparison.cells.items():
        found.setdefault((step, tag), []).append((rank, cell))
    for step, tag in sorted(found, key=lambda where: (where[0], tag_order(where[1]), where[1])):
        cells = found[step, tag]
        entries = [cell.first for _, cell in cells if cell.first is not None]
        first = min(entries, key=lambda entry: (*entry.order, entry.rank), default=None)
        difference = first.difference if first else None
        yield {
            "step": step,
            "tag": tag,
            **{status: sum(cell.counts[status] for _, cell in cells) for status in _STATUSES},
            "ranks": sorted(rank for rank, cell in cells if cell.first is not None),
            "elements_differing": _sum([cell.elements for _, cell in cells]),
            "max_absolute": _largest([cell.max_absolute for _, cell in cells]),
            "max_relative": _largest([cell.max_relative for _, cell in cells]),
            "max_ulp": _largest([cell.max_ulp for _, cell in cells]),
            "cosine": _plain_or_none(cosine_of([cell for _, cell in cells])),
            "first": None
            if first is None
            else {
                "rank": first.rank,
                "micro_step": first.record.micro_step,
                "path": first.record.path or None,
                "call": first.record.call,
                "status": first.status,
                "index": list(difference.first_index) if difference else None,
                "a": _plain(difference.values[0]) if difference else None,
                "b": _plain(difference.values[1]) if difference else None,
                "harmless": first.harmless,
            },
        }


def write_summary(comparison: KeyDataComparison, folder: Path) -> Path:
    """Writes ``summary.xlsx``: what does not agree is bold, and no text is a formula.

    Args:
        comparison: What was found.
        folder: Receives the file; is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    book = Workbook(write_only=True)
    sheet = book.create_sheet("key data")
    sheet.freeze_panes = "C2"
    sheet.append([_cell(sheet, column, bold=True) for column in _COLUMNS])
    for number, row in enumerate(summary_rows(comparison)):
        if number == _MOST_ROWS:
            sheet.append(
                [_cell(sheet, "more steps and tags than a sheet has rows: verdict.json has those that differ")]
            )
            break
        first = row.pop("first") or {}
        flat = {**row, **{f"first_{name}": value for name, value in first.items()}}
        sheet.append([_cell(sheet, flat.get(column), bold=bool(first)) for column in _COLUMNS])
    content = BytesIO()
    book.save(content)
    path = folder / SUMMARY
    write_atomic(path, content.getvalue())
    return path


def summary_lines(rows: list[dict[str, Any]], most: int = 10) -> list[str]:
    """The first rows for a terminal, one line each.

    Args:
        rows: Rows of ``verdict.json`` in which something is not the same.
        most: Most rows that are shown; the rest is counted.
    """
    lines = [_line(row) for row in rows[:most]]
    return lines + ([tell("{more} more steps and tags", more=len(rows) - most)] if len(rows) > most else [])


def _line(row: dict[str, Any]) -> str:
    parts = join(", ", (counted(row[status], status) for status in _STATUSES if row[status]))
    first = row["first"]
    text = tell("step {step}, {tag}: {counted}", step=row["step"], tag=row["tag"], counted=parts)
    if first["index"] is not None:
        place = f"{first['path']} {first['index']}" if first["path"] else first["index"]
        text += tell("; first at {place}: {a} against {b}", place=place, a=first["a"], b=first["b"])
    if row["max_ulp"] is not None:
        error = row["max_absolute"]  # text where it is infinite
        size = error if isinstance(error, str) else f"{error:.3g}"
        text += tell(
            "; {elements} elements, by {size} or {ulp} ULP at most",
            elements=row["elements_differing"], size=size, ulp=row["max_ulp"],
        )  # fmt: skip
    return text + (tell("; only {harmless}", harmless=recall(first["harmless"])) if first["harmless"] else "")


def tag_order(tag: str) -> int:
    """Where a tag stands in the causal order; unknown ones come last."""
    return TAGS.index(tag) if tag in TAGS else len(TAGS)


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _largest(values: list[Any]) -> float | int | str | None:
    known = [value for value in values if value is not None]
    return strict_number(max(known)) if known else None


def cosine_of(cells: list[Cell]) -> float | None:
    """The cosine of the values of all entries that differ; None where none were kept."""
    kept = [cell.products for cell in cells if cell.products is not None]
    return reduce(Products.plus, kept).cosine if kept else None


def _plain_or_none(value: float | None) -> float | int | str | None:
    return None if value is None else strict_number(value)


def _plain(value: Any) -> Any:
    """A number as strict JSON."""
    if isinstance(value, complex):
        return str(value)
    return strict_number(value)


def _cell(sheet: Any, value: Any, bold: bool = False) -> Any:
    """A cell that shows a value as it is: text never runs as a formula, a number keeps all its digits."""
    exact = value is None or (isinstance(value, int) and abs(value) < 2**53)
    text = None if exact else _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", str(value))[:_MOST_TEXT]
    cell = WriteOnlyCell(sheet, value if exact else text)
    if text is not None:
        cell.data_type = "s"
        cell.quotePrefix = text.startswith(("=", "+", "-", "@"))
    cell.font = Font(bold=bold)
    return cell
