"""What a person sees while a check works: a live display on a terminal, plain lines in a pipe.

It learns from log records that carry a ``tasks.Begun``, and from what the trainer has recorded so far; the trainer
knows nothing of it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flows.terminal import PrintableFormatter, printable
from probe.language import Language, join, say, tell
from probe.store.live import LiveRun, Seen

if TYPE_CHECKING:
    from tasks import Begun

LOOK_SECONDS = 0.5
"""Time between two looks at what is recorded."""
LINE_SECONDS = 2.0
"""Least time between two lines about one training, in a pipe."""
_TAGS_SHOWN = 6
_LONGEST_TAG = 40


class Display(logging.Handler):
    """Shows log records, and how far the check is.

    Args:
        stream: Where to.
        live: Whether the stream is a terminal whose lower lines may be drawn again and again.
        spoken: The language.

    Example:
        >>> import io
        >>> Display(io.StringIO(), live=False).end()
    """

    def __init__(self, stream: TextIO, live: bool, spoken: Language = "en") -> None:
        super().__init__()
        self.setFormatter(PrintableFormatter("%(message)s", spoken))
        self._spoken: Language = spoken
        self._stream = stream
        self._begun: Begun | None = None
        self._training: _Training | None = None
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None
        self._live: Live | None = None
        if live:
            console = Console(file=stream)
            self._live = Live(console=console, get_renderable=self._drawn, refresh_per_second=4, transient=True)

    def emit(self, record: logging.LogRecord) -> None:
        """Shows a record; one that says that a step begins also moves the display on."""
        try:
            self._write(self.format(record))
            begun: Begun | None = getattr(record, "begun", None)
            if begun is not None:
                self._begin(begun)
        except Exception:  # noqa: BLE001  (a logging handler never ends the work that it shows)
            self.handleError(record)

    def end(self) -> None:
        """Ends the display; what was drawn last is wiped away.

        Not ``close``, which Prefect calls for every handler there is when it sets up its own.
        """
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()
        if self._live is not None:
            self._live.stop()

    def _write(self, text: str) -> None:
        if self._live is not None and self._live.is_started:
            self._live.console.print(Text(text), soft_wrap=True)
        else:
            self._stream.write(text + "\n")
            self._stream.flush()

    def _begin(self, begun: Begun) -> None:
        self._begun = begun
        self._training = None if begun.dump is None else _Training(LiveRun(begun.dump), begun.training_steps)
        if self._live is not None:
            self._live.start()
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="firstdiff-progress", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            training = self._training
            if training is None:
                continue
            training.look()
            if self._live is None and training.is_worth_a_line():
                self.acquire()
                try:
                    self._write(printable(say(training.line(), self._spoken)))
                finally:
                    self.release()

    def _drawn(self) -> Any:
        """What stands at the bottom of the terminal now."""
        begun, training = self._begun, self._training
        if begun is None:
            return Text()
        from tasks import STEPS

        head = Text(
            f"[{begun.step}/{STEPS}] {printable(say(begun.what, self._spoken))}",
            style="bold",
            no_wrap=True,
            overflow="ellipsis",
        )
        if training is None:
            return head
        bar = Table.grid(padding=(0, 1))
        total = training.total
        bar.add_row(
            ProgressBar(
                total=total or 1, completed=min(training.seen.steps, total or 0), width=24, pulse=total is None
            ),
            Text(say(training.position(), self._spoken), no_wrap=True, overflow="ellipsis"),
        )
        return Group(
            head, bar, Text(say(training.contents(), self._spoken), style="dim", no_wrap=True, overflow="ellipsis")
        )


class _Training:
    """One run of the trainer: how far it is, how fast, and how long it still takes."""

    def __init__(self, run: LiveRun, total: int | None) -> None:
        self._run = run
        self.total = total
        self.seen = Seen()
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] = (time.monotonic(), 0)
        self._line = self._last

    def look(self) -> None:
        self.seen = self._run.look()
        now = time.monotonic()
        if self._first is None and self.seen.records:
            self._first = (now, self.seen.steps)  # what came before was loading the model
        if self.seen.steps != self._last[1]:
            self._last = (now, self.seen.steps)

    def is_worth_a_line(self) -> bool:
        """Whether another step is finished, and the last line is some time ago."""
        now = time.monotonic()
        if self.seen.steps == self._line[1] or now - self._line[0] < LINE_SECONDS:
            return False
        self._line = (now, self.seen.steps)
        return True

    def line(self) -> str:
        return join("", ("  ", join("; ", (self.position(), self.contents()))))

    def position(self) -> str:
        done = tell("training step {step}", step=self.seen.steps)
        if self.total is not None:
            done = tell("training step {step} of {total}", step=self.seen.steps, total=self.total)
        if not self.seen.records and not self.seen.steps:
            return tell("the trainer is starting")
        seconds = self._seconds_per_step()
        if seconds is None:
            return done
        rate = tell("{seconds} s a step", seconds=f"{seconds:.2f}" if seconds < 100 else f"{seconds:.0f}")
        if self.total is None:
            return tell("{done}, {rate}", done=done, rate=rate)
        left = max(0.0, seconds * (self.total - self.seen.steps) - (time.monotonic() - self._last[0]))
        return tell("{done}, {rate}, {left} left", done=done, rate=rate, left=_duration(left))

    def contents(self) -> str:
        tags = [printable(tag)[:_LONGEST_TAG] for tag in list(self.seen.tags)[-_TAGS_SHOWN:]]
        more = len(self.seen.tags) - len(tags)
        listed = join(", ", tags) + (tell(" and {more} more", more=more) if more > 0 else "")
        records = tell("{count:,} records", count=self.seen.records)
        records = tell("1 record") if self.seen.records == 1 else records
        return tell("{records}: {tags}", records=records, tags=listed) if tags else records

    def _seconds_per_step(self) -> float | None:
        if self._first is None or self._last[1] <= self._first[1]:
            return None
        return (self._last[0] - self._first[0]) / (self._last[1] - self._first[1])


def _duration(seconds: float) -> str:
    """Seconds for people.

    Example:
        >>> _duration(3725.0)
        '1 h 2 min'
    """
    if seconds < 90:
        return tell("{seconds:.0f} s", seconds=seconds)
    minutes = round(seconds / 60)
    if minutes < 90:
        return tell("{minutes} min", minutes=minutes)
    return tell("{hours} h {minutes} min", hours=minutes // 60, minutes=minutes % 60)
