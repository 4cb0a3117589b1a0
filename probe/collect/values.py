"""From what a trainer saves to bytes on the host: flattening, one copy off the device, exact bytes and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from probe.errors import RecordError
from probe.store.digest import digest

Array = npt.NDArray[Any]

_NUMPY_HOLDS = {
    torch.bool: np.int8,  # bool itself makes msprobe's comparator fail: it subtracts
    torch.bfloat16: np.float32,
    torch.complex32: np.complex64,
}
"""What a dtype is stored as where ``.npy``, or msprobe's reader, cannot hold it. Every value stays what it was."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One tensor, number or string at the moment of saving.

    Example:
        >>> snapshot = Snapshot.take(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
        >>> snapshot.dtype, snapshot.values.dtype
        ('bfloat16', dtype('float32'))
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str
    """Digest of the original bytes."""
    values: Array
    """The same numbers, of a type that ``.npy`` holds; UTF-8 bytes for a string."""
    masked: str | None = None
    """Digest with every entry outside the mask set to zero; None without a mask of the same shape."""

    @classmethod
    def take(cls, value: Any, mask: torch.Tensor | None = None) -> Snapshot:
        """Copies a leaf to the host and digests it.

        Args:
            value: A tensor on any device, a NumPy array or scalar, a number, a bool, a string or None.
            mask: Entries that count, of any shape; used when its shape is the value's.

        Raises:
            RecordError: A sparse or quantised tensor, or a type that has no exact bytes.
        """
        if isinstance(value, torch.Tensor):
            return cls._of_tensor(value, mask)
        if isinstance(value, str) or value is None:
            raw = ("" if value is None else value).encode(errors="surrogatepass")
            kind = "none" if value is None else "str"
            return cls(kind, (len(raw),), digest(kind, (len(raw),), raw), np.frombuffer(raw, np.uint8))
        if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
            return cls._of_array(value if isinstance(value, np.ndarray) else np.asarray(value), mask)
        raise RecordError(f"a {type(value).__name__} cannot be recorded; save tensors, arrays, numbers or strings")

    @classmethod
    def _of_array(cls, array: Array, mask: torch.Tensor | None) -> Snapshot:
        if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in "biufc" or array.dtype.char in "gG":
            raise RecordError(f"a {type(array).__name__} of {array.dtype} cannot be recorded; save numbers")
        shape, native = array.shape, array.dtype.newbyteorder("=")
        array = np.ascontiguousarray(array, native).reshape(shape)
        name = native.name
        data = array.tobytes()
        masked = None
        if mask is not None and tuple(mask.shape) == array.shape:
            kept = np.where(mask.detach().cpu().bool().numpy(), array, np.zeros((), array.dtype))
            masked = digest(name, array.shape, kept.astype(array.dtype).tobytes())
        values = array.astype(np.int8) if array.dtype == np.bool_ else array
        return cls(name, array.shape, digest(name, array.shape, data), values, masked)

    @classmethod
    def _of_tensor(cls, tensor: torch.Tensor, mask: torch.Tensor | None) -> Snapshot:
        name = str(tensor.dtype).removeprefix("torch.")
        shape = tuple(tensor.shape)
        host = to_host(tensor)
        masked = None
        if mask is not None and tuple(mask.shape) == shape:
            masked = digest(name, shape, _masked_bytes(host, mask))
        return cls(name, shape, digest(name, shape, raw_bytes(host)), _as_numbers(host), masked)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the host that no later operation of the trainer can change: one copy off the device.

    Raises:
        RecordError: The tensor is sparse or quantised, or has no storage.
    """
    if tensor.is_nested:
        raise RecordError("a nested tensor cannot be recorded; save its parts")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        what = "meta" if tensor.is_meta else "quantised" if tensor.is_quantized else str(tensor.layout)
        raise RecordError(f"a {what} tensor cannot be recorded; save its dense values")
    plain: Any = tensor.detach()
    if hasattr(plain, "to_local"):  # a DTensor: what this rank holds
        plain = plain.to_local()
    plain = plain.resolve_conj().resolve_neg()
    # copied into a fresh tensor: what is contiguous already may have odd strides, and may be changed later
    host = torch.empty(plain.shape, dtype=plain.dtype, device="cpu")
    return host.copy_(plain)


def raw_bytes(host: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host, in row-major order, without a copy."""
    flat = host.reshape(-1)
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data.cast("B")


def _masked_bytes(host: torch.Tensor, mask: torch.Tensor) -> bytes:
    """The bytes of a tensor with those of the entries outside the mask set to zero; works on every dtype."""
    kept = mask.detach().to("cpu").bool().reshape(-1).numpy()
    entries = np.frombuffer(raw_bytes(host), np.uint8).reshape(len(kept), -1).copy() if len(kept) else np.empty((0, 0))
    entries[~kept] = 0
    return entries.tobytes()


def _as_numbers(host: torch.Tensor) -> Array:
    if host.dtype in _NUMPY_HOLDS:
        target = _NUMPY_HOLDS[host.dtype]
        wide = {np.int8: torch.int8, np.float32: torch.float32, np.complex64: torch.complex64}[target]
        return host.to(wide).numpy()
    try:
        return host.numpy()
    except TypeError:  # the float8 family and whatever comes after it
        pass
    try:
        return host.to(torch.float32).numpy()
    except (NotImplementedError, RuntimeError) as error:
        raise RecordError(f"a tensor of {host.dtype} cannot be recorded; save it in another dtype") from error


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts, lists and tuples with their dotted paths, in their own order.

    Example:
        >>> list(leaves({"a": 1, "b": [2, 3]}))
        [('a', 1), ('b.0', 2), ('b.1', 3)]
    """
    if isinstance(value, Mapping):
        children = [(_escaped(str(key)), child) for key, child in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        children = [(str(index), child) for index, child in enumerate(value)]
    else:
        yield path, value
        return
    if not children:
        yield path, f"<empty {type(value).__name__}>"
    for name, child in children:
        yield from leaves(child, f"{path}.{name}" if path else name)


def _escaped(key: str) -> str:
    """A key whose own dots are not taken for levels."""
    return key.replace("\\", "\\\\").replace(".", "\\.")
