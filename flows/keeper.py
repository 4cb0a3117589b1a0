"""What looks after ``make serve`` all night: starts a server or worker that died again, and marks what is stale.

It is a process of its own, small, and ends with ``make stop``. When it dies itself, all goes on without it until the
next ``make serve``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from flows.stale import StaleRuns

LOOK_SECONDS = 3.0
"""Time between two looks."""
SHORT_LIFE_SECONDS = 15.0
"""A part that lives shorter did not start, and is started again ever later."""
LONGEST_WAIT_SECONDS = 60.0


class Parts(Protocol):
    """What is looked after."""

    def lives(self, name: str) -> bool:
        """Whether a part runs."""

    def revive(self, name: str) -> None:
        """Starts a part."""

    def answers(self) -> bool:
        """Whether the server answers."""


class Keeper:
    """Looks after a server and a worker.

    Args:
        parts: The two.
        runs: The server's flow runs.
        say: Gets a line for everything that is done.
        clock: Seconds that go on.
    """

    def __init__(
        self, parts: Parts, runs: StaleRuns, say: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._parts = parts
        self._runs = runs
        self._say = say
        self._clock = clock
        self._revived: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._wait: dict[str, float] = {}

    def keep(self) -> None:
        """Looks for ever."""
        while True:
            time.sleep(LOOK_SECONDS)
            with contextlib.suppress(OSError):  # a full disk, too many processes: it may be better next time
                self.look()

    def look(self) -> None:
        """Looks once."""
        if not self._lives("server"):
            self._revive("server")
        has_worker = self._lives("worker")
        if not self._parts.answers():
            return
        try:
            for line in [*self._runs.mark(without_worker=not has_worker), *self._runs.end_crashed()]:
                self._say(line)
        except OSError as error:
            self._say(f"the server does not answer: {error}")
            return
        if not has_worker:
            self._revive("worker")

    def _lives(self, name: str) -> bool:
        if not self._parts.lives(name):
            return False
        self._seen[name] = self._clock()
        return True

    def _revive(self, name: str) -> None:
        now = self._clock()
        last = self._revived.get(name)
        if last is None or self._seen.get(name, last) - last >= SHORT_LIFE_SECONDS:
            self._wait[name] = LOOK_SECONDS
        elif now - last < self._wait[name]:
            return
        else:
            self._wait[name] = min(LONGEST_WAIT_SECONDS, 2 * self._wait[name])
        self._revived[name] = now
        self._say(f"the {name} is gone; it is started again")
        self._parts.revive(name)
