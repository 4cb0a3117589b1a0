"""A line chart as numbers for the report's SVG: one line a tag over the steps, errors on a logarithmic scale."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from probe.language import tell

WIDTH, HEIGHT = 860, 280
LEFT, RIGHT, TOP, BOTTOM = 62, 12, 14, 34
MOST_POINTS = 400
"""Most points of a line: of more steps, each point is the largest of several."""
MOST_LINES = 24
COLOURS = 12
"""Colours that the template has; one for each known tag."""
_DECADES = 18
"""Most powers of ten that the axis spans; what is smaller lies on the line of zero."""
_TICKS = 6

Point = tuple[int, float | None]
"""A step and its error; None where it is not known."""


@dataclass(frozen=True, slots=True)
class Line:
    """One tag's line.

    Example:
        >>> Line("loss", ("0,0 1,1",), ((0.0, 0.0, "step 0: 0"),), 0).tag
        'loss'
    """

    tag: str
    parts: tuple[str, ...]
    """SVG points of each unbroken part."""
    dots: tuple[tuple[float, float, str], ...]
    """Place and text of each point."""
    colour: int


def chart(series: dict[str, list[Point]], jump: int | None = None) -> dict[str, Any] | None:
    """Everything that the template draws; None where no error is known that is above zero.

    Args:
        series: Steps and errors of each tag, by step; errors are not negative.
        jump: A step to mark.
    """
    shown = dict(list(series.items())[:MOST_LINES])
    known = [error for points in shown.values() for _, error in points if error is not None and error > 0]
    if not known:
        return None
    steps = [step for points in shown.values() for step, _ in points]
    first, last = min(steps), max(steps)
    finite = [error for error in known if math.isfinite(error)] or [1.0]
    high = math.floor(math.log10(max(finite))) + 1
    low = max(math.floor(math.log10(min(finite))), high - _DECADES)
    span = last - first or 1

    def x(step: float) -> float:
        return round(LEFT + (step - first) / span * (WIDTH - LEFT - RIGHT), 1)

    def height(power: float) -> float:
        return round(TOP + (high - power) / (high - low + 1) * (HEIGHT - TOP - BOTTOM), 1)

    def y(error: float) -> float:
        return height(high if math.isinf(error) else max(math.log10(error), low - 1) if error > 0 else low - 1)

    stride = max(1, -(-(high - low) // _TICKS))
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "bottom": HEIGHT - BOTTOM,
        "top": TOP,
        "lines": [_line(tag, _thinned(points), x, y, index) for index, (tag, points) in enumerate(shown.items())],
        "levels": [(height(low - 1), "0"), *((height(power), f"1e{power}") for power in range(low, high + 1, stride))],
        "steps": [(x(step), step) for step in _marks(first, last)],
        "jump": None if jump is None else x(jump),
        "left_out": len(series) - len(shown),
        "infinite": any(math.isinf(error) for error in known),
    }


def _line(tag: str, points: list[Point], x: Any, y: Any, index: int) -> Line:
    parts: list[list[str]] = [[]]
    dots = []
    for step, error in points:
        if error is None:
            parts.append([])
            continue
        parts[-1].append(f"{x(step)},{y(error)}")
        dots.append((x(step), y(error), tell("{tag}, step {step}: {error:.3g}", tag=tag, step=step, error=error)))
    return Line(tag, tuple(" ".join(part) for part in parts if part), tuple(dots), index % COLOURS)


def _thinned(points: list[Point]) -> list[Point]:
    """At most ``MOST_POINTS`` points: the largest error of each few steps."""
    size = -(-len(points) // MOST_POINTS)
    if size <= 1:
        return points
    return [_largest(points[start : start + size]) for start in range(0, len(points), size)]


def _largest(points: Iterable[Point]) -> Point:
    return max(points, key=lambda point: -1.0 if point[1] is None else point[1])


def _marks(first: int, last: int) -> list[int]:
    """Round steps for the axis, at most some ten."""
    span = last - first
    if span == 0:
        return [first]
    size = 10 ** max(0, math.floor(math.log10(span / 10)) + 1)
    stride = next(size // part for part in (10, 5, 2, 1) if size % part == 0 and span / max(1, size // part) <= 12)
    return list(range(first + -first % stride, last + 1, stride))
