"""Work beside the training: one thread that runs jobs in order and holds a bounded number of bytes for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

HELD_BYTES = 256 << 20
"""Most bytes that wait to be written: whoever saves more waits for the disk."""
JOB_BYTES = 1 << 10
"""What a job counts for beside its data, so that many small ones are bounded too."""


class Background:
    """Runs jobs one after another, in the order in which they were submitted.

    The thread is a daemon: it dies with the process, and ``finish`` is what waits for it.

    Args:
        limit: Most bytes held by jobs that have not ended. One job alone may hold more.

    Example:
        >>> done = []
        >>> background = Background()
        >>> background.submit(lambda: done.append(1), size=8)
        >>> background.finish()
        >>> done
        [1]
    """

    def __init__(self, limit: int = HELD_BYTES) -> None:
        self._limit = limit
        self._jobs: deque[tuple[Callable[[], object], int]] = deque()
        self._held = 0
        self._error: BaseException | None = None
        self._ending = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="firstdiff-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], object], size: int) -> None:
        """Hands over a job, waiting first while those before it hold too much (back-pressure).

        Args:
            job: What to run.
            size: Bytes that it holds until it has ended.

        Raises:
            Exception: What an earlier job raised; nothing is run after it.
        """
        size += JOB_BYTES
        with self._changed:
            self._changed.wait_for(lambda: self._error or not self._held or self._held + size <= self._limit)
            self._raise()
            if self._ending:
                raise RuntimeError("the recording has ended; nothing more can be saved")
            self._jobs.append((job, size))
            self._held += size
            self._changed.notify_all()

    def finish(self) -> None:
        """Waits until every job has ended, and ends the thread.

        Raises:
            Exception: What a job raised.
        """
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._ending)
                if not self._jobs:
                    return
                job, size = self._jobs.popleft()
            try:
                job()
            except BaseException as error:  # noqa: BLE001  (handed to whoever submits or finishes)
                with self._changed:
                    self._error = error
                    self._jobs.clear()
                    self._changed.notify_all()
                return
            del job  # with the bytes that it holds, before they stop being counted
            with self._changed:
                self._held -= size
                self._changed.notify_all()
