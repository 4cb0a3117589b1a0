"""The cosine between two series of numbers, added up piece by piece: sums of products that cannot overflow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_PIECE = 1 << 15
"""Elements that are looked at together: as many as a processor's cache holds."""
_SMALL, _LARGE = 1e-100, 1e100
"""Between them squares and their sums are ordinary float64."""
_Scaled = tuple[float, int]
"""A number as a float and the power of two that it is multiplied by."""


@dataclass(frozen=True, slots=True)
class Products:
    """The products of two series of numbers so far, in float64.

    Example:
        >>> Products.of(np.array([1.0, 0.0]), np.array([1.0, 1.0])).cosine
        0.7071067811865475
    """

    both: _Scaled = (0.0, 0)
    """Sum of the products of one with the other."""
    left: _Scaled = (0.0, 0)
    """Sum of the squares of one; the power is even."""
    right: _Scaled = (0.0, 0)
    """Sum of the squares of the other."""

    @classmethod
    def of(cls, a: Array, b: Array) -> Products:
        """Those of two arrays of one axis and one length; a complex number counts as its two parts."""
        total = cls()
        for start in range(0, a.size, _PIECE):
            x, power_x = _scaled(a[start : start + _PIECE])
            left = _product(x, x)
            if a is b:
                same = (left, 2 * power_x)
                total = total.plus(cls(same, same, same))
                continue
            y, power_y = _scaled(b[start : start + _PIECE])
            both, right = _product(x, y), _product(y, y)
            total = total.plus(cls((both, power_x + power_y), (left, 2 * power_x), (right, 2 * power_y)))
        return total

    def plus(self, other: Products) -> Products:
        """Those of both pieces."""
        return Products(_sum(self.both, other.both), _sum(self.left, other.left), _sum(self.right, other.right))

    @property
    def cosine(self) -> float:
        """Between -1 and 1; NaN where a number is not finite, or where one side is all zeros."""
        if not self.left[0] or not self.right[0] or not math.isfinite(self.left[0] + self.right[0]):
            return math.nan
        ratio = self.both[0] / (math.sqrt(self.left[0]) * math.sqrt(self.right[0]))
        return max(-1.0, min(1.0, math.ldexp(ratio, self.both[1] - (self.left[1] + self.right[1]) // 2)))


def _product(x: Array, y: Array) -> float:
    """Not ``np.dot``, whose threads wait for each other on a busy machine."""
    return float(np.einsum("i,i->", x, y))


def _scaled(values: Array) -> tuple[Array, int]:
    """Values as float64 whose squares are in range, and the power of two that was taken out for it."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other
        wide = values.astype(np.complex128).view(np.float64) if values.dtype.kind == "c" else values.astype(np.float64)
    top = max(float(wide.max()), -float(wide.min()))
    if not math.isfinite(top):
        return np.full_like(wide, math.nan), 0
    if _SMALL < top < _LARGE:
        return wide, 0
    power = math.frexp(top)[1]
    return np.ldexp(wide, -power), power


def _sum(one: _Scaled, two: _Scaled) -> _Scaled:
    """The sum at the larger of the two powers, so that nothing overflows; zero has no power of its own."""
    if not one[0] or not two[0]:
        return one if one[0] else two
    power = max(one[1], two[1])
    return math.ldexp(one[0], one[1] - power) + math.ldexp(two[0], two[1] - power), power
