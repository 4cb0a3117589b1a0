"""Distances in units in the last place, against the order of each format's own numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from probe.collect.values import Snapshot
from probe.compare.ulp import FORMATS, distances
from probe.compare.values import describe

PROPERTY = settings(max_examples=200, deadline=None)

SHORT = {  # each with the codes of its infinities
    "float8_e4m3fn": [],
    "float8_e4m3fnuz": [],
    "float8_e5m2": [0x7C, 0xFC],
    "float8_e5m2fnuz": [],
    "float8_e8m0fnu": [],
    "float16": [0x7C00, 0xFC00],
    "bfloat16": [0x7F80, 0xFF80],
}
every_short_format = pytest.mark.parametrize("dtype", SHORT)


def all_tensors(dtype: str) -> torch.Tensor:
    """Every code of a format that is no NaN, in the order of the codes."""
    torch_dtype = getattr(torch, dtype)
    wide = torch.uint8 if torch.empty(0, dtype=torch_dtype).element_size() == 1 else torch.int16
    codes = torch.arange(256 if wide == torch.uint8 else 65536).to(wide).view(torch_dtype)
    keep = ~torch.isnan(codes.to(torch.float64))
    return codes.view(wide)[keep].view(torch_dtype)


def ranks(numbers: np.ndarray) -> np.ndarray:
    """The place of each number among all of its format; both zeros share one."""
    return np.searchsorted(np.unique(numbers + 0.0), numbers + 0.0)


@every_short_format
def test_the_numbers_are_those_of_the_format(dtype: str) -> None:
    numbers = all_tensors(dtype).to(torch.float64).numpy()
    infinite = np.isinf(numbers)
    assert infinite.sum() == len(SHORT[dtype])
    bits, least = FORMATS[dtype]
    finite = np.abs(numbers[~infinite & (numbers != 0)])
    assert finite.min() == 2.0 ** (least - bits)  # the smallest subnormal, which e8m0 does not have: it has no zero


@every_short_format
def test_all_pairs_or_many_of_them(dtype: str) -> None:
    numbers = all_tensors(dtype).to(torch.float64).numpy()
    places = ranks(numbers)
    count = len(numbers)
    random = np.random.default_rng(7)
    shifts = range(count) if count <= 256 else [0, 1, 2, 1023, count // 2, *random.integers(0, count, 20)]
    for shift in shifts:
        other = np.roll(np.arange(count), int(shift))
        expected = np.abs(places - places[other])
        assert np.array_equal(distances(numbers, numbers[other], dtype), expected.astype(np.uint64))


@every_short_format
def test_neighbours_are_one_apart(dtype: str) -> None:
    ordered = np.unique(all_tensors(dtype).to(torch.float64).numpy() + 0.0)
    assert set(distances(ordered[:-1], ordered[1:], dtype).tolist()) == {1}
    assert distances(ordered[:1], ordered[-1:], dtype).tolist() == [len(ordered) - 1]


@every_short_format
def test_the_stored_numbers_give_the_same_distances(dtype: str) -> None:
    """As ``describe`` sees them, in the wider type that ``.npy`` holds."""
    tensor = all_tensors(dtype)
    places = ranks(tensor.to(torch.float64).numpy())
    stored = Snapshot.take(tensor).values
    for one, other in ((0, 1), (3, -1), (len(places) // 2, 5), (10, 9)):
        found = describe(stored[one], stored[other], dtype)
        assert found is not None
        assert found.max_ulp == abs(int(places[one]) - int(places[other]))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex32_goes_by_its_parts() -> None:
    left = torch.tensor([1 + 2j, 3 + 4j], dtype=torch.complex32)
    right = left.clone()
    right.view(torch.int16)[3] += 5
    found = describe(Snapshot.take(left).values, Snapshot.take(right).values, "complex32")
    assert found is not None
    assert (found.first_index, found.count, found.max_ulp) == ((1,), 1, 5)


# ---- float32 and float64: by their bits, whose order is that of the numbers ----


def ordinal(bits: int, width: int) -> int:
    """The place of a number, 0 for both zeros."""
    sign = 1 << (width - 1)
    return bits if bits < sign else sign - bits


def from_bits(bits: int, width: int) -> Any:
    return np.array([bits], f"u{width // 8}").view(f"f{width // 8}")


SPECIAL = {  # zero, subnormals, the smallest normal, 1, the largest, infinity
    32: [0, 1, 2, 0x007FFFFF, 0x00800000, 0x00800001, 0x3F800000, 0x7F7FFFFF, 0x7F800000],
    64: [0, 1, 2, (1 << 52) - 1, 1 << 52, (1 << 52) + 1, 0x3FF << 52, (0x7FF << 52) - 1, 0x7FF << 52],
}


def bits_of(width: int) -> st.SearchStrategy[int]:
    sign = 1 << (width - 1)
    special = st.sampled_from([*SPECIAL[width], *(bits | sign for bits in SPECIAL[width])])
    return special | st.integers(0, (1 << width) - 1)


@pytest.mark.parametrize("width", [32, 64])
def test_every_pair_of_special_numbers(width: int) -> None:
    signed = [bits | sign for bits in SPECIAL[width] for sign in (0, 1 << (width - 1))]
    for one in signed:
        for other in signed:
            expected = abs(ordinal(one, width) - ordinal(other, width))
            left, right = from_bits(one, width), from_bits(other, width)
            assert distances(left, right, f"float{width}").tolist() == [expected]
            found = describe(left, right)
            assert (found.max_ulp if found else 0) == expected


@pytest.mark.parametrize("width", [32, 64])
@given(data=st.data())
@PROPERTY
def test_any_pair(width: int, data: st.DataObject) -> None:
    one, other = data.draw(bits_of(width)), data.draw(bits_of(width))
    left, right = from_bits(one, width), from_bits(other, width)
    assume(not np.isnan(left[0]) and not np.isnan(right[0]))
    expected = abs(ordinal(one, width) - ordinal(other, width))
    assert distances(left, right, f"float{width}").tolist() == [expected]


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
@example(0.0)
@example(-0.0)
@example(1e-45)
@PROPERTY
def test_the_next_float32_is_one_away(value: float) -> None:
    number = np.float32(value)
    for target in (np.float32(math.inf), np.float32(-math.inf)):
        with np.errstate(over="ignore"):  # infinity comes after the largest
            following = np.nextafter(number, target)
        assert distances(np.array([number]), np.array([following]), "float32").tolist() == [1]


@given(value=st.floats(allow_nan=False, allow_infinity=False))
@example(0.0)
@example(-0.0)
@example(5e-324)
@example(np.finfo(np.float64).max)
@PROPERTY
def test_the_next_float64_is_one_away(value: float) -> None:
    for target in (math.inf, -math.inf):
        following = np.array([math.nextafter(value, target)])
        assert distances(np.array([value]), following, "float64").tolist() == [1]


def test_zeros_of_different_sign_are_no_distance_apart() -> None:
    for dtype in FORMATS:
        assert distances(np.array([0.0]), np.array([-0.0]), dtype).tolist() == [0]


def test_a_format_that_is_not_known_is_an_error() -> None:
    with pytest.raises(KeyError):
        distances(np.zeros(1), np.zeros(1), "float7")
