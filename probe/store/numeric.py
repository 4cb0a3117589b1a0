"""An array's numbers while they are written: widened a part at a time, their statistics, and their ``.npy``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CHUNK = 1 << 18
"""Elements that are widened together for statistics."""


def as_it_is(part: Array) -> Array:
    """Elements that are numbers of a type that ``.npy`` holds."""
    return part


@dataclass(frozen=True, slots=True)
class Numbers:
    """An array's numbers, of which some at a time are made.

    Example:
        >>> Numbers(np.array([1.0, 2.0])).shape
        (2,)
    """

    stored: Array
    """The elements, row-major."""
    widen: Callable[[Array], Array] = as_it_is
    """Makes numbers of elements with one axis."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self.stored.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers."""
        return self.widen(np.zeros(1, self.stored.dtype)).dtype

    def parts(self) -> Iterator[Array]:
        """The numbers in order, at most ``CHUNK`` at a time; one axis."""
        flat = self.stored.reshape(-1)
        for start in range(0, flat.size, CHUNK):
            yield self.widen(flat[start : start + CHUNK])


def strict_number(value: float | int) -> float | int | str:
    """A number as any JSON parser reads it: NaN and infinity become strings."""
    return value if math.isfinite(value) else str(value)


def statistics(values: Numbers) -> dict[str, Any]:
    """The seed's statistics of an array: max, min, mean, norm (L2), shape.

    Sums are taken in float64. Complex arrays are described by their magnitudes. Empty arrays have null statistics, as
    there is no number to give.
    """
    shape = list(values.shape)
    if values.stored.size == 0:
        return {"max": None, "min": None, "mean": None, "norm": None, "shape": shape}
    total, squares, tops, lows = 0.0, 0.0, [], []
    with np.errstate(all="ignore"):
        for part in values.parts():
            reals = np.abs(part) if np.iscomplexobj(part) else part
            wide = reals.astype(np.float64)
            total += float(wide.sum())
            squares += float(np.dot(wide, wide))
            tops.append(reals.max())
            lows.append(reals.min())
        numbers = {
            "max": np.max(tops).item(),
            "min": np.min(lows).item(),
            "mean": total / values.stored.size,
            "norm": math.sqrt(squares),
        }
    return {**{name: strict_number(number) for name, number in numbers.items()}, "shape": shape}


def write_npy(stream: IO[bytes], values: Numbers) -> None:
    """Writes numbers as ``np.save`` does, whose own writing to a file does not say that the disk is full."""
    kind = np.lib.format.dtype_to_descr(values.dtype)
    header = {"descr": kind, "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(stream, header)
    for part in values.parts():
        stream.write(np.ascontiguousarray(part).view(np.uint8).data)
