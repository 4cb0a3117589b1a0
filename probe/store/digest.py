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


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


ALGORITHM = "blake2b-128" if xxhash is None else "xxh3-128"
"""What the manifest names."""


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
    hasher: _Hash = hashlib.blake2b(digest_size=16) if xxhash is None else xxhash.xxh3_128()
    hasher.update(f"{dtype}{list(shape)}\n".encode())
    hasher.update(data)
    return hasher.hexdigest()
