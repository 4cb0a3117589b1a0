"""How two arrays differ, element by element, by their bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CHUNK = 1 << 20
"""Elements looked at together."""


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """How two arrays of one shape and dtype differ.

    Example:
        >>> describe(np.array([1.0, 2.0]), np.array([1.0, 2.5])).first_index
        (1,)
    """

    first_index: tuple[int, ...]
    """Index of the first element, in row-major order, whose bits differ."""
    values: tuple[Any, Any]
    """The two elements there."""
    count: int
    """Elements whose bits differ."""
    size: int
    """Elements in all."""
    max_absolute: float
    """Largest absolute difference; infinite where only one side is finite, and 0 where only bits of zeros differ."""
    max_relative: float
    """Largest absolute difference over the larger magnitude."""


def describe(left: Array, right: Array) -> ValueDifference | None:
    """Compares two arrays of one shape and dtype; None when every bit is the same.

    Raises:
        ValueError: The shapes or dtypes differ.
    """
    if left.shape != right.shape or left.dtype != right.dtype:
        raise ValueError(f"{left.dtype}{left.shape} and {right.dtype}{right.shape} have no common elements")
    first: int | None = None
    count, absolute, relative = 0, 0.0, 0.0
    flat_left, flat_right = left.reshape(-1), right.reshape(-1)
    for start in range(0, left.size, CHUNK):
        a, b = flat_left[start : start + CHUNK], flat_right[start : start + CHUNK]
        differs = np.flatnonzero(bits_differ(a, b))
        if differs.size == 0:
            continue
        first = start + int(differs[0]) if first is None else first
        count += int(differs.size)
        chunk_absolute, chunk_relative = _errors(a[differs], b[differs])
        absolute, relative = max(absolute, chunk_absolute), max(relative, chunk_relative)
    if first is None:
        return None
    index = tuple(int(axis) for axis in np.unravel_index(first, left.shape)) if left.shape else ()
    pair = (flat_left[first].item(), flat_right[first].item())
    return ValueDifference(index, pair, count, int(left.size), absolute, relative)


def bits_differ(a: Array, b: Array) -> Array:
    """Which elements of two arrays of one size and dtype have different bits, in row-major order; bool, flat."""
    width = a.dtype.itemsize
    rows = [np.ascontiguousarray(x).view(np.uint8).reshape(-1, width) for x in (a, b)]
    return np.asarray((rows[0] != rows[1]).any(axis=1))


def _errors(a: Array, b: Array) -> tuple[float, float]:
    """Largest absolute and relative difference of elements whose bits differ; integers never wrap."""
    wide = np.clongdouble if np.iscomplexobj(a) else np.longdouble
    with np.errstate(all="ignore"):
        x, y = a.astype(wide), b.astype(wide)
        absolute = np.abs(x - y)
        both_nan = np.isnan(x) & np.isnan(y)
        same_infinity = x == y
        absolute = np.where(both_nan | same_infinity, 0, np.where(np.isnan(absolute), np.inf, absolute))
        scale = np.maximum(np.abs(x), np.abs(y))
        relative = np.where(absolute == 0, 0, np.where(np.isfinite(absolute), absolute / scale, np.inf))
    return float(absolute.max()), float(relative.max())
