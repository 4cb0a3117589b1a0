"""Digests: 128 bits over a tensor's dtype, shape and bytes, in order.

XXH3-128 (https://xxhash.com) when the package xxhash is there, else BLAKE2b cut to 128 bits from the standard
library. The manifest names which: digests of two algorithms are never compared with each other.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

try:
    import xxhash
except ImportError:  # pragma: no cover - the trainer's environment may lack it
    xxhash = None  # type: ignore[assignment]


class Hasher(Protocol):
    """Takes bytes piece by piece."""

    def update(self, data: bytes | memoryview, /) -> None:
        """Takes the next bytes."""
        ...

    def hexdigest(self) -> str:
        """32 hexadecimal digits of all bytes so far."""
        ...


ALGORITHM = "blake2b-128" if xxhash is None else "xxh3-128"
"""What the manifest names."""


def hasher() -> Hasher:
    """A fresh hasher of ``ALGORITHM``."""
    return hashlib.blake2b(digest_size=16) if xxhash is None else xxhash.xxh3_128()


def digest(dtype: str, shape: tuple[int, ...], data: bytes | memoryview) -> str:
    """Digest of one tensor, number or string.

    Args:
        dtype: Name of the element type, such as ``bfloat16``.
        shape: Its shape; two tensors of the same bytes and different shape have different digests.
        data: Its bytes in row-major order.

    Returns:
        32 hexadecimal digits.

    Example:
        >>> digest("uint8", (2,), b"ab") == digest("uint8", (2, 1), b"ab")
        False
    """
    taken = hasher()
    taken.update(f"{dtype}{list(shape)}\n".encode())
    taken.update(data)
    return taken.hexdigest()
