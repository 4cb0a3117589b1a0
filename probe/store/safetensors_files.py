"""Safetensors files, read piece by piece without loading them, and without torch.

The header is checked by the library safetensors itself, which refuses gaps, overlaps and sizes that do not fit.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import DumpError
from probe.store import layout
from probe.store.tensors import Array, StoredTensor

SUFFIX = ".safetensors"
_LONGEST_HEADER = 100_000_000
"""As the library has it."""
_TYPES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "U8": "uint8"},
    **{"I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U16": "uint16", "U32": "uint32"},
    **{"U64": "uint64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
    **{"F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
}


def looks_like_safetensors(path: Path) -> bool:
    """Whether a file begins as a safetensors file does, whatever it is called."""
    try:
        with layout.open_plain(path) as file:
            start, size = file.read(9), os.fstat(file.fileno()).st_size
    except OSError:
        return False
    return start[8:] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= min(_LONGEST_HEADER, size - 8)


def read_safetensors(path: Path) -> tuple[dict[str, StoredTensor], bool]:
    """The tensors of a file.

    Args:
        path: The file.

    Returns:
        Each tensor by name, in the order of their bytes; and whether that order says something of the model. It does
        not where it is the one in which the library sorts them: by name, those of each dtype together.

    Raises:
        DumpError: The file is missing, a link, or damaged.
    """
    header, start = _header(path)
    entries = sorted(header.items(), key=lambda entry: (entry[1]["data_offsets"], entry[0]))
    tensors: dict[str, StoredTensor] = {}
    for name, entry in entries:
        begin, end = entry["data_offsets"]
        dtype = _TYPES.get(entry["dtype"], str(entry["dtype"]))
        tensors[name] = StoredTensor(dtype, tuple(entry["shape"]), end - begin, _reader(path, start + begin))
    by_dtype: dict[str, list[str]] = {}
    for name, entry in entries:
        by_dtype.setdefault(entry["dtype"], []).append(name)
    sorted_by_library = all(names == sorted(names) for names in by_dtype.values())
    return tensors, not sorted_by_library


def _header(path: Path) -> tuple[dict[str, Any], int]:
    from safetensors import SafetensorError, safe_open

    try:
        with layout.open_plain(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, os.fstat(file.fileno()).st_size - 8):
                raise ValueError(f"its header claims {length} bytes")
            raw = file.read(length)
        with safe_open(path, framework="numpy"):
            pass
        header = json.loads(raw)
        header.pop("__metadata__", None)
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DumpError(f"{path}: not a readable safetensors file ({' '.join(str(reason).split())[:200]})") from error
    return header, 8 + length


def _reader(path: Path, base: int) -> Callable[[int, int], Array]:
    def read(start: int, stop: int) -> Array:
        content = np.empty(stop - start, np.uint8)
        try:
            with layout.open_plain(path) as file:
                file.seek(base + start)
                if file.readinto(content.data) != stop - start:  # type: ignore[attr-defined]
                    raise OSError(0, "it ends early")
        except OSError as error:
            raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
        return content

    return read
