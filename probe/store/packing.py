"""A dump folder in one compressed file, ``packed.tar.zst``, and back.

::

    msprobe_dump/
      packed.tar.zst       every file of the dump, also those that lie beside it: what counts
      manifest.json  environment.json  configurations.json     copies, for whoever looks

The file is written under another name, read back and compared, forced to the disk and renamed; only then are the
originals removed. Where both are there, since a process died in between, the packed file is whole.

A packed dump may come from anywhere. Only plain files are taken out of it, each under a new name inside a new folder,
never more bytes than the disk has room for or than a dump can have.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import zstandard

from probe.errors import DumpError
from probe.store import layout
from probe.store.digest import hasher
from probe.store.scan import shown, walk
from probe.store.unpacking import NAME, PER_FILE, Limits, plain_members
from probe.store.writer import write_atomic
from probe.types import STAGES

LEVEL = 3
"""zstd's level: more costs time and gains little on numbers."""
CHUNK = 1 << 20
REDUCED = "reduced.json"
"""Says in a dump that its values were removed, and which."""
_PARTIAL = f".{NAME}.partial"
_VALUES = (layout.DATA, layout.CAPTURE, *STAGES)
_STAYS = (layout.ENVIRONMENT, layout.CONFIGURATIONS)


@dataclass(frozen=True, slots=True)
class Packed:
    """What packing a dump did.

    Example:
        >>> Packed(1000, 400).saved
        600
    """

    before: int
    """Bytes of the dump's files."""
    after: int
    """Bytes that it has now."""

    @property
    def saved(self) -> int:
        """Bytes that were gained."""
        return self.before - self.after


def is_packed(dump: Path) -> bool:
    """Whether a dump folder holds a packed dump."""
    return os.path.lexists(dump / NAME)


def pack(dump: Path, source: Path | None = None) -> Packed | None:
    """Compresses a dump folder.

    Args:
        dump: The dump folder.
        source: A folder with the files that the packed dump holds; None takes the dump's own. What it holds replaces
            what was packed before.

    Returns:
        What came of it; None where there is nothing to gain or nothing to do, and the dump is as it was.

    Raises:
        DumpError: The dump holds what is no plain file, or cannot be read or written. It can be read as before.
    """
    if source is None and is_packed(dump):
        if any(_is_original(name) for name in _files(dump)):  # a process that packed it died before the end
            _remove_originals(dump, _packed_names(dump))
        return None
    source = source or dump
    partial = dump / _PARTIAL
    try:
        files = _files(source)
        before = sum((source / file).stat().st_size for file in files)
        taken = _write(source, files, partial)
        size = partial.stat().st_size
        if not files or not Limits.allow(size, before + 2 * PER_FILE * len(files)):
            partial.unlink()
            return None
        if _digest_of(partial) != taken:
            raise DumpError(f"{partial}: does not read back as it was written; the dump stays as it is")
        os.replace(partial, dump / NAME)
        _sync_folder(dump)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise DumpError(f"{error.filename or dump}: cannot be compressed ({error.strerror or error})") from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    try:
        if source is not dump:
            _copy_what_stays(source, dump)
        _remove_originals(dump, {os.fsencode(file) for file in files})
    except OSError as error:
        raise DumpError(f"{error.filename or dump}: is packed, but stays too ({error.strerror or error})") from error
    return Packed(before, size)


@contextmanager
def unpacked(dump: Path, scratch: Path | None = None, only: str = "") -> Iterator[Path]:
    """A dump folder whose files can be read: itself, or where it is packed a copy that lives as long as this.

    Args:
        dump: The dump folder.
        scratch: Where the copy may be made; None takes the folder for temporary files (``TMPDIR``).
        only: Beginning of the names of the files that are unpacked; all are without it.

    Raises:
        DumpError: The packed file is damaged or hostile, or there is no room for what is in it.
    """
    if not is_packed(dump):
        yield dump
        return
    with tempfile.TemporaryDirectory(prefix="firstdiff-", dir=scratch, ignore_cleanup_errors=True) as folder:
        copy = Path(folder, dump.name or "dump")
        unpack(dump, copy, only)
        yield copy


def unpack(dump: Path, target: Path, only: str = "") -> None:
    """Writes the files of a packed dump into a new folder.

    Args:
        dump: The dump folder.
        target: The new folder.
        only: Beginning of the names of the files that are written; all are without it.

    Raises:
        DumpError: As for ``unpacked``; what was written until then is there.
    """
    path = dump / NAME
    try:
        target.mkdir(mode=0o700)
        made: set[Path] = set()
        names: set[bytes] = set()
        for name, size, content in plain_members(path, Limits.for_disk(path, target)):
            names.add(os.fsencode(name))
            if not name.startswith(only):
                for _ in content:
                    pass
                continue
            file = target / name
            if file.parent not in made:
                file.parent.mkdir(parents=True, exist_ok=True)
                made.add(file.parent)
            _write_new(file, content)
            del size
        _require_known(dump, names)
    except OSError as error:
        raise DumpError(f"{shown(path)}: cannot be unpacked ({error.strerror or error}, {target})") from error
    except ValueError as error:  # a name with a zero byte
        raise DumpError(f"{shown(path)}: is damaged ({error})") from error


