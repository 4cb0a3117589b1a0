"""The trainers' output in a flow run's log, at a bearable rate: all of it is in ``trainer.log``."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prefect.logging.handlers import APILogHandler

TRAINER = "firstdiff.trainer"
"""The logger that gets each line of a trainer's output."""
BURST = 200
"""Lines that may come at once."""
PER_SECOND = 10.0
"""Lines that may come on and on."""
LONGEST = 2000
"""Most characters of a line."""


class BearableHandler(logging.Handler):
    """Hands another handler some lines of a trainer's output a second, and says how many it left out.

    Args:
        inner: The other handler.
        clock: Seconds that go on.
    """

    def __init__(self, inner: logging.Handler, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(inner.level)
        self.inner = inner
        self._clock = clock
        self._room = float(BURST)
        self._last = clock()
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Hands a record on, unless too many lines came before it."""
        if record.name != TRAINER:
            self.inner.handle(record)
            return
        now = self._clock()
        self._room = min(BURST, self._room + (now - self._last) * PER_SECOND)
        self._last = now
        if self._room < 1:
            self._left_out += 1
            return
        self._room -= 1
        self.say_what_is_left_out()
        text = record.getMessage()
        if len(text) > LONGEST:
            record = logging.makeLogRecord({**record.__dict__, "msg": text[:LONGEST] + "…", "args": None})
        self.inner.handle(record)

    def say_what_is_left_out(self) -> None:
        """Tells the other handler how many lines it did not get since it was last told."""
        if not self._left_out:
            return
        said = f"… {self._left_out} lines of the trainer are left out here; trainer.log has all of them"
        self._left_out = 0
        self.inner.handle(
            logging.makeLogRecord({"name": TRAINER, "levelno": logging.INFO, "levelname": "INFO", "msg": said})
        )


@contextmanager
def bearable_trainer_log() -> Iterator[None]:
    """Limits what of the trainers' output goes to Prefect's API; a terminal's handler gets every line."""
    logger = logging.getLogger("firstdiff")
    before = list(logger.handlers)
    limited = {handler: BearableHandler(handler) for handler in before if isinstance(handler, APILogHandler)}
    logger.handlers = [limited[each] if isinstance(each, APILogHandler) else each for each in before]
    try:
        with heard():
            yield
    finally:
        for handler in limited.values():
            handler.say_what_is_left_out()
        logger.handlers = before


@contextmanager
def heard() -> Iterator[None]:
    """Has a flow run's log show what is done: in a worker nobody has said how much is logged."""
    logger = logging.getLogger("firstdiff")
    level = logger.level
    if level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(level)
