"""How two arrays differ, element by element, by their bits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.compare.cosine import Products
from probe.compare.ulp import FORMATS, distances
from probe.language import join, tell

Array = npt.NDArray[Any]

CHUNK = 1 << 20
"""Elements looked at together."""
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


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
    max_absolute: float | int
    """Largest absolute difference, exact for integers; infinite where one side is not finite, or where it overflows."""
    max_relative: float
    """Largest absolute difference over the larger magnitude."""
    max_ulp: int | None
    """Largest distance in units in the last place, 1 for neighbours; of integers the absolute difference. None where
    one side alone is NaN, for a type without a known format, and between two types."""
    only_zeros: int = 0
    """Differing elements that are zeros of different sign."""
    only_nans: int = 0
    """Differing elements that are NaN in both, with other bits."""
    products: Products = field(default_factory=Products, repr=False, compare=False)
    """What the cosine of all elements, also those that are the same, comes from: exact but for rounding."""

    @property
    def harmless(self) -> str | None:
        """What all differing elements have in common when they are the same numbers: the sign of zero, NaN's bits."""
        if self.count != self.only_zeros + self.only_nans:
            return None
        kinds = [
            *[tell("the sign of zeros")] * bool(self.only_zeros),
            *[tell("the payload of NaN")] * bool(self.only_nans),
        ]
        return join(" and ", kinds)


def describe(
    left: Array, right: Array, dtype: str | None = None, *, across_types: bool = False
) -> ValueDifference | None:
    """Compares two arrays of one shape, piece by piece; None when every bit is the same.

    Args:
        left: One array.
        right: The other.
        dtype: Name of the type that the numbers had, where the arrays hold them in a wider one, such as ``bfloat16``.
        across_types: The numbers had two types: they are compared as float64 or complex128, without units in the last
            place.

    Raises:
        ValueError: The shapes or dtypes differ.
    """
    if left.shape != right.shape or (left.dtype != right.dtype and not across_types):
        raise ValueError(f"{left.dtype}{left.shape} and {right.dtype}{right.shape} have no common elements")
    name = dtype if dtype in FORMATS else left.dtype.name
    wide = np.complex128 if "c" in (left.dtype.kind, right.dtype.kind) else np.float64
    products = Products()
    first: int | None = None
    pair: tuple[Any, Any] = (None, None)
    count, zeros, nans, absolute, relative = 0, 0, 0, 0, 0.0
    ulp: int | None = 0
    one, two = _flat(left), _flat(right)
    for start in range(0, left.size, CHUNK):
        a, b = np.asarray(one[start : start + CHUNK]), np.asarray(two[start : start + CHUNK])
        if across_types:
            a, b = _widened(a, wide), _widened(b, wide)
        differs = np.flatnonzero(bits_differ(a, b))
        products = products.plus(Products.of(a, b if differs.size else a))
        if differs.size == 0:
            continue
        if first is None:
            first, pair = start + int(differs[0]), (a[differs[0]].item(), b[differs[0]].item())
        errors = _errors(a[differs], b[differs], name)
        count, zeros, nans = count + int(differs.size), zeros + errors.zeros, nans + errors.nans
        absolute, relative = max(absolute, errors.absolute), max(relative, errors.relative)
        ulp = None if across_types or ulp is None or errors.ulp is None else max(ulp, errors.ulp)
    if first is None:
        return None
    index = tuple(int(axis) for axis in np.unravel_index(first, left.shape)) if left.shape else ()
    return ValueDifference(index, pair, count, int(left.size), absolute, relative, ulp, zeros, nans, products)


def bits_differ(a: Array, b: Array) -> Array:
    """Which elements of two arrays of one size and dtype have different bits, in row-major order; bool, flat."""
    width = a.dtype.itemsize
    word = _WORDS.get(width, np.uint64)  # complex128 is two words
    one, two = (np.ascontiguousarray(x).reshape(-1).view(word) for x in (a, b))
    differs = one != two
    return np.asarray(differs if width <= 8 else differs.reshape(a.size, -1).any(axis=1))


