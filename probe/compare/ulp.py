"""Distances in units in the last place, for every floating-point type, also where its numbers are kept in a wider one.

The distance of two floats is how many representable numbers lie between them, plus one: the difference of their places
in the ordered list of all numbers of the type (B. Dawson, "Comparing Floating Point Numbers", 2012).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FORMATS: dict[str, tuple[int, int]] = {
    "float64": (52, -1022),
    "complex128": (52, -1022),
    "float32": (23, -126),
    "complex64": (23, -126),
    "bfloat16": (7, -126),
    "float16": (10, -14),
    "complex32": (10, -14),
    "float8_e5m2": (2, -14),
    "float8_e5m2fnuz": (2, -15),
    "float8_e4m3fn": (3, -6),
    "float8_e4m3fnuz": (3, -7),
    "float8_e8m0fnu": (0, -127),
}
"""Bits of the stored significand and the smallest normal exponent of each type (IEEE 754; OCP 8-bit formats)."""


def distances(a: Array, b: Array, dtype: str) -> Array:
    """Distance of each pair of real numbers of a floating-point type.

    Args:
        a: Finite or infinite numbers of the type, in it or in a wider one; one axis.
        b: Others, of the same size.
        dtype: The type's name.

    Returns:
        uint64, of the same size; 0 for zeros of different sign.

    Raises:
        KeyError: The type is not in ``FORMATS``.
    """
    one, two = _place(a, dtype), _place(b, dtype)
    apart = np.where(one > two, one - two, two - one)
    across = np.signbit(a) != np.signbit(b)
    return np.asarray(np.where(across, one + two, apart))


def _place(values: Array, dtype: str) -> Array:
    """How many numbers of the type lie between 0 and the magnitude of each value; uint64."""
    bits, least = FORMATS[dtype]
    magnitude = np.abs(values.astype(np.float64))
    infinite = np.isinf(magnitude)
    significand, power = np.frexp(np.where(infinite, 0.0, magnitude))  # in [0.5, 1): power is the exponent plus one
    exponent = np.where(significand == 0, least, np.maximum(power.astype(np.int64) - 1, least))
    scaled = np.ldexp(significand, power - exponent + bits).astype(np.uint64)
    place = (exponent - least).astype(np.uint64) * np.uint64(1 << bits) + scaled
    top = np.uint64((3 - 2 * least) << bits)  # where infinity stands in the formats that have one
    return np.asarray(np.where(infinite, top, place))
