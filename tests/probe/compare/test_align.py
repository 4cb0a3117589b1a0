"""Aligning two sequences keeps every key, both orders, and tells who has what."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from probe.compare.align import align

KEYS = st.lists(st.sampled_from("abcdefgh"), unique=True)


def keys_of(left: str, right: str) -> str:
    return "".join(key for key, _, _ in align(left, right))


def test_equal_sequences_pair_up() -> None:
    assert align("abc", "abc") == [("a", 0, 0), ("b", 1, 1), ("c", 2, 2)]


def test_nothing_with_something() -> None:
    assert align("", "") == []
    assert align("a", "") == [("a", 0, None)]
    assert align("", "a") == [("a", None, 0)]


def test_a_key_of_one_side_stands_where_that_side_has_it() -> None:
    assert keys_of("abd", "acd") == "abcd"
    assert keys_of("ab", "xayb") == "xayb"
    assert keys_of("ab", "abx") == "abx"
    assert keys_of("xayb", "ab") == "xayb"


def test_the_left_order_counts_where_the_sides_order_differently() -> None:
    assert align("ab", "ba") == [("a", 0, 1), ("b", 1, 0)]


def test_a_key_of_the_right_keeps_its_place_after_a_reordering() -> None:
    assert keys_of("abc", "baxc") == "abxc"


@given(left=KEYS, right=KEYS)
def test_every_key_comes_once_with_its_indices(left: list[str], right: list[str]) -> None:
    merged = align(left, right)
    assert sorted(key for key, _, _ in merged) == sorted({*left, *right})
    for key, in_left, in_right in merged:
        assert in_left == (left.index(key) if key in left else None)
        assert in_right == (right.index(key) if key in right else None)


@given(left=KEYS, right=KEYS)
def test_the_left_order_is_kept(left: list[str], right: list[str]) -> None:
    assert [key for key, in_left, _ in align(left, right) if in_left is not None] == left


@given(keys=st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1), data=st.data())
def test_both_orders_are_kept_where_they_agree(keys: list[str], data: st.DataObject) -> None:
    left = [key for key in keys if data.draw(st.booleans())]
    right = [key for key in keys if data.draw(st.booleans())]
    merged = align(left, right)
    assert [key for key, in_left, _ in merged if in_left is not None] == left
    assert [key for key, _, in_right in merged if in_right is not None] == right
