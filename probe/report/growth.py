"""How the error between two runs grows, tag by tag and step by step, and where it first jumps.

The error of a tag at a step is the largest of all its entries there, on all ranks, whose values were kept; entries that
are the same have none. A tag jumps at the first step at which its largest relative error is above ``FLOOR`` and more
than ``FACTOR`` times the largest of all earlier steps of that tag, of which there must be one. The first jump is the
one at the earliest step, and among tags of one step that of the tag which is computed first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from probe.compare import Cell, KeyDataComparison
from probe.language import tell
from probe.report.summary import cosine_of, tag_order
from probe.store.numeric import strict_number

FLOOR = 1e-3
"""Relative errors up to this are no jump, however they grow."""
FACTOR = 10.0
"""How many times the largest error seen before a jump is."""
JUMP_IN_WORDS = tell(
    "a tag jumps at the first step at which its largest relative error is above {floor:g} and more than {factor:g}"
    " times the largest of all its earlier steps",
    floor=FLOOR,
    factor=FACTOR,
)


@dataclass(frozen=True, slots=True)
class Growth:
    """The error of one tag at one step.

    Example:
        >>> Growth("loss", 3, 0.5, 0.1, 12, 0.99).as_dict()["cosine"]
        0.99
    """

    tag: str
    step: int
    max_absolute: float | int | None
    """None, as the others, where something differs and no values were kept."""
    max_relative: float | None
    max_ulp: int | None
    cosine: float | None
    """Of the values of all entries that differ, in a row, in float64; 1 where all are the same, NaN where a number is
    not finite or one run has only zeros."""

    def as_dict(self) -> dict[str, Any]:
        """The same as strict JSON: infinity and NaN are text."""
        numbers = {name: getattr(self, name) for name in ("max_absolute", "max_relative", "max_ulp", "cosine")}
        strict = {name: None if number is None else strict_number(number) for name, number in numbers.items()}
        return {"tag": self.tag, "step": self.step, **strict}


@dataclass(frozen=True, slots=True)
class Jump:
    """Where the error first jumps; see the module.

    Example:
        >>> Jump("responses", 4, 1.0, 0.0).as_dict()["step"]
        4
    """

    tag: str
    step: int
    max_relative: float
    before: float
    """The largest relative error of the tag's earlier steps."""

    def as_dict(self) -> dict[str, Any]:
        """The same as strict JSON."""
        errors = {"max_relative": strict_number(self.max_relative), "before": strict_number(self.before)}
        return {"step": self.step, "tag": self.tag, **errors}


def growth_of(comparison: KeyDataComparison) -> list[Growth]:
    """The error of every tag that differs somewhere in numbers, at each of its steps; nothing where none does.

    Args:
        comparison: What was found.
    """
    found: dict[tuple[int, str], list[Cell]] = {}
    for (tag, step, _), cell in comparison.cells.items():
        found.setdefault((step, tag), []).append(cell)
    differing = {tag for (_, tag), cells in found.items() if any(cell.max_absolute is not None for cell in cells)}
    places = sorted(found, key=lambda place: (place[0], tag_order(place[1]), place[1]))
    return [_growth(tag, step, found[step, tag]) for step, tag in places if tag in differing]


def jumps(rows: Iterable[Growth]) -> list[Jump]:
    """The jump of every tag that has one, the first jump first.

    Args:
        rows: By step and causal order, as ``growth_of`` gives them.
    """
    found: dict[str, Jump] = {}
    largest: dict[str, float] = {}
    for row in rows:
        error, before = row.max_relative, largest.get(row.tag)
        if error is None:
            continue
        if before is not None and error > FLOOR and error > FACTOR * before:
            found.setdefault(row.tag, Jump(row.tag, row.step, error, before))
        largest[row.tag] = max(error, before or 0.0)
    return list(found.values())


def _growth(tag: str, step: int, cells: list[Cell]) -> Growth:
    if all(cell.first is None for cell in cells):
        return Growth(tag, step, 0.0, 0.0, 0, 1.0)
    absolute = [cell.max_absolute for cell in cells if cell.max_absolute is not None]
    relative = [cell.max_relative for cell in cells if cell.max_relative is not None]
    ulp = [cell.max_ulp for cell in cells if cell.max_ulp is not None]
    return Growth(
        tag,
        step,
        max(absolute, default=None),
        max(relative, default=None),
        max(ulp, default=None),
        cosine_of(cells),
    )
