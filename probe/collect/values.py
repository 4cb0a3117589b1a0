"""From what a trainer saves to bytes on the host: flattening, one copy off the device, exact bytes and numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from operator import index, itemgetter
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import torch

from probe.errors import RecordError
from probe.store.digest import digest
from probe.store.numeric import Numbers, as_it_is

Array = npt.NDArray[Any]

_DEEPEST = 100
"""Levels of nested containers."""


@dataclass(frozen=True, slots=True)
class Empty:
    """Stands for a container without entries, which is no value and yet not nothing.

    Example:
        >>> list(leaves({"a": []}))
        [('a', Empty(kind='list'))]
    """

    kind: str
    """``dict`` or ``list``."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One tensor, number or string at the moment of saving: its bytes on the host, which nothing else can change.

    What follows from the bytes is worked out when it is asked for, which may be later and in another thread.

    Example:
        >>> snapshot = Snapshot.take(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
        >>> snapshot.dtype, snapshot.values.dtype
        ('bfloat16', dtype('float32'))
    """

    dtype: str
    shape: tuple[int, ...]
    data: Array
    """The exact bytes in row-major order; uint8, one axis."""
    mask: Array | None = None
    """Entries that count; bool, of the same shape. None without a mask of that shape."""

    @classmethod
    def take(cls, value: Any, mask: Any = None) -> Snapshot:
        """Copies a leaf to the host.

        Args:
            value: A tensor on any device, a NumPy array or scalar, a number, a bool, a string or None.
            mask: Entries that count, an array or tensor of any shape; used when its shape is the value's.

        Raises:
            RecordError: A sparse or quantised tensor, or a type that has no exact bytes.
        """
        kept = None if mask is None else host_mask(mask)
        if isinstance(value, torch.Tensor):
            host = to_host(value)
            name, shape, data = dtype_name(host), tuple(host.shape), np.frombuffer(raw_bytes(host), np.uint8)
            _stored(name, data[: host.element_size()])  # a dtype without numbers is refused here and now
        elif isinstance(value, Empty):
            name, shape, data = f"empty {value.kind}", (0,), np.empty(0, np.uint8)
        elif isinstance(value, str) or value is None:
            text = ("" if value is None else value).encode(errors="surrogatepass")
            name, shape, data = "none" if value is None else "str", (len(text),), np.frombuffer(text, np.uint8)
        elif isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
            name, shape, data = _bytes_of_array(value if isinstance(value, np.ndarray) else np.asarray(value))
        else:
            raise RecordError(f"a {type(value).__name__} cannot be recorded; save tensors, arrays, numbers or strings")
        return cls(name, shape, data, kept if kept is not None and kept.shape == shape else None)

    @property
    def digest(self) -> str:
        """Digest of dtype, shape and bytes."""
        return digest(self.dtype, self.shape, self.data.data)

    @property
    def masked(self) -> str | None:
        """Digest of the entries inside the mask, zeros for the others, and the mask; None without one of the shape."""
        if self.mask is None:
            return None
        inside = self.mask.reshape(-1)
        entries = self.data.reshape(inside.size, -1).copy() if inside.size else self.data
        entries[~inside] = 0
        return digest(self.dtype, self.shape, np.concatenate([entries.reshape(-1), inside.view(np.uint8)]).data)

    @property
    def numbers(self) -> Numbers:
        """The same numbers, of a type that ``.npy`` holds and msprobe reads; UTF-8 bytes for a string."""
        stored, widen = _stored(self.dtype, self.data)
        return Numbers(stored.reshape(self.shape), widen)

    @property
    def values(self) -> Array:
        """All of ``numbers`` at once."""
        numbers = self.numbers
        return numbers.widen(numbers.stored.reshape(-1)).reshape(self.shape)

    @property
    def size(self) -> int:
        """Bytes that it holds."""
        return self.data.nbytes + (0 if self.mask is None else self.mask.nbytes)


def host_mask(mask: Any) -> Array:
    """A mask as a copy on the host; bool, of the same shape.

    Raises:
        RecordError: It holds no numbers.
    """
    if isinstance(mask, torch.Tensor):
        return np.asarray((to_host(mask) != 0).numpy())
    array = np.asarray(mask)
    if array.dtype.kind not in "biufc":
        raise RecordError(f"a mask of {array.dtype} cannot be used; give numbers or bools")
    return np.array(array != 0)


def dtype_name(tensor: torch.Tensor) -> str:
    """The name of a tensor's dtype, such as ``bfloat16``."""
    return _name_of(tensor.dtype)


@lru_cache
def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous copy on the host that no later operation of the trainer can change: one copy off the device.

    Raises:
        RecordError: The tensor is sparse or quantised, or has no storage.
    """
    plain = _dense(tensor)
    # copied into a fresh tensor: what is contiguous already may have odd strides, and may be changed later
    host = torch.empty(plain.shape, dtype=plain.dtype, device="cpu")
    try:
        return host.copy_(plain)
    except NotImplementedError as error:
        raise RecordError(f"a tensor of {plain.dtype} cannot be recorded; save it in another dtype") from error


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor on the host to be read at once: the tensor itself where that is possible, else a copy.

    Raises:
        RecordError: The tensor is sparse or quantised, or has no storage.
    """
    plain = _dense(tensor)
    return plain if plain.device.type == "cpu" and plain.is_contiguous() else to_host(plain)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    return own_part(tensor).resolve_conj().resolve_neg()


def own_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a tensor, without its history: the same memory, and still conjugated lazily if it was.

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
    if hasattr(plain, "trigger_wait"):  # the result of a collective that may still run
        plain = plain.trigger_wait()
    result: torch.Tensor = plain
    return result


def raw_bytes(host: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the host, in row-major order, without a copy."""
    flat = host.as_strided((host.numel(),), (1,))  # one element alone may have any stride
    if flat.numel() == 0:
        return memoryview(b"")
    return flat.view(torch.uint8).numpy().data.cast("B")


def _bytes_of_array(array: Array) -> tuple[str, tuple[int, ...], Array]:
    """Dtype, shape and a copy of the bytes, in the machine's byte order."""
    if array.dtype == object and not array.shape and isinstance(array.item(), int):
        raise RecordError("an integer of more than 64 bits cannot be recorded; save it as text")
    if isinstance(array, np.ma.MaskedArray) or array.dtype.kind not in "biufc" or array.dtype.char in "gG":
        raise RecordError(f"a {type(array).__name__} of {array.dtype} cannot be recorded; save numbers")
    native = array.dtype.newbyteorder("=")
    copy = np.array(array, native, order="C", copy=True, subok=False)
    return native.name, array.shape, copy.reshape(-1).view(np.uint8)


def _stored(dtype: str, data: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Elements of exact bytes, and what makes numbers of some; no operation of torch: this runs beside the training."""
    if dtype in ("str", "none") or dtype.startswith("empty "):
        return data, as_it_is
    if dtype == "bool":  # bool itself makes msprobe's comparator fail: it subtracts
        return data.view(np.int8), as_it_is
    if dtype == "bfloat16":
        return data.view(np.uint16), lambda part: (part.astype(np.uint32) << 16).view(np.float32)
    if dtype == "complex32":
        return data.view(np.uint32), lambda part: part.view(np.float16).astype(np.float32).view(np.complex64)
    try:
        return data.view(np.dtype(dtype)), as_it_is
    except TypeError:
        return data, _table_of(dtype).__getitem__


def _table_of(dtype: str) -> Array:
    """The number that each of the 256 bytes stands for in a type of one byte (the float8 family); float32 [256].

    Raises:
        RecordError: The type has more bytes, or several numbers in one.
    """
    try:
        codes = torch.arange(256, dtype=torch.uint8, device="cpu")
        table = codes.view(getattr(torch, dtype)).to(torch.float32).numpy()
    except (NotImplementedError, RuntimeError, AttributeError) as error:
        raise RecordError(f"a tensor of {dtype} cannot be recorded; save it in another dtype") from error
    if table.shape != (256,):
        raise RecordError(f"a tensor of {dtype} cannot be recorded; save it in another dtype")
    payloads = (np.arange(256, dtype=np.uint32) | 0x7FC00000).view(np.float32)  # one NaN for each code that is one
    return np.where(np.isnan(table), payloads, table)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dicts, lists and tuples with their dotted paths, in their own order.

    Raises:
        RecordError: They are nested too deeply, or in themselves.

    Example:
        >>> list(leaves({"a": 1, "b": [2, 3]}))
        [('a', 1), ('b.0', 2), ('b.1', 3)]
    """
    if path.count(".") > _DEEPEST:
        raise RecordError("it is nested too deeply, or in itself")
    if isinstance(value, Mapping):
        children = [(escaped(key), child) for key, child in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        children = [(str(index), child) for index, child in enumerate(value)]
    else:
        yield path, value
        return
    if not children:
        yield path, Empty("dict" if isinstance(value, Mapping) else "list")
    for name, child in children:
        yield from leaves(child, f"{path}.{name}" if path else name)


def in_order(values: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    """Keys as names, and what they hold, by name: the order in which a dictionary was filled is no value of its own.

    Example:
        >>> in_order({"mask": 1, "ids": 2})
        [('ids', 2), ('mask', 1)]
    """
    named = [(key if type(key) is str and key.isidentifier() else escaped(key), one) for key, one in values.items()]
    named.sort(key=itemgetter(0))
    return named


def escaped(key: object) -> str:
    r"""A key whose own dots are not taken for levels, and that is not taken for an index or for no level at all.

    Example:
        >>> escaped("a.b"), escaped("a"), escaped(3)
        ('a\\.b', 'a', '(int)\\3')
    """
    if not isinstance(key, str):
        return f"({type(key).__name__}){escaped(str(key))}"
    name = key.replace("\\", "\\\\").replace(".", "\\.")
    return f"\\{name}" if not key or key.isdigit() or key.startswith("(") else name


@contextmanager
def named(what: str) -> Iterator[None]:
    """Says of a value that cannot be recorded which it is, whatever torch or NumPy raise."""
    try:
        yield
    except (RecordError, RuntimeError, TypeError, ValueError) as error:
        raise RecordError(f"{what}: {' '.join(str(error).split())}") from error


def count(name: str, value: object) -> int:
    """A rank or micro-step, which names a folder.

    Raises:
        RecordError: It is no whole number from 0.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < 0:
        raise RecordError(f"{name}={value!r} is not a whole number from 0")
    return index(value)
