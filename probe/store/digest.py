"""Digests: 128 bits over a tensor's dtype, shape and bytes, in order.

XXH3-128 (https://xxhash.com) when the package xxhash is there, else the reference of ``probe.store.device_digest`` in
NumPy. The manifest names which: digests of two algorithms are never compared with each other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from probe.store import device_digest

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


ALGORITHM = device_digest.NAME if xxhash is None else "xxh3-128"
"""What the manifest names."""


def hasher() -> Hasher:
    """A fresh hasher of ``ALGORITHM`` for the bytes of a file; values have ``digest``."""
    return device_digest.Lanes() if xxhash is None else xxhash.xxh3_128()


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
    if xxhash is None:
        return device_digest.digest(dtype, shape, data)
    taken = xxhash.xxh3_128(_form(dtype, shape))
    taken.update(data)
    result: str = taken.hexdigest()
    return result


@lru_cache(maxsize=4096)
def _form(dtype: str, shape: tuple[int, ...]) -> bytes:
    return f"{dtype}{list(shape)}\n".encode()
