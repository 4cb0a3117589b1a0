"""The cosine, added up in pieces: the same as in one, and right where squares leave the range of float64."""

from __future__ import annotations

import math
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probe.compare.cosine import Products
from probe.compare.values import describe

NUMBERS = hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e6, 1e6, allow_subnormal=False))
SIZES = st.integers(-1000, 1000)


def _cosine(a: Any, b: Any) -> float:
    return Products.of(np.asarray(a), np.asarray(b)).cosine


@pytest.mark.parametrize(
    ("a", "b", "cosine"),
    [
        ([1.0, 0.0], [0.0, 1.0], 0.0),
        ([1.0, 2.0], [2.0, 4.0], 1.0),
        ([1.0, 2.0], [-1.0, -2.0], -1.0),
        ([1e200, 0.0], [1e200, 1e200], math.sqrt(0.5)),
        ([1e-200, 0.0], [1e300, 1e300], math.sqrt(0.5)),
        ([5e-324, 0.0], [5e-324, 5e-324], math.sqrt(0.5)),
        ([1 + 1j], [1 + 0j], math.sqrt(0.5)),
        (np.array([2**63 - 1, 0]), np.array([2**63 - 1, -(2**63)]), math.sqrt(0.5)),
        (np.array([True, False]), np.array([True, True]), math.sqrt(0.5)),
        (np.float16([60000, 0]), np.float16([60000, 60000]), math.sqrt(0.5)),
    ],
)
def test_known_ones(a: Any, b: Any, cosine: float) -> None:
    assert _cosine(a, b) == pytest.approx(cosine, abs=1e-12)


@pytest.mark.parametrize("a", [[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [-math.inf, math.inf], []])
def test_what_has_no_angle_is_nan(a: list[float]) -> None:
    b = np.ones(len(a))
    assert math.isnan(_cosine(a, b)) and math.isnan(_cosine(b, a))
    whole = Products.of(np.asarray(a), b).plus(Products.of(np.ones(2), np.ones(2)))
    assert math.isnan(whole.cosine) is not all(x == 0 for x in a)


@given(a=NUMBERS, seed=st.integers(0, 9), cut=st.integers(0, 20), up=SIZES, down=SIZES)
def test_pieces_of_any_size_add_up(a: Any, seed: int, cut: int, up: int, down: int) -> None:
    b = a + np.random.default_rng(seed).normal(size=a.size)
    x, y = np.ldexp(a, up), np.ldexp(b, down)
    whole = _cosine(x, y)
    parts = Products.of(x[:cut], y[:cut]).plus(Products.of(x[cut:], y[cut:])).cosine
    assert (math.isnan(whole) and math.isnan(parts)) or parts == pytest.approx(whole, abs=1e-9)
    if not math.isnan(whole):
        assert whole == pytest.approx(_cosine(a, b), abs=1e-9), "no power of two changes it"
        assert -1 <= whole <= 1


@given(a=NUMBERS, b=NUMBERS)
def test_it_is_that_of_the_definition(a: Any, b: Any) -> None:
    size = min(a.size, b.size)
    a, b = a[:size], b[:size]
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    if lengths > 1e-12:
        assert _cosine(a, b) == pytest.approx(float(a @ b) / lengths, abs=1e-9)


def test_pieces_in_any_order_and_of_any_scale() -> None:
    pieces = [Products.of(np.array([10.0**power]), np.array([10.0**power])) for power in (300, -300, 0, 308, -308)]
    for order in (pieces, pieces[::-1]):
        assert reduce(Products.plus, order, Products()).cosine == pytest.approx(1.0)


def test_a_description_counts_elements_that_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.compare.values.CHUNK", 2)
    found = describe(np.array([1.0, 1.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 1.0]))
    assert found is not None
    assert found.products.cosine == pytest.approx(math.sqrt(3) / 2)


def test_two_types_are_compared_as_numbers() -> None:
    left, right = np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 5.0], np.float32)
    found = describe(left, right, across_types=True)
    assert found is not None
    assert (found.count, found.max_absolute, found.max_relative, found.max_ulp) == (1, 1.0, 0.2, None)
    assert (found.first_index, found.values) == ((2,), (4.0, 5.0))
    assert describe(left, left.astype(np.float32), across_types=True) is None
    mixed = describe(np.array([1, 2]), np.array([1 + 1j, 2]), across_types=True)
    assert mixed is not None and mixed.max_absolute == 1.0


def test_a_signalling_nan_of_another_type_is_no_warning() -> None:
    signalling = np.array([0x7FA00000], np.uint32).view(np.float32)
    found = describe(signalling, np.array([1.0]), across_types=True)
    assert found is not None and math.isinf(found.max_absolute)