# ---- writing ----


def _files(folder: Path) -> list[str]:
    """Every file of a dump, relative to it, the manifests last: they say how the others must be."""
    found = []
    for base, entries in walk(folder):
        if entries is None:
            raise DumpError(f"{shown(Path(base))}: cannot be read, or is a link; the dump is not compressed")
        for entry in entries:
            if entry.name in (_PARTIAL, NAME) and Path(base) == folder:
                continue
            if entry.is_dir(follow_symlinks=False):
                continue
            if not entry.is_file(follow_symlinks=False):
                raise DumpError(f"{shown(Path(entry.path))}: is no plain file; the dump is not compressed")
            found.append(os.path.relpath(entry.path, folder))
    return sorted(found, key=lambda name: (name.startswith("manifest."), name))


def _write(folder: Path, files: list[str], target: Path) -> str:
    """Writes the packed file; returns a digest of what is in it."""
    taken = hasher()
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
    target.unlink(missing_ok=True)
    with target.open("xb") as raw:
        with (
            compressor.stream_writer(raw, closefd=False) as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name in files:
                with layout.open_plain(folder / name) as file:
                    member = tarfile.TarInfo(name)
                    member.size = os.fstat(file.fileno()).st_size
                    taken.update(os.fsencode(name) + b"\0%d\0" % member.size)
                    archive.addfile(member, _Taking(file, taken.update))
        raw.flush()
        os.fsync(raw.fileno())
    return taken.hexdigest()


class _Taking:
    """A file whose bytes are shown to somebody as they are read."""

    def __init__(self, file: IO[bytes], take: Callable[[bytes], None]) -> None:
        self._file, self._take = file, take

    def read(self, size: int = -1) -> bytes:
        piece = self._file.read(size)
        self._take(piece)
        return piece


def _digest_of(path: Path) -> str:
    """The same digest, of what is in a packed file."""
    taken = hasher()
    for name, size, content in plain_members(path, Limits.for_reading(path)):
        taken.update(os.fsencode(name) + b"\0%d\0" % size)
        for piece in content:
            taken.update(piece)
    return taken.hexdigest()


def _packed_names(dump: Path) -> set[bytes]:
    names = set()
    for name, _, content in plain_members(dump / NAME, Limits.for_reading(dump / NAME)):
        for _ in content:
            pass
        names.add(os.fsencode(name))
    return names


def _remove_originals(dump: Path, packed: set[bytes]) -> None:
    """Removes the files that a packed dump holds, and the folders that they leave empty."""
    for base, entries in list(walk(dump))[::-1]:
        for entry in entries or ():
            name = os.path.relpath(entry.path, dump)
            if _is_original(name) and _belongs(name, packed) and not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.path)
        if Path(base) != dump and entries is not None and not os.listdir(base):
            os.rmdir(base)


def _is_original(name: str) -> bool:
    """Whether a file of a dump is removed when it is packed."""
    return name not in _STAYS and layout.rank_of_manifest(name) == ()


def _belongs(name: str, packed: set[bytes]) -> bool:
    """Whether a file beside a packed dump is in it, or was in it before its values were removed."""
    return os.fsencode(name) in packed or (REDUCED.encode() in packed and name.split("/")[0] in _VALUES)


def _copy_what_stays(source: Path, dump: Path) -> None:
    for file in [*(source / name for name in _STAYS), *layout.manifests(source).values()]:
        if file.is_file():
            write_atomic(dump / file.name, file.read_bytes())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- reading ----


def _write_new(path: Path, content: Iterator[bytes]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        for piece in content:
            file.write(piece)


def _require_known(dump: Path, packed: set[bytes]) -> None:
    """Files beside a packed dump are what was left when a process died: all of them are in it, or it is no whole."""
    for base, entries in walk(dump):
        for entry in entries or ():
            name = os.path.relpath(entry.path, dump)
            if entry.is_dir(follow_symlinks=False) or name in (NAME, _PARTIAL) or _belongs(name, packed):
                continue
            raise DumpError(f"{shown(Path(entry.path))}: lies beside {NAME}, which does not hold it")
        if entries is None:
            raise DumpError(f"{shown(Path(base))}: cannot be read, or is a link, which is not followed")
