"""From a leaf to an event's item: path, dtype, shape, digest.

A tensor on the host is hashed where it lies, at once. Reading its memory directly runs no operation of torch: no mode
and no hook of the trainer sees it, and it costs two microseconds and the hashing. What cannot be read so is copied
first; off a device, the copy is hashed later, beside the training.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from probe.collect.trace.internals import without_modes
from probe.collect.values import Snapshot, dtype_name, raw_bytes, to_host
from probe.errors import RecordError
from probe.store.digest import ALGORITHM, digest

Item = list[Any]
"""``[path, dtype, shape, digest]``; the digest is text, or ``Later`` until the event is written."""

_KEPT = 4096
"""Scalars that are kept."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_VIEW = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)
"""A view of memory by address and bytes: an array of ctypes would be a new class for every size."""
_READ = 0x100
"""``PyBUF_READ``."""


class Later:
    """A digest that is worked out when its event is written, beside the training; then the bytes are let go.

    Args:
        make: Gives the digest.
        size: Bytes that are held until then.

    Example:
        >>> Later(lambda: "5a", 8) == Later(lambda: "5a", 8)
        True
    """

    __slots__ = ("_lock", "_made", "size")

    def __init__(self, make: Callable[[], str], size: int) -> None:
        self._made: Callable[[], str] | str = make
        self._lock = threading.Lock()
        self.size = size

    def text(self) -> str:
        """The digest: 32 hexadecimal digits."""
        with self._lock:
            if not isinstance(self._made, str):
                self._made = self._made()
            return self._made

    def __eq__(self, other: object) -> bool:
        """Whether both are the same digest; works them out."""
        return isinstance(other, Later) and self.text() == other.text()

    __hash__ = None  # type: ignore[assignment]


class Digests:
    """Makes items of leaves; ``algorithms`` says by which digests."""

    algorithms = (ALGORITHM,)
    """Algorithms of the digests in the items."""

    def __init__(self) -> None:
        self._scalars: dict[tuple[type, str], tuple[str, list[int], str]] = {}

    def item(self, path: str, value: Any) -> Item:
        """The item of a leaf.

        Args:
            path: Where it is.
            value: A tensor, an array, a number or a string.

        Raises:
            RecordError: It has no exact bytes: it is sparse, quantised, of no storage, or an object.
        """
        if isinstance(value, torch.Tensor):
            try:
                return [path, *self._tensor(value)]
            except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
                raise RecordError(" ".join(str(error).split())) from error
        if isinstance(value, np.ndarray | np.generic):
            return [path, *_snapshot(value)]
        return [path, *self._scalar(value)]

    def _tensor(self, tensor: torch.Tensor) -> tuple[str, list[int], str | Later]:
        direct = (
            type(tensor) in _PLAIN
            and tensor.layout is torch.strided
            and tensor.is_cpu
            and not tensor.is_nested
            and tensor.is_contiguous()
            and not tensor.is_neg()
            and not tensor.is_conj()
            and not tensor.is_quantized
        )
        if direct:
            size = tensor.nbytes
            address = tensor.data_ptr()
            if address or not size:
                name, shape = dtype_name(tensor), tensor.shape
                return name, list(shape), digest(name, shape, _VIEW(address, size, _READ) if size else b"")
        if type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
            raise RecordError(f"a {type(tensor).__name__} has no values")
        with torch.no_grad(), without_modes():
            host = to_host(tensor)
        name, shape = dtype_name(host), host.shape
        if tensor.is_cpu:
            return name, list(shape), digest(name, shape, raw_bytes(host))
        return name, list(shape), Later(lambda: digest(name, shape, raw_bytes(host)), host.nbytes)

    def _scalar(self, value: Any) -> tuple[str, list[int], str]:
        key = (type(value), repr(value))
        found = self._scalars.get(key)
        if found is None:
            big = isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
            found = _snapshot(str(int(value)) if big else value.decode("latin-1") if type(value) is bytes else value)
            if len(self._scalars) > _KEPT:
                self._scalars.clear()
            self._scalars[key] = found
        return found


def _snapshot(value: Any) -> tuple[str, list[int], str]:
    shot = Snapshot.take(value)
    return shot.dtype, list(shot.shape), shot.digest
