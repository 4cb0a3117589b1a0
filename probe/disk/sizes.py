"""Sizes: of folders on the disk, and as people write and read them."""

from __future__ import annotations

import os
import re
from pathlib import Path

from probe.errors import UsageError

_UNITS = ("", "K", "M", "G", "T", "P")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGTP]?)(?:i?B)?", re.IGNORECASE)


def folder_size(folder: Path) -> int:
    """Bytes that a folder takes on the disk. No link is followed."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    said = entry.stat(follow_symlinks=False)
                    total += said.st_blocks * 512 if hasattr(said, "st_blocks") else said.st_size
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError:
            continue  # it vanished, or is not ours to look into
    return total


def parse_size(text: str) -> int:
    """A size in bytes, as ``500M``, ``1.5GiB`` or ``1000``; K is 1024.

    Raises:
        UsageError: It is none.

    Example:
        >>> parse_size("2K")
        2048
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no size; write 500M, 20G or a number of bytes")
    return int(float(match["number"]) * 1024 ** _UNITS.index(match["unit"].upper()))


def show_size(size: int) -> str:
    """A size as people read it.

    Example:
        >>> show_size(2048), show_size(3 << 29)
        ('2.0 KiB', '1.5 GiB')
    """
    number, unit = float(size), 0
    while number >= 1024 and unit < len(_UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{size} bytes" if unit == 0 else f"{number:.1f} {_UNITS[unit]}iB"
