"""What a command writes: data to standard output, everything for people to standard error, and nothing else to either.

Libraries, their warnings and processes that a check starts write to descriptors 1 and 2, too: these lead elsewhere
while a command works.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import IO, TextIO

from probe.language import Language, Text, language, said, say


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
    """Formats a record as text that is safe for a terminal.

    Args:
        pattern: See ``logging.Formatter``.
        spoken: The language of those sentences of it that are in the catalogue.
    """

    def __init__(self, pattern: str, spoken: Language = "en") -> None:
        super().__init__(pattern)
        self._spoken: Language = spoken

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        if isinstance(record.args, tuple) and any(isinstance(one, Text) for one in record.args):
            told = tuple(say(one, self._spoken) if isinstance(one, Text) else one for one in record.args)
            record = logging.makeLogRecord({**record.__dict__, "args": told})
        return printable(super().format(record))


def fail(message: str, status: int, as_json: bool, results: TextIO, people: TextIO) -> int:
    """Says what went wrong, in one sentence; returns the exit status.

    Args:
        message: The sentence.
        status: The exit status.
        as_json: Whether programs are told, too.
        results: Receives data.
        people: Receives what people read.
    """
    if as_json:
        verdict = "inconclusive" if status == 2 else None
        document = {"format": 1, "verdict": verdict, "error": " ".join(message.split())}
        results.write(json.dumps(document) + "\n")
    people.write(f"firstdiff: {printable(' '.join(said(message).split()))}\n")
    return status


def internal_error(error: Exception, said: str) -> str:
    """One sentence for a defect; the traceback goes into a file for whoever mends it."""
    with tempfile.NamedTemporaryFile("w", prefix="firstdiff-", suffix=".log", delete=False, encoding="utf-8") as file:
        file.write("".join(traceback.format_exception(error)) + said)
    return f"internal error, please report it with {file.name}: {type(error).__name__}: {error}"


def show_log(streams: Streams, verbose: bool, quiet: bool) -> Callable[[], None]:
    """Has people see what is logged, with a live display on a terminal; returns what ends that."""
    spoken = language()
    logger = logging.getLogger("firstdiff")
    logger.setLevel(logging.INFO)
    handler: logging.Handler = logging.NullHandler()

    def end() -> None:
        return

    if verbose:
        handler = logging.StreamHandler(streams.people)
        handler.setFormatter(PrintableFormatter("%(message)s", spoken))
    elif not quiet:
        from flows.progress import Display

        handler = display = Display(
            streams.people, streams.people.isatty() and os.environ.get("TERM") != "dumb", language()
        )
        end = display.end
        handler.addFilter(lambda record: record.name != "firstdiff.trainer")
    logger.handlers = [handler]
    logger.propagate = False
    return end
