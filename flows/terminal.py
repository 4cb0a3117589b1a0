"""What a command writes: data to standard output, everything for people to standard error, and nothing else to either.

Libraries, their warnings and processes that a check starts write to descriptors 1 and 2, too: these lead elsewhere
while a command works.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from typing import IO, TextIO


class Streams:
    """The two streams of a command.

    Args:
        verbose: Whether what libraries write is shown to people; else it is kept aside.
    """

    def __init__(self, verbose: bool) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self.results: TextIO = _copy_of(1, sys.stdout)
        """Receives data."""
        self.people: TextIO = _copy_of(2, sys.stderr)
        """Receives what people read."""
        self._aside: IO[bytes] | None = None
        if not verbose:
            self._aside = tempfile.TemporaryFile(prefix="firstdiff-")
            os.dup2(self._aside.fileno(), 2)
        os.dup2(2, 1)

    def said_aside(self) -> str:
        """What libraries wrote that was not shown."""
        sys.stderr.flush()
        if self._aside is None:
            return ""
        self._aside.seek(0)
        return self._aside.read().decode(errors="replace")


def _copy_of(descriptor: int, stream: TextIO) -> TextIO:
    """A stream to where a descriptor leads now."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return open(os.dup(descriptor), "w", buffering=1, encoding=encoding, errors="backslashreplace")


def printable(text: str) -> str:
    """Text for a terminal. Names come from anybody's dumps: none moves the cursor or has no encoding."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


class PrintableFormatter(logging.Formatter):
    """Formats a record as text that is safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        return printable(super().format(record))
