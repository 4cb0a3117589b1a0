"""Folders of ``torch.distributed.checkpoint``, read without a process group, one tensor at a time.

``.metadata`` is a pickle of a protocol that ``torch.load(weights_only=True)`` does not take. It is rewritten, opcode by
opcode and without running any, as one that it takes; torch's restricted unpickler then makes what it describes, of
nothing but the classes of such a checkpoint.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import pickletools
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np

from probe.errors import DumpError
from probe.store import layout
from probe.store.tensors import Array, Stored, StoredTensor
from probe.store.torch_files import import_torch, leaves, stored_of, why_refused

METADATA = ".metadata"
_LONGEST = 1 << 30
_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"})
_GETS, _PUTS = frozenset({"BINGET", "LONG_BINGET", "GET"}), frozenset({"BINPUT", "LONG_BINPUT", "PUT"})


def read_dcp(folder: Path) -> tuple[dict[str, Stored], list[str]]:
    """What a checkpoint holds, in the order of its metadata.

    Args:
        folder: The folder with ``.metadata``.

    Returns:
        Tensors and other values by name; and what cannot be compared, one sentence each.

    Raises:
        DumpError: torch is not installed, or the metadata is damaged or holds anything beside that of a checkpoint.
    """
    path = folder / METADATA
    torch = import_torch(path)
    metadata = _read_metadata(path, torch)
    found: dict[str, Stored] = {}
    problems: list[str] = []
    try:
        items = list(metadata.state_dict_metadata.items())
        storage = _by_name(metadata.storage_data)
    except (AttributeError, TypeError, ValueError) as error:
        raise DumpError(f"{path}: is damaged ({error})") from error
    for name, described in items:
        try:
            for key, stored in _stored(folder, str(name), described, storage.get(name, {}), torch):
                if key in found or isinstance(stored, str):
                    problems.append(f"{folder}: {key}: {stored if isinstance(stored, str) else 'stands there twice'}")
                else:
                    found[key] = stored
        except DumpError as error:
            problems.append(str(error))
        except (AttributeError, TypeError, ValueError, OverflowError) as error:
            problems.append(f"{folder}: {name}: its metadata is damaged ({error})")
    return found, problems


def _read_metadata(path: Path, torch: Any) -> Any:
    from torch.distributed.checkpoint import filesystem, metadata

    try:
        with layout.open_plain(path) as file:
            if (size := os.fstat(file.fileno()).st_size) > _LONGEST:
                raise DumpError(f"{path}: has {size} bytes, more than any that is written")
            raw = file.read()
        allowed: list[Any] = [
            getattr(module, name)
            for module, names in (
                (metadata, ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata")),
                (metadata, ("TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")),
                (filesystem, ("_StorageInfo",)),
            )
            for name in names
        ]
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as file_of_torch:
            file_of_torch.writestr("archive/data.pkl", _for_weights_only(raw))
            file_of_torch.writestr("archive/version", "3\n")
        archive.seek(0)
        with torch.serialization.safe_globals(
            [*allowed, (_path, "pathlib.PosixPath"), (_path, "pathlib.PurePosixPath")]
        ):
            found = torch.load(archive, weights_only=True)
    except DumpError:
        raise
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # noqa: BLE001  (damaged pickles raise anything)
        raise DumpError(f"{path}: {why_refused(error)}") from error
    if not isinstance(found, metadata.Metadata):
        raise DumpError(f"{path}: holds no metadata of a checkpoint")
    return found


def _path(*parts: str) -> str:
    """Stands for a path in the metadata: only text is made of it."""
    return "/".join(parts)


def _for_weights_only(raw: bytes) -> bytes:
    """A pickle of protocol 4 or 5 as one that torch's restricted unpickler takes. Nothing is run.

    Texts stand where they are used: protocol 4 takes the names of classes from the stack, protocol 2 has them in place.

    Raises:
        ValueError: It is no pickle.
    """
    out: list[bytes | str] = [pickle.PROTO + b"\x02"]
    texts: dict[int, str] = {}
    puts = 0
    ops = list(pickletools.genops(raw))
    for number, (op, argument, position) in enumerate(ops):
        end = ops[number + 1][2] if number + 1 < len(ops) else len(raw)
        text = isinstance(out[-1], str)
        if op.name in ("PROTO", "FRAME"):
            continue
        if op.name in _STRINGS:
            out.append(str(argument))
        elif op.name == "MEMOIZE" or op.name in _PUTS:
            index = puts if op.name == "MEMOIZE" else int(argument or 0)
            puts += 1
            if text:
                texts[index] = str(out[-1])
            else:
                out.append(pickle.LONG_BINPUT + index.to_bytes(4, "little"))
        elif op.name in _GETS:
            index = int(argument or 0)
            out.append(texts[index] if index in texts else pickle.LONG_BINGET + index.to_bytes(4, "little"))
        elif op.name == "STACK_GLOBAL":
            name, module = out.pop(), out.pop()
            if not isinstance(name, str) or not isinstance(module, str) or "\n" in name + module:
                raise ValueError("a class has no name")
            out.append(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        else:
            out.append(raw[position:end])
    return b"".join(_text(part) if isinstance(part, str) else part for part in out)


def _text(text: str) -> bytes:
    content = text.encode(errors="surrogatepass")
    return pickle.BINUNICODE + len(content).to_bytes(4, "little") + content


def _by_name(storage_data: Any) -> dict[str, dict[tuple[int, ...] | None, Any]]:
    found: dict[str, dict[tuple[int, ...] | None, Any]] = {}
    for index, info in storage_data.items():
        offset = None if index.offset is None else tuple(index.offset)
        found.setdefault(index.fqn, {})[offset] = info
    return found


def _stored(
    folder: Path, name: str, described: Any, storage: dict[tuple[int, ...] | None, Any], torch: Any
) -> Iterator[tuple[str, Stored | str]]:
    if type(described).__name__ == "BytesStorageMetadata":
        (info,) = storage.values()
        with _Slice.of(folder, info) as content:
            try:
                value = torch.load(content, map_location="cpu", weights_only=True)
            except Exception as error:  # noqa: BLE001  (torch.load raises anything on damaged bytes)
                yield name, why_refused(error)
                return
        for path, leaf in leaves(value):
            yield f"{name}.{path}" if path else name, stored_of(leaf)
        return
    shape = tuple(int(size) for size in described.size)
    pieces = [_Piece(tuple(c.offsets), tuple(c.sizes), storage.get(tuple(c.offsets))) for c in described.chunks]
    yield name, _Sharded(folder, name, described.properties.dtype, shape, pieces).stored()


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of a tensor, in a file of its own or in a part of one."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    info: Any


@dataclass
class _Sharded:
    """A tensor that lies in pieces: put together when its bytes are first asked for, and let go after the last."""

    folder: Path
    name: str
    dtype: Any
    shape: tuple[int, ...]
    pieces: list[_Piece]
    _whole: Any = field(default=None, repr=False)

    def stored(self) -> StoredTensor | str:
        """The tensor as it can be compared; or why it cannot."""
        count = sum(math.prod(piece.sizes) for piece in self.pieces)
        if count != math.prod(self.shape) or any(piece.info is None for piece in self.pieces):
            return f"its pieces hold {count} elements of {math.prod(self.shape)}"
        ranks = {len(self.shape), *(len(part) for piece in self.pieces for part in (piece.offsets, piece.sizes))}
        ends = [
            start >= 0 and size >= 0 and start + size <= whole
            for piece in self.pieces
            for start, size, whole in zip(piece.offsets, piece.sizes, self.shape, strict=len(ranks) == 1)
        ]
        if len(ranks) > 1 or not all(ends) or _overlap(self.pieces):
            return "its pieces do not lie in it"
        if any(getattr(piece.info, "transform_descriptors", None) for piece in self.pieces):
            return "it was stored through an extension, which is not undone"
        size = math.prod(self.shape) * self.dtype.itemsize
        return StoredTensor(str(self.dtype).removeprefix("torch."), self.shape, size, self._read)

    def _read(self, start: int, stop: int) -> Array:
        import torch

        if not math.prod(self.shape):
            return np.empty(0, np.uint8)
        if self._whole is None:
            self._whole = self._put_together()
        content: Array = self._whole.reshape(-1).view(torch.uint8).numpy()[start:stop]
        if stop == math.prod(self.shape) * self.dtype.itemsize:
            self._whole = None  # tensors are read once, from the start to the end
        return content

    def _put_together(self) -> Any:
        import torch

        whole = torch.empty(self.shape, dtype=self.dtype)
        for piece in self.pieces:
            with _Slice.of(self.folder, piece.info) as content:
                try:
                    part = torch.load(cast(IO[bytes], content), map_location="cpu", weights_only=True)
                except Exception as error:  # noqa: BLE001  (torch.load raises anything on damaged bytes)
                    raise DumpError(f"{self.folder}: {self.name}: {why_refused(error)}") from error
            fits = isinstance(part, torch.Tensor) and (part.dtype, tuple(part.shape)) == (self.dtype, piece.sizes)
            if not fits:
                raise DumpError(f"{self.folder}: {self.name}: a piece is not what the metadata says")
            place = tuple(slice(start, start + size) for start, size in zip(piece.offsets, piece.sizes, strict=True))
            whole[place] = part.detach()
        return whole


def _overlap(pieces: list[_Piece]) -> bool:
    """Whether any two pieces share an element; where none do, as many elements as there are leave no gap."""
    boxes = [
        [(start, start + size) for start, size in zip(piece.offsets, piece.sizes, strict=True)]
        for piece in pieces
        if math.prod(piece.sizes)
    ]
    return any(
        all(one[0] < two[1] and two[0] < one[1] for one, two in zip(left, right, strict=True))
        for number, left in enumerate(boxes)
        for right in boxes[:number]
    )


class _Slice(io.RawIOBase):
    """A part of a file as a file of its own.

    Args:
        file: The whole.
        start: Where the part begins.
        size: How long it is.
    """

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        super().__init__()
        self._file, self._start, self._size, self._at = file, start, size, 0

    @staticmethod
    def of(folder: Path, info: Any) -> _Slice:
        """The part that a checkpoint's metadata names.

        Raises:
            DumpError: It lies outside the folder, or cannot be read.
        """
        try:
            name, start, size = str(info.relative_path), int(info.offset), int(info.length)
        except (AttributeError, TypeError, ValueError) as error:
            raise DumpError(f"{folder / METADATA}: is damaged ({error})") from error
        path = folder / name
        if os.path.isabs(name) or ".." in Path(name).parts or path.parent.resolve() != folder.resolve():
            raise DumpError(f"{folder}: its metadata names {name!r}, which lies outside the checkpoint")
        try:
            file = layout.open_plain(path)
        except (OSError, ValueError) as error:
            raise DumpError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
        whole = os.fstat(file.fileno()).st_size
        if start < 0 or size < 0 or start + size > whole:
            file.close()
            raise DumpError(f"{path}: has {whole} bytes, fewer than its metadata says")
        return _Slice(file, start, size)

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to a place in the part."""
        self._at = max(0, {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence] + offset)
        return self._at

    def tell(self) -> int:
        """The place in the part."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Reads what fits."""
        view = memoryview(buffer).cast("B")
        size = max(0, min(len(view), self._size - self._at))
        self._file.seek(self._start + self._at)
        done: int = self._file.readinto(view[:size])  # type: ignore[attr-defined]
        self._at += done
        return done

    def close(self) -> None:
        """Closes the whole file, too."""
        if not self.closed:
            self._file.close()
        super().close()
