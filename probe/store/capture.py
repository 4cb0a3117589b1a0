"""A captured call of a module, in ``capture/`` of a dump folder.

::

    capture/
      capture.json           which call; inputs and outputs, dtypes, strides, settings; or why it is not there
      tensors.safetensors    weights, buffers, inputs, output, gradients, random states
      module.pkl  call.pkl   the module, and its arguments, without their tensors

Only ``firstdiff replay`` unpickles the two, and a check that has just made them. No torch here.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import DumpError
from probe.store import layout

FORMAT = 1
INFO = "capture.json"
TENSORS = "tensors.safetensors"
MODULE = "module.pkl"
CALL = "call.pkl"
_LONGEST = 1 << 26
_PIECE = 1 << 20
_NAMES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL", "uint8": "U8"},
    **{"int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64"},
}
"""What safetensors calls a dtype; bytes of any other are stored as U8."""
_KEYS: dict[str, type] = {
    **dict.fromkeys(("request", "tensors", "settings", "python_rng"), dict),
    **dict.fromkeys(("inputs", "output", "path"), list),
}

Bytes = tuple[str, tuple[int, ...], Any]
"""Dtype, shape and the bytes of a tensor."""


@dataclass(frozen=True)
class Captured:
    """What ``capture.json`` says of a whole capture.

    Example:
        >>> Captured(Path("capture"), {"request": {"name": "actor.head"}}).name
        'actor.head'
    """

    folder: Path
    info: dict[str, Any]

    @property
    def name(self) -> str:
        """The module."""
        return str(self.info["request"]["name"])

    @property
    def backward(self) -> bool:
        """Whether its gradients are what counts."""
        return bool(self.info["request"].get("backward"))


def write_tensors(path: Path, tensors: Iterable[tuple[str, Bytes]]) -> None:
    """Writes a safetensors file.

    Raises:
        OSError: The disk is full.
    """
    header: dict[str, Any] = {}
    pieces, offset = [], 0
    for name, (dtype, shape, content) in tensors:
        size = memoryview(content).nbytes
        known = _NAMES.get(dtype)
        shape = shape if known else (size,)
        header[name] = {"dtype": known or "U8", "shape": list(shape), "data_offsets": [offset, offset + size]}
        pieces.append(content)
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for content in pieces:
            file.write(content)


def code_of(modules: Iterable[str]) -> dict[str, str]:
    """The digests of the files of modules that are imported, torch's aside; of those that have a file.

    Args:
        modules: Their names.
    """
    found = {}
    for name in sorted(modules):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is None or name.partition(".")[0] == "torch" or name == "__main__":
            continue  # the main script's classes are in the pickle themselves
        try:
            found[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError:
            continue
    return found


def read_capture(dump: Path) -> Captured | None:
    """The capture in a dump folder that is not packed; None where none was asked for.

    Raises:
        DumpError: It could not be made, or is damaged.
    """
    folder = dump / layout.CAPTURE
    if folder.is_symlink() or (dump.exists() and not folder.exists()):
        if folder.is_symlink():
            raise DumpError(f"{folder}: a link is not followed")
        return None
    path = folder / INFO
    try:
        info = layout.read_json(path, _LONGEST)
    except (OSError, ValueError) as error:
        raise DumpError(f"{path}: cannot be read ({error})") from error
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise DumpError(f"{path}: is no capture of format {FORMAT}")
    if isinstance(note := info.get("note"), str):
        raise DumpError(f"the module was not captured: {note}")
    wrong = [key for key, kind in _KEYS.items() if not isinstance(info.get(key), kind)]
    if wrong or not isinstance(info["request"].get("name"), str):
        raise DumpError(f"{path}: is damaged ({(wrong or ['request.name'])[0]})")
    for name in (TENSORS, MODULE, CALL):
        try:
            layout.open_plain(folder / name).close()
        except OSError as error:
            raise DumpError(f"{folder / name}: cannot be read ({error.strerror})") from error
    return Captured(folder, info)


def digests_before(captured: Captured) -> dict[str, str]:
    """Digests of the weights, buffers and torch's random states that a call found.

    Those of NumPy and of Python are left out: where nobody seeds them, they differ in every two processes.

    Raises:
        DumpError: The tensors are damaged.
    """
    path = captured.folder / TENSORS
    found = {}
    try:
        with layout.open_plain(path) as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _LONGEST:
                raise ValueError("its header is too long")
            header = json.loads(file.read(length))
            for name, entry in header.items():
                if not name.startswith(("weights.", "buffers.", "rng.")) or name == "rng.numpy":
                    continue
                start, end = entry["data_offsets"]
                file.seek(8 + length + start)
                content = hashlib.sha256()
                for begin in range(start, end, _PIECE):
                    content.update(file.read(min(_PIECE, end - begin)))
                found[name] = f"{entry['dtype']} {entry['shape']} {content.hexdigest()}"
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DumpError(f"{path}: cannot be read ({error})") from error
    return found
