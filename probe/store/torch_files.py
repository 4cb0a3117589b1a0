"""Files of ``torch.save``: mapped rather than loaded where the format allows it.

Nothing is unpickled but by ``weights_only=True``. What is refused there is said, not read.
"""

from __future__ import annotations

import importlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import DumpError
from probe.store import layout
from probe.store.tensors import Array, Stored, StoredTensor, StoredValue

_REFUSES = "torch.load(weights_only=True) refuses it"
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".th")
_DEEPEST = 200
_NAMELESS = "the tensor"
"""What the content of a file is called that holds one value and no dictionary."""
_LONGEST_TEXT = 1 << 20


def looks_like_torch(path: Path) -> bool:
    """Whether a file begins as ``torch.save`` has it, whatever it is called: a zip archive, or a pickle."""
    try:
        with layout.open_plain(path) as file:
            start = file.read(4)
    except OSError:
        return False
    return start == b"PK\x03\x04" or start[:1] == b"\x80"


class RefusedError(DumpError):
    """A file is whole, and holds what ``weights_only=True`` refuses."""


def read_torch(path: Path) -> tuple[dict[str, Stored], list[str]]:
    """What a file holds, in the order of the state dict.

    Args:
        path: The file.

    Returns:
        Tensors and other values by their dotted path; and what cannot be compared, one sentence each.

    Raises:
        DumpError: torch is not installed, or the file is missing, damaged, or holds what ``weights_only=True`` refuses.
    """
    found: dict[str, Stored] = {}
    problems: list[str] = []
    for name, value in leaves(load_weights(path)):
        name = name or _NAMELESS
        if name in found:
            problems.append(f"{path}: two values are called {name!r}")
            continue
        stored = stored_of(value)
        if isinstance(stored, str):
            problems.append(f"{path}: {name}: {stored}")
        else:
            found[name] = stored
    return found, problems


def load_weights(path: Path) -> Any:
    """The content of a file that ``torch.save`` wrote.

    Raises:
        DumpError: As for ``read_torch``.
    """
    torch = import_torch(path)
    try:
        layout.open_plain(path).close()
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        return _load(path, torch)
    except Exception as error:  # noqa: BLE001  (torch.load raises anything on a damaged file)
        if "must be imported to load DTensors" not in str(error):
            raise _error(path, error) from error
    try:
        importlib.import_module("torch.distributed.tensor")  # allows the shards of FSDP2 and tensor parallelism
        with _without_remarks():
            return _load(path, torch)
    except Exception as error:  # noqa: BLE001  (the same)
        raise _error(path, error) from error


def _load(path: Path, torch: Any) -> Any:
    return torch.load(path, map_location="cpu", weights_only=True, mmap=_can_be_mapped(path))


@contextmanager
def _without_remarks() -> Iterator[None]:
    """Keeps torch from remarking that there are no process groups: nothing is computed with what is loaded."""
    logger = logging.getLogger("torch.distributed.device_mesh")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def import_torch(path: Path) -> Any:
    """The module torch.

    Raises:
        DumpError: It is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise DumpError(f"{path}: reading what torch saved needs torch; pip install torch") from error
    return torch


def _error(path: Path, error: Exception) -> DumpError:
    why = why_refused(error)
    return (RefusedError if why.startswith(_REFUSES) else DumpError)(f"{path}: {why}")


def why_refused(error: Exception) -> str:
    """Why ``torch.load`` gave nothing, in a few words."""
    text = " ".join(str(error).split())
    if "Weights only load failed" in text or "weights_only" in text:
        detail = text.partition("WeightsUnpickler error: ")[2] or text
        named = detail.partition("Unsupported global: GLOBAL ")[2].split(" ")[0]
        what = f"it holds {named}" if named else detail.split(". ")[0][:120]
        return f"{_REFUSES} ({what}); nothing else is unpickled"
    return f"not a readable file of torch.save ({text.partition('. ')[0][:200]})"


def _can_be_mapped(path: Path) -> bool:
    with layout.open_plain(path) as file:
        return file.read(4) == b"PK\x03\x04"


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Every value of nested dictionaries and lists, by its dotted path."""
    if depth > _DEEPEST:
        yield path, _TooDeep
    elif isinstance(value, Mapping):
        for key, child in value.items():
            yield from leaves(child, f"{path}.{key}" if path else str(key), depth + 1)
        if not value and path:
            yield path, {}
    elif isinstance(value, list | tuple) and not hasattr(value, "numel"):
        for index, child in enumerate(value):
            yield from leaves(child, f"{path}.{index}" if path else str(index), depth + 1)
        if not value and path:
            yield path, []
    else:
        yield path, value


class _TooDeep:
    """Stands for what is nested too deeply to be looked at."""


def stored_of(value: Any) -> Stored | str:
    """A value as it can be compared; or why it cannot."""
    import torch

    if isinstance(value, torch.Tensor):
        return tensor_of(value)
    if value is None or isinstance(value, bool | int | float | str | dict | list | torch.dtype | torch.Size):
        kind = type(value).__name__
        text = _text(value)
        return StoredValue(kind, text) if len(text) <= _LONGEST_TEXT else "is longer than any text that is compared"
    return f"a {getattr(value, '__name__', type(value).__name__)} is not compared"


def _text(value: Any) -> str:
    if type(value) is int:
        return str(value) if abs(value) < 1 << 64 else hex(value)
    return json.dumps(value) if isinstance(value, bool | float | str | dict | list) else str(value)


def tensor_of(value: Any) -> StoredTensor | str:
    """A tensor of torch as it can be compared; or why it cannot."""
    import torch

    if type(value).__name__ == "DTensor":
        value = value.to_local()  # the shard that was saved
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"a {type(value).__name__} is not compared"
    if value.layout is not torch.strided or value.is_quantized or value.device.type != "cpu":
        return "a sparse or quantised tensor has no exact bytes"
    dtype = str(value.dtype).removeprefix("torch.")
    shape, size = tuple(value.shape), value.numel() * value.element_size()
    if size > value.untyped_storage().nbytes() and size > 1 << 30:
        return f"a view of {size} bytes of {value.untyped_storage().nbytes()} is not compared"
    return StoredTensor(dtype, shape, size, _Bytes(value).read)


class _Bytes:
    """The bytes of a tensor in row-major order, made when they are first asked for."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def read(self, start: int, stop: int) -> Array:
        """The bytes from one place to another."""
        import torch

        tensor = self._tensor.detach().resolve_conj().resolve_neg()
        if not tensor.numel():
            return np.empty(0, np.uint8)
        width = tensor.element_size()
        first, last = start // width, -(-stop // width)
        part = tensor.reshape(-1)[first:last] if tensor.is_contiguous() else _elements(tensor, first, last)
        if part.stride(-1) != 1:  # one element of a larger tensor, which counts as contiguous however it lies
            part = part.clone(memory_format=torch.contiguous_format)
        content: Array = part.view(torch.uint8).numpy()
        return content[start - first * width : stop - first * width]


def _elements(tensor: Any, first: int, last: int) -> Any:
    """Some elements of a tensor that does not lie in row-major order, without a copy of the whole."""
    import torch

    index = torch.arange(first, last)
    places = []
    for size in reversed(tensor.shape):
        places.append(index % size)
        index = index // size
    return tensor[tuple(reversed(places))].contiguous()