def _widened(values: Array, wide: type[np.number[Any]]) -> Array:
    with np.errstate(invalid="ignore"):  # a signalling NaN is a value like any other
        return values.astype(wide)


def _flat(values: Array) -> Any:
    """The elements in row-major order, to be sliced; a mapped array is not loaded for it."""
    return values.reshape(-1) if values.flags.c_contiguous else values.flat


@dataclass(frozen=True, slots=True)
class _Errors:
    absolute: Any
    relative: float
    ulp: int | None
    zeros: int
    nans: int


def _errors(a: Array, b: Array, dtype: str) -> _Errors:
    """Errors of elements whose bits differ; a and b have one axis."""
    if a.dtype.kind in "iub":
        return _integer_errors(a, b)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        x, y = a.astype(wide), b.astype(wide)
        parts_x, parts_y = x.view(np.float64).reshape(len(x), -1), y.view(np.float64).reshape(len(y), -1)
        both_nan = np.isnan(parts_x) & np.isnan(parts_y)
        one_nan = np.isnan(parts_x) ^ np.isnan(parts_y)
        gap = np.where(both_nan | (parts_x == parts_y), 0.0, np.abs(parts_x - parts_y))
        gap = np.where(np.isnan(gap), np.inf, gap)
        absolute = gap[:, 0] if gap.shape[1] == 1 else np.hypot(gap[:, 0], gap[:, 1])
        # parts that are NaN in both do not differ, and have no magnitude
        x, y = (np.where(both_nan, 0.0, parts).view(wide)[:, 0] for parts in (parts_x, parts_y))
        scale = np.fmax(np.abs(x), np.abs(y))
        ratio = np.where(np.isfinite(absolute) & np.isfinite(scale), absolute / scale, _scaled_ratio(x, y))
        # a finite distance of what is infinite in both, in one part of a complex number, is none beside its magnitude
        ratio = np.where(np.isfinite(x) & np.isfinite(y), ratio, np.where(np.isfinite(absolute), 0.0, np.inf))
        relative = np.where(absolute == 0, 0.0, ratio)
        same_number = ((_parts(a) == _parts(b)) | both_nan).all(axis=1)  # in their own type
        ulp = None
        if dtype in FORMATS and not one_nan.any():
            flat_x, flat_y, kept = parts_x.reshape(-1), parts_y.reshape(-1), ~both_nan.reshape(-1)
            apart = distances(flat_x[kept], flat_y[kept], dtype)
            ulp = int(apart.max()) if apart.size else 0
    nans = int((same_number & both_nan.any(axis=1)).sum())
    return _Errors(float(absolute.max()), float(relative.max()), ulp, int(same_number.sum()) - nans, nans)


def _parts(values: Array) -> Array:
    """The real numbers that values are made of; one row each."""
    return np.asarray(values.view(values.real.dtype).reshape(len(values), -1))


def _scaled_ratio(x: Array, y: Array) -> Array:
    """The relative error where the difference or a magnitude is too large for its type."""
    largest = np.maximum(np.abs(_parts(x)).max(axis=1), np.abs(_parts(y)).max(axis=1))
    one, two = x / largest, y / largest
    ratio: Array = np.abs(one / 2 - two / 2) / (np.maximum(np.abs(one), np.abs(two)) / 2)
    return ratio


def _integer_errors(a: Array, b: Array) -> _Errors:
    """Exact: the difference of two 64-bit integers, of either sign, fits into 64 bits without a sign."""
    unsigned = np.uint64
    x, y = (v.astype(np.int64 if v.dtype.kind == "i" else unsigned).view(unsigned) for v in (a, b))
    apart = np.where(a > b, x - y, y - x)
    top = int(apart.max())
    scale = np.maximum(_magnitude(a), _magnitude(b))
    relative = float((apart.astype(np.float64) / scale).max())
    return _Errors(top, relative, top, 0, 0)


def _magnitude(values: Array) -> Array:
    return np.abs(values.astype(np.float64))
