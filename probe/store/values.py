"""Value files of a dump from anywhere: opened only inside the folder, never unpickled, never loaded whole."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from probe.errors import DumpError
from probe.store import layout
from probe.types import Record

Array = npt.NDArray[Any]

CHUNK = 1 << 18
"""Bytes that are compared together."""
_LONGEST_HEADER = 10_000
_KNOWN_HEADERS = 1000
_MOST_AXES = 32
"""As many as every NumPy can have."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a ``.npy`` file says of its numbers.

    Example:
        >>> Header(np.dtype("<f4"), (2, 3), False, 128).bytes
        152
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int
    """Where the numbers begin, in bytes."""

    @property
    def bytes(self) -> int:
        """Size that the file must have."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


class ValueFiles:
    """Opens the value files of one dump folder.

    Args:
        folder: The dump folder.

    Example:
        >>> ValueFiles(Path("a/msprobe_dump")).array(record).shape  # doctest: +SKIP
        (8, 16)
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._safe: set[str] = set()
        self._headers: dict[bytes, Header] = {}

    @contextmanager
    def open(self, record: Record) -> Iterator[tuple[Header, int]]:
        """Opens a record's file at its numbers.

        Args:
            record: The record; its file is relative to the folder.

        Yields:
            The header, and a file descriptor whose position is the first number.

        Raises:
            DumpError: The file is missing, damaged, holds Python objects, or lies outside the folder.
        """
        path = self._path(record)
        try:
            file = layout.open_plain(path)
        except (OSError, ValueError) as error:
            raise DumpError(f"{path}: not a readable .npy file ({_reason(error)})") from error
        with file:
            try:
                header = self._read_header(file.fileno())
            except Exception as error:  # noqa: BLE001  (NumPy's header parser raises anything on damaged bytes)
                raise DumpError(f"{path}: not a readable .npy file ({_reason(error)})") from error
            yield header, file.fileno()

    def array(self, record: Record) -> Array:
        """The stored numbers of a record, mapped from its file rather than loaded.

        Raises:
            DumpError: As for ``open``.
        """
        with self.open(record) as (header, descriptor):
            if header.bytes == header.offset:
                return np.empty(header.shape, header.dtype)
            order: Literal["F", "C"] = "F" if header.fortran_order else "C"
            with os.fdopen(os.dup(descriptor), "rb") as file:
                mapped: Array = np.memmap(file, header.dtype, "r", header.offset, header.shape, order)
                return mapped.view(np.ndarray)

    def _path(self, record: Record) -> str:
        """The file's path, when no part of it leads out of the folder."""
        if record.file is None:
            raise DumpError(f"{self._folder}: {record.tag} has no stored values")
        parts = record.file.split("/")
        path = os.path.join(self._folder, record.file)
        if os.path.isabs(record.file) or ".." in parts:
            raise DumpError(f"{path}: lies outside the dump folder")
        parent = os.path.dirname(record.file)
        if parent not in self._safe:
            if any(os.path.islink(os.path.join(self._folder, *parts[:end])) for end in range(1, len(parts))):
                raise DumpError(f"{path}: lies outside the dump folder: a link is not followed")
            self._safe.add(parent)
        return path

    def _read_header(self, descriptor: int) -> Header:
        size = os.fstat(descriptor).st_size
        start = os.read(descriptor, 256)
        if start[:6] != b"\x93NUMPY" or start[6:8] not in (b"\x01\x00", b"\x02\x00"):
            raise ValueError("it has no .npy header of version 1 or 2")
        width = 2 if start[6] == 1 else 4
        length = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
        if length > _LONGEST_HEADER:
            raise ValueError(f"its header claims {length} bytes")
        if length > len(start):
            start += os.read(descriptor, length - len(start))
        raw = start[:length]
        header = self._headers.get(raw)
        if header is None:
            header = _parse_header(raw)
            if len(self._headers) < _KNOWN_HEADERS:
                self._headers[raw] = header
        if header.bytes != size:
            raise ValueError(f"it has {size} bytes where its header asks for {header.bytes}")
        os.lseek(descriptor, header.offset, os.SEEK_SET)
        return header


def _parse_header(raw: bytes) -> Header:
    parse = np.lib.format.read_array_header_1_0 if raw[6] == 1 else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = parse(io.BytesIO(raw[8:]))
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never unpickled")
    if dtype.kind not in "biufc" or dtype.char in "gG":  # a long double is another type on every machine
        raise ValueError(f"it holds {dtype}, no numbers")
    if len(shape) > _MOST_AXES or any(isinstance(size, bool) or not 0 <= size < 1 << 62 for size in shape):
        raise ValueError(f"it claims the shape {str(shape)[:100]}")
    np.broadcast_to(np.empty((), dtype), shape)  # raises for a shape that no array has
    return Header(dtype, shape, fortran_order, len(raw))


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())


def stored_dtype(dtype: str) -> str:
    """The type of the stored numbers of a recorded type, where ``.npy`` or msprobe cannot hold that one."""
    if dtype in ("str", "none") or dtype.startswith("empty "):
        return "uint8"
    if dtype.startswith("float8") or dtype == "bfloat16":
        return "float32"
    return {"bool": "int8", "complex32": "complex64"}.get(dtype, dtype)


def read_values(folder: Path, record: Record) -> Array:
    """The stored numbers of one record; ``ValueFiles.array`` for many.

    Raises:
        DumpError: The file is missing, damaged, holds Python objects, or lies outside the folder.
    """
    return ValueFiles(folder).array(record)


def same_bytes(left: int, right: int) -> bool:
    """Whether two open files are the same from their positions on; reads piece by piece."""
    one, two = np.empty(CHUNK // 8, np.uint64), np.empty(CHUNK // 8, np.uint64)
    while True:
        sizes = os.readv(left, [one.data]), os.readv(right, [two.data])
        if sizes[0] != sizes[1]:
            return False
        if not sizes[0]:
            return True
        words, rest = divmod(sizes[0], 8)
        last = slice(8 * words, 8 * words + rest)
        whole = np.array_equal(one[:words], two[:words])
        if not whole or not np.array_equal(one.view(np.uint8)[last], two.view(np.uint8)[last]):
            return False
