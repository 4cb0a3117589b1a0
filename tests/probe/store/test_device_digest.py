"""The reference of the device digest: what its definition says, written out once more, and what it tells apart."""

from __future__ import annotations

import hashlib
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.store.device_digest import NAME, Lanes, digest

MODULUS = 1 << 64
CHUNK = 1 << 16
"""Bytes that the reference mixes together."""


def plain_sums(data: bytes) -> tuple[int, int]:
    """The definition with Python's whole numbers, a word at a time."""
    padded = data + bytes(-len(data) % 8)
    words = [int.from_bytes(padded[start : start + 8], "little") for start in range(0, len(padded), 8)]
    lanes = (
        (0x9E3779B97F4A7C15, (0xBF58476D1CE4E5B9, 32), (0x94D049BB133111EB, 29), (0xD6E8FEB86659FD93, 32)),
        (0xD1B54A32D192ED03, (0xFF51AFD7ED558CCD, 32), (0xC4CEB9FE1A85EC53, 29), (0xA0761D6478BD642F, 32)),
    )
    sums = []
    for key, *rounds in lanes:
        total = 0
        for position, word in enumerate(words, 1):
            mixed = word ^ position * key % MODULUS
            for factor, shift in rounds:
                mixed = mixed * factor % MODULUS
                mixed ^= mixed >> shift
            total += mixed
        sums.append(total % MODULUS)
    return sums[0], sums[1]


def plain_digest(dtype: str, shape: tuple[int, ...], data: bytes) -> str:
    one, two = plain_sums(data)
    header = f"{dtype}[{', '.join(map(str, shape))}]{len(data)}\n".encode()
    return hashlib.blake2b(header + one.to_bytes(8, "little") + two.to_bytes(8, "little"), digest_size=16).hexdigest()


def lanes_of(data: bytes) -> tuple[int, int]:
    lanes = Lanes()
    lanes.update(data)
    return lanes.sums


def assert_no_lane_repeats(variants: list[bytes]) -> None:
    """Each lane alone tells all of them apart: 64 bits, so that both together have 128."""
    assert len(set(variants)) == len(variants)
    for sums in zip(*map(lanes_of, variants), strict=True):
        assert len(set(sums)) == len(variants)


def rows(count: int = 40, width: int = 12) -> np.ndarray:
    return np.random.default_rng(3).standard_normal((count, width)).astype(np.float32)


def test_has_a_name_of_its_own() -> None:
    assert NAME == "lanes-128"


@pytest.mark.parametrize(
    ("dtype", "shape", "data", "expected"),
    [
        ("float32", (0,), b"", "d833526fe414bf4131eb1665d494346c"),
        ("bool", (), b"\1", "ccb3034c6696a10f490809a7d7919159"),
        ("bfloat16", (3,), b"\x80?\0@@@", "d2e73c6f50e8a5999df28dd65ba0a2a3"),
        ("int64", (2, 50), np.arange(100, dtype="<i8").tobytes(), "823eb2f999cb1409f3e7ce2c1328a7fa"),
    ],
)
def test_never_changes(dtype: str, shape: tuple[int, ...], data: bytes, expected: str) -> None:
    assert digest(dtype, shape, data) == expected


@given(data=st.binary(max_size=100))
def test_is_what_its_definition_says(data: bytes) -> None:
    assert lanes_of(data) == plain_sums(data)
    assert digest("uint8", (len(data),), data) == plain_digest("uint8", (len(data),), data)


@pytest.mark.parametrize("size", [CHUNK - 8, CHUNK - 1, CHUNK, CHUNK + 1, CHUNK + 8, 2 * CHUNK + 3])
def test_is_what_its_definition_says_at_the_chunks_ends(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert lanes_of(data) == plain_sums(data)


@given(sizes=st.lists(st.sampled_from([0, 1, 7, 8, 9, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]), max_size=6))
def test_pieces_do_not_matter(sizes: list[int]) -> None:
    data = np.random.default_rng(1).bytes(sum(sizes))
    lanes, start = Lanes(), 0
    for size in sizes:
        lanes.update(memoryview(data)[start : start + size])
        start += size
        assert lanes.size == start
    assert lanes.sums == lanes.sums == lanes_of(data)
    assert lanes.hexdigest() == digest("bytes", (len(data),), data)


def test_every_flipped_bit_changes_both_lanes() -> None:
    data = rows(5, 10).tobytes() + b"abc"
    flipped = [data]
    for bit in range(8 * len(data)):
        other = bytearray(data)
        other[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(other))
    assert_no_lane_repeats(flipped)


@pytest.mark.parametrize("word", [0, 1 << 63, 0x3F8000003F800000, 0xBFF0000000000000])
@pytest.mark.parametrize("bit", [0, 31, 63])
def test_pairs_of_flipped_bits_do_not_cancel(word: int, bit: int) -> None:
    """The same flip in two words: one round with a multiplication would take the one of top bits for nothing."""
    words = np.full(40, word, np.uint64)
    variants = [words.tobytes()]
    for pair in combinations(range(words.size), 2):
        flipped = words.copy()
        flipped[list(pair)] ^= np.uint64(1 << bit)
        variants.append(flipped.tobytes())
    assert_no_lane_repeats(variants)


def test_swapped_rows_are_told_apart() -> None:
    array = rows()
    variants = [array.tobytes()]
    for one, two in combinations(range(len(array)), 2):
        swapped = array.copy()
        swapped[[one, two]] = swapped[[two, one]]
        variants.append(swapped.tobytes())
    assert_no_lane_repeats(variants)
    assert_no_lane_repeats([array[list(order)].tobytes() for order in permutations(range(5))])


def test_repeated_rows_are_told_apart() -> None:
    array = rows(30)
    variants = [array.tobytes()]
    for source, target in permutations(range(len(array)), 2):
        repeated = array.copy()
        repeated[target] = repeated[source]
        variants.append(repeated.tobytes())
    assert_no_lane_repeats(variants)


def test_shifted_content_is_told_apart() -> None:
    data = rows(20).tobytes()
    assert_no_lane_repeats([data[shift:] + data[:shift] for shift in range(0, len(data))])
    alone = bytearray(800)
    variants = []
    for place in range(800):
        moved = alone.copy()
        moved[place] = 1
        variants.append(bytes(moved))
    assert_no_lane_repeats(variants)


def test_zeros_of_different_lengths_are_told_apart() -> None:
    assert_no_lane_repeats([bytes(8 * words) for words in range(500)])
    found = {digest("uint8", (size,), bytes(size)) for size in range(500)}
    assert len(found) == 500  # also where the words are the same


def test_dtype_shape_and_length_count() -> None:
    found = {
        digest(dtype, shape, bytes(size))
        for dtype in ("float32", "int32", "uint8")
        for shape in ((), (1,), (4,), (2, 2), (0,), (0, 4), (4, 0))
        for size in (0, 1, 4, 8)
    }
    assert len(found) == 3 * 7 * 4


@pytest.mark.parametrize("offset", range(9))
def test_memory_need_not_be_aligned(offset: int) -> None:
    data = np.random.default_rng(4).bytes(CHUNK + 100)
    assert lanes_of(memoryview(data)[offset:]) == lanes_of(data[offset:])
