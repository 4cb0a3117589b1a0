"""The digest that an accelerator can compute, and its reference: 128 bits over dtype, shape and bytes, in order.

Two lanes of 64 bits. The bytes, filled up with zeros, are read as little-endian words of eight bytes. In each lane a
word is combined with its position (from 1, times the lane's key) by exclusive or, then mixed by three rounds of a
multiplication and an exclusive or with its own upper bits, which is reversible: a change within one word always shows.
The mixed words are added. All of it is integers modulo 2^64, so that no order of adding changes the sum, and no number
of threads, chunks or devices. At the end the two sums, the dtype, the shape and the count of bytes are hashed together.

``probe.collect.device_digest`` computes the same with torch, where the tensor lies.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

NAME = "lanes-128"
"""What a manifest names."""
KEYS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
"""What a word's position is multiplied by, one for each lane; odd, as all factors."""
ROUNDS = (
    ((0xBF58476D1CE4E5B9, 0xFF51AFD7ED558CCD), 32),
    ((0x94D049BB133111EB, 0xC4CEB9FE1A85EC53), 29),
    ((0xD6E8FEB86659FD93, 0xA0761D6478BD642F), 32),
)
"""Of each round the factors, one for each lane, and how far the upper bits are shifted down."""

_CHUNK = 1 << 13
"""Words that are mixed together: what is held beside the data stays within a processor's cache."""
_MASK = (1 << 64) - 1


def finalised(sums: tuple[int, int], dtype: str, shape: tuple[int, ...], size: int) -> str:
    """The digest of a tensor of which the words' sums are known.

    Args:
        sums: Of each lane, modulo 2^64; of either sign.
        dtype: Name of the element type.
        shape: Its shape.
        size: Count of its bytes.

    Returns:
        32 hexadecimal digits.
    """
    words = b"".join((lane & _MASK).to_bytes(8, "little") for lane in sums)
    return hashlib.blake2b(f"{dtype}{list(shape)}{size}\n".encode() + words, digest_size=16).hexdigest()


def digest(dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> str:
    """Digest of one tensor, number or string: the reference.

    Args:
        dtype: Name of the element type, such as ``bfloat16``.
        shape: Its shape.
        data: Its bytes in row-major order.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> digest("uint8", (2,), b"ab") == digest("uint8", (2, 1), b"ab")
        False
    """
    lanes = Lanes()
    lanes.update(data)
    return finalised(lanes.sums, dtype, shape, lanes.size)


class Lanes:
    """Takes bytes piece by piece. What pieces they come in does not matter.

    Example:
        >>> whole, pieces = Lanes(), Lanes()
        >>> whole.update(b"abc")
        >>> pieces.update(b"a")
        >>> pieces.update(b"bc")
        >>> whole.hexdigest() == pieces.hexdigest()
        True
    """

    def __init__(self) -> None:
        self._sums: Words = np.zeros(2, np.uint64)
        self._words = 0
        self._held = bytearray()
        self.size = 0
        """Bytes so far."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Takes the next bytes."""
        view: Any = np.frombuffer(data, np.uint8)
        self.size += view.size
        if self._held:
            missing = 8 * _CHUNK - len(self._held)
            self._held += view[:missing].data
            view = view[missing:]
            if len(self._held) == 8 * _CHUNK:
                self._take(np.frombuffer(bytes(self._held), np.dtype("<u8")))
                self._held.clear()
        whole = view.size - view.size % 8 if view.size >= 8 * _CHUNK else 0
        self._take(view[:whole].view(np.dtype("<u8")))
        self._held += view[whole:].data

    @property
    def sums(self) -> tuple[int, int]:
        """Those of the two lanes, with zeros behind the last byte where a word is not full."""
        rest = np.frombuffer(bytes(self._held) + bytes(-len(self._held) % 8), np.dtype("<u8"))
        one, two = self._sums + _mixed(rest, self._words) if rest.size else self._sums
        return int(one), int(two)

    def hexdigest(self) -> str:
        """32 hexadecimal digits of all bytes so far: the digest of them as one row of plain bytes."""
        return finalised(self.sums, "bytes", (self.size,), self.size)

    def _take(self, words: Words) -> None:
        for start in range(0, words.size, _CHUNK):
            part = words[start : start + _CHUNK]
            self._sums += _mixed(part, self._words)
            self._words += part.size


def _mixed(words: Words, before: int) -> Words:
    """Sum of the mixed words in each lane; uint64 [2].

    Args:
        words: uint64 [n].
        before: How many words are before them.
    """
    positions = np.arange(before + 1, before + 1 + words.size, dtype=np.uint64)
    mixed = positions * _column(KEYS)
    mixed ^= words
    upper = np.empty_like(mixed)
    for factors, shift in ROUNDS:
        mixed *= _column(factors)
        np.right_shift(mixed, np.uint64(shift), out=upper)
        mixed ^= upper
    summed: Words = mixed.sum(axis=1, dtype=np.uint64)
    return summed


def _column(factors: tuple[int, int]) -> Words:
    """One factor for each lane; uint64 [2, 1]."""
    return np.array(factors, np.uint64)[:, None]
