"""Reading ``packed.tar.zst``, which may come from anywhere: plain files under names inside the folder, in bounds."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import zstandard

from probe.errors import DumpError
from probe.store import layout
from probe.store.scan import shown

NAME = "packed.tar.zst"
"""The packed dump, in the dump folder."""
MOST_TIMES = 1000
"""A packed dump unpacks to at most so many times its size, and ``ALWAYS`` bytes. Real ones stay below 100; one that
would not is never packed."""
ALWAYS = 64 << 20
PER_FILE = 4096
"""Bytes that a file takes beside its content, so that many empty ones are no way around the limits."""
RESERVE = 64 << 20
"""Bytes that stay free on the disk."""
_WINDOW = 1 << 27
"""Most memory that a packed file may ask for."""
_PIECE = 1 << 10
"""Bytes that are decompressed together: zstd makes at most 32 MiB of them."""
_LARGEST_HEADER = 1 << 20
_BLOCK = 1 << 18
"""Bytes that tarfile reads together."""
_END = 1024
"""Zeros that end an archive."""
_DEEPEST = 64
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may come out of a packed file.

    Example:
        >>> Limits.allow(1000, 1 << 40)
        False
    """

    bytes: int
    room: int | None = None
    """Free bytes on the disk; None where nothing is written."""
    place: str = ""

    @staticmethod
    def allow(packed: int, whole: int) -> bool:
        """Whether a packed file of one size may hold so much."""
        return whole <= ALWAYS + MOST_TIMES * packed

    @classmethod
    def for_reading(cls, path: Path) -> Limits:
        """Of a file whose content is only looked at."""
        return cls(ALWAYS + MOST_TIMES * os.lstat(path).st_size)

    @classmethod
    def for_disk(cls, path: Path, target: Path) -> Limits:
        """Of a file whose content is written into a folder."""
        room = max(0, shutil.disk_usage(target).free - RESERVE)
        return cls(ALWAYS + MOST_TIMES * os.lstat(path).st_size, room, str(target.parent))

    def check(self, path: Path, size: int) -> None:
        """Raises where there is more than may be."""
        if size > self.bytes:
            raise DumpError(f"{shown(path)}: holds far more than any dump of its size; it is not unpacked")
        if self.room is not None and size > self.room:
            raise DumpError(
                f"{shown(path)}: to be unpacked it needs more than the {self.room >> 20} MiB that are free in"
                f" {self.place}; name another folder with TMPDIR"
            )


def plain_members(path: Path, limits: Limits) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """The files in a packed dump: name, size, and content, which is read before the next one.

    Args:
        path: The packed file.
        limits: How much may come out of it.

    Raises:
        DumpError: It is damaged, cut off, or holds what no dump does.
        OSError: It is a link, or cannot be read.
    """
    with layout.open_plain(path) as raw:
        stream = _Decompressed(raw, path, limits)
        try:
            with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r|", errorlevel=2, bufsize=_BLOCK) as archive:
                count = 0
                while (member := archive.next()) is not None:
                    _require_plain(member, path)
                    count += 1
                    stream.allow(member.size + _LARGEST_HEADER)
                    limits.check(path, stream.total + member.size + PER_FILE * count)
                    yield member.name, member.size, _content(archive, member, path)
                    archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
                    stream.allow(_LARGEST_HEADER)
                end = archive.offset
            stream.require_end(end)
        except (tarfile.TarError, zstandard.ZstdError, ValueError, OverflowError, RecursionError, EOFError) as error:
            raise DumpError(f"{shown(path)}: is damaged ({' '.join(str(error).split())[:200]})") from error


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> Iterator[bytes]:
    file = archive.extractfile(member)
    rest = member.size
    try:
        while file is not None and rest and (piece := file.read(min(rest, 1 << 20))):
            rest -= len(piece)
            yield piece
    except tarfile.ReadError as error:  # raised where the pieces are used, and not in `_members`
        raise DumpError(f"{shown(path)}: is cut off") from error
    if rest:
        raise DumpError(f"{shown(path)}: is cut off")


def _require_plain(member: tarfile.TarInfo, path: Path) -> None:
    name = member.name
    parts = name.split("/")
    if member.type not in _PLAIN or member.sparse is not None:
        raise DumpError(f"{shown(path)}: holds {_brief(name)}, which is no plain file")
    inside = not os.path.isabs(name) and all(part not in ("", ".", "..") for part in parts) and "\0" not in name
    if not inside or "\\" in name or len(parts) > _DEEPEST:
        raise DumpError(f"{shown(path)}: holds {_brief(name)}, which would lie outside the dump folder")
    if parts[0] == NAME or member.size < 0:
        raise DumpError(f"{shown(path)}: holds {_brief(name)}, which no dump does")


def _brief(name: str) -> str:
    text = ascii(name)
    return text if len(text) <= 100 else text[:100] + "…"


class _Decompressed:
    """What a packed file decompresses to, read in small pieces, so that little of it asks for little memory.

    Args:
        raw: The packed file.
        path: Its path.
        limits: How much may come out of it.
    """

    def __init__(self, raw: IO[bytes], path: Path, limits: Limits) -> None:
        self._raw, self._path, self._limits = raw, path, limits
        self._frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
        self._waiting = b""
        self._offset = 0
        self._allowed = _LARGEST_HEADER
        self._latest = (b"", b"")
        self.total = 0
        """Bytes that have been read."""

    def allow(self, size: int) -> None:
        """How many bytes may be read until this is said again."""
        self._allowed = size + 2 * _BLOCK

    def read(self, size: int) -> bytes:
        """The next bytes; fewer at the end."""
        pieces, wanted = [], size
        while wanted and (self._offset < len(self._waiting) or self._more()):
            piece = self._waiting[self._offset : self._offset + wanted]
            self._offset += len(piece)
            wanted -= len(piece)
            pieces.append(piece)
        found = b"".join(pieces)
        self.total += len(found)
        self._latest = (self._latest[1], found)
        self._allowed -= len(found)
        self._limits.check(self._path, self.total)
        if self._allowed < 0:
            raise DumpError(f"{shown(self._path)}: is damaged (a header of it is longer than any)")
        return found

    def require_end(self, end: int) -> None:
        """Sees to it that the file was whole: its checksum is right, it has its end, and nothing comes after that.

        Args:
            end: Where tarfile found no further file. It takes damage for the end.
        """
        known = b"".join(self._latest)
        rest = known[len(known) - (self.total - end) :] if 0 <= self.total - end <= len(known) else b"?"
        self.allow(_LARGEST_HEADER)
        while piece := self.read(_BLOCK):
            rest += piece
        if len(rest) < _END:
            raise DumpError(f"{shown(self._path)}: is cut off")
        if rest.strip(b"\0"):
            raise DumpError(f"{shown(self._path)}: is damaged (something comes after its end)")
        if not self._frame.eof:
            raise DumpError(f"{shown(self._path)}: is cut off")
        if self._frame.unused_data or self._raw.read(1):
            raise DumpError(f"{shown(self._path)}: is damaged (something comes after its end)")

    def _more(self) -> bool:
        """Decompresses the next piece; False at the end."""
        while not self._frame.eof and (piece := self._raw.read(_PIECE)):
            self._waiting, self._offset = self._frame.decompress(piece), 0
            if self._waiting:
                return True
        return False
