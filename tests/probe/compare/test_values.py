"""How two arrays differ: every bit counts, the first index is right, errors do not wrap."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probe.compare import values
from probe.compare.values import describe

ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.dtype(name) for name in ("u1", "i8", "f2", "f4", "f8", "c8", "?")]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, max_side=5),
)


@given(array=ARRAYS)
@settings(deadline=None)
def test_an_array_does_not_differ_from_its_copy(array: Any) -> None:
    assert describe(array, array.copy()) is None


@given(array=ARRAYS, where=st.integers(min_value=0))
@settings(deadline=None)
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


# ---- integers and bools: exact, in every width ----

INTEGERS = [np.dtype(code) for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")]


@st.composite
def integer_pairs(draw: st.DrawFn) -> tuple[np.dtype[Any], list[int], list[int]]:
    dtype = draw(st.sampled_from(INTEGERS))
    limits = np.iinfo(dtype)
    low, high = int(limits.min), int(limits.max)
    numbers = st.integers(low, high) | st.sampled_from([low, low + 1, 0, 1, high - 1, high])
    pairs = draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=10))
    return dtype, [one for one, _ in pairs], [other for _, other in pairs]


@given(drawn=integer_pairs())
@settings(max_examples=200, deadline=None)
def test_integers_of_every_width_and_sign_are_exact(drawn: tuple[Any, list[int], list[int]]) -> None:
    dtype, left, right = drawn
    found = describe(np.array(left, dtype), np.array(right, dtype))
    apart = [abs(one - other) for one, other in zip(left, right, strict=True)]
    if not any(apart):
        assert found is None
        return
    assert found is not None
    first = next(index for index, gap in enumerate(apart) if gap)
    assert (found.first_index, found.values) == ((first,), (left[first], right[first]))
    assert (found.count, found.size) == (sum(map(bool, apart)), len(left))
    assert isinstance(found.max_absolute, int)
    assert (found.max_absolute, found.max_ulp) == (max(apart), max(apart))
    scales = (gap / max(abs(one), abs(other)) for gap, one, other in zip(apart, left, right, strict=True) if gap)
    assert found.max_relative == pytest.approx(max(scales))
    assert found.harmless is None


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        (np.uint8([1]), np.uint8([3]), (2, 2 / 3, 2)),  # SingleComparator: 254
        (np.uint8([0]), np.uint8([255]), (255, 1.0, 255)),
        (np.int8([127]), np.int8([-128]), (255, 255 / 128, 255)),
        (np.int64([2**63 - 1]), np.int64([-(2**63)]), (2**64 - 1, 2.0, 2**64 - 1)),  # SingleComparator: 1
        (np.uint64([2**64 - 1]), np.uint64([0]), (2**64 - 1, 1.0, 2**64 - 1)),
        (np.int64([2**62 + 1]), np.int64([2**62]), (1, 2.0**-62, 1)),  # one double
        (np.bool_([True, False]), np.bool_([True, True]), (1, 1.0, 1)),
        (np.int64([0]), np.int64([5]), (5, 1.0, 5)),
    ],
)
def test_integers_and_bools_never_wrap(left: Any, right: Any, expected: tuple[int, float, int]) -> None:
    for pair in ((left, right), (right, left)):
        found = describe(*pair)
        assert found is not None
        assert (found.max_absolute, found.max_ulp) == (expected[0], expected[2])
        assert found.max_relative == pytest.approx(expected[1])


# ---- floating point: exact errors, and what is no number ----


@given(
    pairs=st.lists(
        st.tuples(st.floats(-1e300, 1e300), st.floats(-1e300, 1e300)),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_errors_of_doubles_are_the_exact_ones_rounded(pairs: list[tuple[float, float]]) -> None:
    found = describe(np.array([one for one, _ in pairs]), np.array([other for _, other in pairs]))
    exact = [abs(Fraction(one) - Fraction(other)) for one, other in pairs]
    if found is None or not any(exact):
        assert not any(exact)
        assert found is None or (found.harmless, found.max_relative, found.max_ulp) == ("the sign of zeros", 0, 0)
        return
    assert found.max_absolute == float(max(exact))
    relative = [
        gap / max(abs(Fraction(one)), abs(Fraction(other)))
        for gap, (one, other) in zip(exact, pairs, strict=True)
        if gap
    ]
    assert found.max_relative == pytest.approx(float(max(relative)))


def nan(payload: int = 0x7FC00000) -> Any:
    return np.array([payload], np.uint32).view(np.float32)[0]


def single(*values: Any) -> Any:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("left", "right", "expected", "harmless"),
    [
        pytest.param(single(1, nan()), single(1, 2), (math.inf, math.inf, None, 0, 0), None, id="one-nan"),
        pytest.param(single(nan(), 1), single(5, 3), (math.inf, math.inf, None, 0, 0), None, id="nan-and-a-number"),
        pytest.param(single(nan()), single(math.inf), (math.inf, math.inf, None, 0, 0), None, id="nan-and-infinity"),
        pytest.param(single(nan()), single(nan(0x7FC00001)), (0, 0, 0, 0, 1), "the payload of NaN", id="payload"),
        pytest.param(single(nan()), single(nan(0xFFC00000)), (0, 0, 0, 0, 1), "the payload of NaN", id="nan-s-sign"),
        pytest.param(single(nan()), single(nan(0x7F800001)), (0, 0, 0, 0, 1), "the payload of NaN", id="signalling"),
        pytest.param(single(0.0), single(-0.0), (0, 0, 0, 1, 0), "the sign of zeros", id="zeros"),
        pytest.param(
            single(0.0, nan(), -0.0),
            single(-0.0, nan(0x7FC00009), 0.0),
            (0, 0, 0, 2, 1),
            "the sign of zeros and the payload of NaN",
            id="zeros-and-payload",
        ),
        pytest.param(single(0.0, 1), single(-0.0, 2), (1, 0.5, 1 << 23, 1, 0), None, id="zeros-and-a-number"),
        pytest.param(
            single(nan(), 1), single(nan(0x7FC00001), 1.5), (0.5, 1 / 3, 1 << 22, 0, 1), None, id="payload-and-a-number"
        ),
        pytest.param(single(0.0), single(2.0), (2, 1, 0x40000000, 0, 0), None, id="zero-and-a-number"),
        pytest.param(single(0.0), single(1e-45), (2.0**-149, 1, 1, 0, 0), None, id="zero-and-the-smallest"),
        pytest.param(single(1e-45), single(-1e-45), (2.0**-148, 2, 2, 0, 0), None, id="across-zero"),
        pytest.param(
            single(math.inf), single(np.finfo(np.float32).max), (math.inf, math.inf, 1, 0, 0), None, id="infinity"
        ),
        pytest.param(
            single(math.inf), single(-math.inf), (math.inf, math.inf, 2 * 0x7F800000, 0, 0), None, id="infinities"
        ),
    ],
)
def test_numbers_that_are_no_ordinary_ones(left: Any, right: Any, expected: Any, harmless: str | None) -> None:
    for pair in ((left, right), (right, left)):
        found = describe(*pair)
        assert found is not None
        errors = (found.max_absolute, found.max_relative, found.max_ulp, found.only_zeros, found.only_nans)
        assert errors == pytest.approx(expected) if None not in expected else errors == expected
        assert found.harmless == harmless


def test_equal_infinities_and_nans_do_not_differ() -> None:
    values = single(math.inf, -math.inf, nan(), nan(0xFFC00001))
    assert describe(values, values.copy()) is None


def test_one_nan_anywhere_takes_the_distance_away_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "CHUNK", 2)
    found = describe(single(1, 2, nan(), 4, 5), single(1.5, 2, 3, 4, 9))
    assert found is not None
    assert (found.first_index, found.count, found.max_absolute, found.max_ulp) == ((0,), 3, math.inf, None)


def test_the_relative_error_of_the_largest_doubles() -> None:
    found = describe(np.array([1.7e308]), np.array([-1.7e308]))
    assert found is not None
    assert found.max_relative == pytest.approx(2.0)


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_long_doubles_of_a_foreign_dump(dtype: Any) -> None:
    found = describe(np.array([1, 2], dtype), np.array([1, 3], dtype))
    assert found is not None
    assert (found.first_index, found.count) == ((1,), 1)


@pytest.mark.skipif(np.finfo(np.longdouble).eps == np.finfo(np.float64).eps, reason="long doubles are doubles here")
def test_long_doubles_that_no_double_tells_apart_are_no_zeros() -> None:
    left = np.array([1], np.longdouble)
    found = describe(left, np.nextafter(left, np.array([2], np.longdouble)))
    assert found is not None
    assert (found.harmless, found.only_zeros) == (None, 0)


def test_the_relative_error_of_the_largest_complex_numbers() -> None:
    largest = complex(1.7e308, 1.7e308)
    found = describe(np.array([largest, 1.0]), np.array([-largest, 3.0]))
    assert found is not None
    assert found.max_relative >= 2 / 3


# ---- complex: by their parts ----


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize(
    ("left", "right", "expected", "harmless"),
    [
        ([1 + 1j], [4 + 5j], (5.0, 5 / abs(4 + 5j)), None),
        ([complex(1, 0.0)], [complex(1, -0.0)], (0, 0), "the sign of zeros"),
        ([complex(-0.0, 0.0)], [complex(0.0, -0.0)], (0, 0), "the sign of zeros"),
        ([complex(math.nan, 1)], [complex(-math.nan, 1)], (0, 0), "the payload of NaN"),
        ([complex(math.nan, 1)], [complex(math.nan, 2)], (1, 0.5), None),
        ([complex(math.nan, 1), 1], [complex(math.nan, 2), 4], (3, 0.75), None),
        ([complex(math.nan, 1)], [1 + 1j], (math.inf, math.inf), None),
        ([complex(math.inf, 1)], [complex(math.inf, 2)], (1, 0), None),
    ],
)
def test_complex_numbers(dtype: Any, left: Any, right: Any, expected: Any, harmless: str | None) -> None:
    found = describe(np.array(left, dtype), np.array(right, dtype))
    assert found is not None
    assert (found.max_absolute, found.max_relative) == pytest.approx(expected)
    assert found.harmless == harmless


def test_the_distance_of_complex_numbers_is_that_of_the_part_further_away() -> None:
    left = np.array([1 + 1j, 2 + 2j], np.complex64)
    right = left.copy()
    right.view(np.uint32)[:] += np.array([0, 3, 7, 1], np.uint32)
    found = describe(left, right)
    assert found is not None
    assert (found.first_index, found.count, found.max_ulp) == ((0,), 2, 7)


# ---- pieces and memory orders ----

PAIRS = hnp.array_shapes(min_dims=0, max_dims=3, max_side=5).flatmap(
    lambda shape: st.sampled_from(
        [np.dtype(name) for name in ("u1", "i8", "f2", "f4", "f8", "c8", "c16", "?")]
    ).flatmap(lambda dtype: st.tuples(hnp.arrays(dtype, shape), hnp.arrays(dtype, shape)))
)


@given(pair=PAIRS, chunk=st.integers(1, 7))
@settings(max_examples=100, deadline=None)
def test_the_answer_does_not_depend_on_the_size_of_the_pieces(pair: tuple[Any, Any], chunk: int) -> None:
    whole = describe(*pair)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "CHUNK", chunk)
        assert repr(describe(*pair)) == repr(whole)  # as text, in which NaN is NaN


@given(pair=PAIRS)
@settings(max_examples=100, deadline=None)
def test_the_answer_does_not_depend_on_the_memory_order(pair: tuple[Any, Any]) -> None:
    left, right = pair
    expected = repr(describe(left, right))
    fortran = np.array(left, order="F"), np.array(right, order="F")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "CHUNK", 3)
        assert repr(describe(fortran[0], right)) == expected
        assert repr(describe(left, fortran[1])) == expected
        assert repr(describe(*fortran)) == expected


def test_a_part_that_is_infinite_in_both_hides_no_other_element() -> None:
    left = np.array([complex(0, np.inf), complex(0, np.inf)], np.complex64)
    right = np.array([complex(1, np.inf), 0], np.complex64)
    assert describe(left[:1], right[:1]).max_relative == 0.0
    assert describe(left, right).max_relative == np.inf


def test_the_parts_of_the_answer_come_from_different_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "CHUNK", 4)
    left = np.ones(20, np.float32)
    right = left.copy()
    right[[3, 9, 18]] = [np.nextafter(np.float32(1), np.float32(2)), 1.5, -3]
    left[6], right[6] = 0.0, -0.0
    left[11], right[11] = nan(), nan(0x7FC00001)
    left[14], right[14] = 1e-30, 2e-30
    found = describe(left, right)
    assert found is not None
    assert (found.first_index, found.count, found.size) == ((3,), 6, 20)
    assert (found.max_absolute, found.only_zeros, found.only_nans) == (4.0, 1, 1)
    assert found.max_relative == pytest.approx(4 / 3)
    one, other = (int(np.float32(x).view(np.uint32)) for x in (1.0, 3.0))
    assert found.max_ulp == one + other
    assert found.harmless is None
