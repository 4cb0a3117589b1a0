"""Tensors of a checkpoint, read piece by piece, and their names in an order that a model would have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_PLAIN = frozenset(
    f"{kind}{bits}" for kind, widths in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64))) for bits in widths
) | {"float16", "float32", "float64", "complex64", "complex128"}
_DIGITS = re.compile(r"(\d+)")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a checkpoint.

    Example:
        >>> StoredTensor("uint8", (2,), 2, lambda start, stop: np.arange(start, stop, dtype=np.uint8)).read(0, 2)
        array([0, 1], dtype=uint8)
    """

    dtype: str
    shape: tuple[int, ...]
    size: int
    """Bytes in all."""
    read: Callable[[int, int], Array] = field(repr=False)
    """Its bytes from one place to another, in row-major order, as uint8; raises DumpError where that cannot be."""

    @property
    def form(self) -> str:
        """Dtype and shape for people."""
        return f"{self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True)
class StoredValue:
    """Something in a checkpoint that is no tensor: a number, a text, nothing at all.

    Example:
        >>> StoredValue("int", "3").text
        '3'
    """

    kind: str
    text: str


Stored = StoredTensor | StoredValue


def itemsize(dtype: str) -> int | None:
    """Bytes of one element; None where nobody knows."""
    if dtype in ("bool",) or dtype.startswith("float8"):
        return 1
    if dtype == "bfloat16":
        return 2
    if dtype == "complex32":
        return 4
    return np.dtype(dtype).itemsize if dtype in _PLAIN else None


def numbers(raw: Array, dtype: str) -> Array | None:
    """The numbers that bytes hold, in a type that NumPy has; None for a type whose numbers nobody knows here.

    Args:
        raw: Bytes of whole elements; uint8.
        dtype: The type that they have; ``bfloat16`` and 8-bit floats become float32, ``bool`` int8.
    """
    raw = np.ascontiguousarray(raw)
    if dtype in _PLAIN:
        return raw.view(np.dtype(dtype))
    if dtype == "bool":
        return raw.view(np.int8)
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype == "complex32":
        return raw.view(np.float16).astype(np.float32).view(np.complex64)
    return _float8(raw, dtype) if dtype.startswith("float8") else None


def _float8(raw: Array, dtype: str) -> Array | None:
    try:
        import torch
    except ImportError:
        return None
    kind = getattr(torch, dtype, None)
    if kind is None:
        return None
    found: Array = torch.arange(256, dtype=torch.int64).to(torch.uint8).view(kind).float().numpy()
    return found[raw]


def natural_order(names: Iterable[str]) -> list[str]:
    """Names sorted with the numbers in them by value: ``layers.2`` before ``layers.10``.

    Example:
        >>> natural_order(["layers.10.w", "layers.2.w", "embed.w"])
        ['embed.w', 'layers.2.w', 'layers.10.w']
    """
    return sorted(names, key=lambda name: [(int(part), "") if part.isdecimal() else (-1, part) for part in
                                           _DIGITS.split(name) if part])  # fmt: skip
