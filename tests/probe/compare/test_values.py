"""How two arrays differ: every bit counts, the first index is right, errors do not wrap."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probe.compare import values
from probe.compare.values import describe

ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.dtype(name) for name in ("u1", "i8", "f2", "f4", "f8", "c8", "?")]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=5),
)


@given(array=ARRAYS)
def test_an_array_does_not_differ_from_its_copy(array: Any) -> None:
    assert describe(array, array.copy()) is None


@given(array=ARRAYS, where=st.integers(min_value=0))
def test_one_flipped_bit_anywhere_is_found_at_its_index(array: Any, where: int) -> None:
    raw = np.frombuffer(array.tobytes(), np.uint8).copy()
    bit = where % (8 * raw.size)
    raw[bit // 8] ^= 1 << bit % 8
    other = raw.view(array.dtype).reshape(array.shape)
    found = describe(array, other)
    assert found is not None
    flat = bit // 8 // array.dtype.itemsize
    assert found.first_index == tuple(int(axis) for axis in np.unravel_index(flat, array.shape))
    assert (found.count, found.size) == (1, array.size)
    assert found.max_absolute >= 0
    assert found.max_relative >= 0


def test_the_first_index_is_found_behind_the_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "CHUNK", 7)
    left = np.zeros((10, 10), np.float32)
    right = left.copy()
    right[4, 2] = right[9, 9] = 1
    found = describe(left, right)
    assert found is not None
    assert (found.first_index, found.count) == ((4, 2), 2)


@pytest.mark.parametrize(
    ("left", "right", "absolute", "relative"),
    [
        (np.uint8(1), np.uint8(3), 2, 2 / 3),
        (np.int64(2**63 - 1), np.int64(-(2**63)), 2.0**64, 2.0),
        (np.float32(1), np.float32(1.5), 0.5, 1 / 3),
        (np.float32(0.0), np.float32(-0.0), 0, 0),
        (np.float32(np.nan), np.float32(1), math.inf, math.inf),
        (np.float32(np.inf), np.float32(1), math.inf, math.inf),
        (np.float32(np.inf), np.float32(-np.inf), math.inf, math.inf),
        (np.bool_(True), np.bool_(False), 1, 1),
        (np.complex64(3 + 4j), np.complex64(0), 5, 1),
    ],
)
def test_errors_are_right_and_never_wrap(left: Any, right: Any, absolute: float, relative: float) -> None:
    found = describe(np.asarray(left), np.asarray(right))
    assert found is not None
    assert found.max_absolute == pytest.approx(absolute)
    assert found.max_relative == pytest.approx(relative)


def test_the_largest_error_is_not_the_first() -> None:
    found = describe(np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.25, 4.0]))
    assert found is not None
    assert (found.first_index, found.values, found.max_absolute) == ((1,), (2.0, 2.25), 1.0)


def test_nan_payloads_differ_with_no_error() -> None:
    left, right = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001))
    found = describe(left, right)
    assert found is not None
    assert (found.count, found.max_absolute) == (1, 0)


@pytest.mark.parametrize(
    ("left", "right"),
    [(np.zeros(6), np.zeros((2, 3))), (np.zeros(3), np.zeros(5)), (np.zeros(2), np.zeros(2, np.float32))],
)
def test_arrays_without_common_elements_are_refused(left: Any, right: Any) -> None:
    with pytest.raises(ValueError, match="no common elements"):
        describe(left, right)


def test_empty_arrays_do_not_differ() -> None:
    assert describe(np.zeros((0, 3)), np.zeros((0, 3))) is None


def test_arrays_in_another_memory_order_are_compared_by_index() -> None:
    left = np.arange(6.0).reshape(2, 3)
    assert describe(left, np.asfortranarray(left)) is None
    other = np.asfortranarray(left)
    other[1, 0] = 9
    found = describe(left, other)
    assert found is not None
    assert found.first_index == (1, 0)
