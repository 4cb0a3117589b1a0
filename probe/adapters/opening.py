"""Opening a ``Probe`` in a process that did not ask for one, and closing it when that process ends, however it does."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from probe.adapters import Host, ray_workers
from probe.errors import FirstdiffError

if TYPE_CHECKING:
    from probe.collect import Probe
    from probe.store.writer import Place
    from probe.types import RunSpec

_ONE_RECORDS = (
    "more than one of its processes called modules without a rank (RANK and WORLD_SIZE, or torch.distributed)"
)


class Opening:
    """This process's probe.

    Args:
        host: Is told what went wrong.
        last: Called before the probe is closed.
    """

    def __init__(self, host: Host, last: Callable[[], None]) -> None:
        self.probe: Probe | None = None
        """The open probe; None before the first call, in a forked child, and where it could not be opened."""
        self.refused = False
        """Whether this process is not recorded, for a reason that was told."""
        self.spec: RunSpec | None = None
        self.of_a_fork = False
        """Whether this process is a fork of one that records."""
        self._of_the_parent: Probe | None = None
        self._host = host
        self._last = last
        self._process = os.getpid()
        os.register_at_fork(after_in_child=self._forked)

    def open(self, place: Callable[[RunSpec], Place | None] = lambda spec: None) -> Probe | None:
        """The open probe, opened now if it was not.

        Args:
            place: Which of the run's processes this is; None leaves it to the environment and ``torch.distributed``.

        Returns:
            None where this process is not recorded; why was told.
        """
        if self.probe is not None or self.refused:
            return self.probe
        try:
            from probe.collect import Probe
            from probe.collect.spec import spec_from_env
            from probe.collect.stacks import show_stacks_on_signal

            self.spec = spec_from_env()
            if self.spec is None:
                self.refused = True
                return None
            self.probe = Probe(self.spec, place(self.spec))
            show_stacks_on_signal()
        except (FirstdiffError, ImportError, OSError) as error:
            self.refused = True
            self._host.problem(
                f"a process could not record: {error}; {_ONE_RECORDS}, or what the probe needs is lacking"
            )
            return None
        self._process = os.getpid()
        self._host.report("recorded")
        self._close_before_a_hard_exit()
        if "multiprocessing.process" in sys.modules and sys.modules["multiprocessing.process"].parent_process():
            from multiprocessing.util import Finalize  # atexit is not run there

            Finalize(None, self.close, exitpriority=100)
        else:
            atexit.register(self.close)
        if ray_workers.is_worker():
            ray_workers.end_with_driver(self._host, self.close)
        return self.probe

    def _close_before_a_hard_exit(self) -> None:
        """Ends the recording where the recorded thread calls ``os._exit``, which runs no function of ``atexit``."""
        leave, thread = os._exit, threading.get_ident()

        @functools.wraps(leave)
        def _exit(status: int) -> NoReturn:
            if threading.get_ident() == thread:
                self.close()
            leave(status)

        os._exit = _exit

    def close(self) -> None:
        """Ends the recording, at the end of the process."""
        if self.probe is None or self._process != os.getpid():
            return
        probe = self.probe
        try:
            self._last()
            self.probe, self.refused = None, True
            probe.close()
        except Exception as error:  # noqa: BLE001  (the script has ended; what is raised now changes its exit status)
            self._host.problem(f"what was recorded could not be written to its end: {error or type(error).__name__}")

    def give_up(self, error: Exception) -> None:
        """Records no more: what was observed of the script could not be understood."""
        self.refused = True
        self._host.problem(f"the observation of the script stopped ({type(error).__name__}: {error})")

    def hand_over(self) -> Probe | None:
        """The open probe, which another closes."""
        probe, self.probe, self.refused = self.probe, None, True
        return probe

    def _forked(self) -> None:
        """A child of a process that records: what it does is not recorded."""
        if self.probe is not None:
            self._of_the_parent, self.probe = self.probe, None  # held: its end is the parent's
            self.refused = self.of_a_fork = True
