"""Ray: its workers end without a word, so the script that started them has them close their records first.

Ray's own processes have the environment of the process that started Ray: where that is the script, its workers are
observed like any other process. Where Ray ran before, they are not, and the check is told.
"""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from probe.adapters import Host
from probe.adapters.bootstrap import SEEN, SPEC

WORKER = "ray-worker"
"""The word that a worker of Ray leaves, when it is one of those that are observed."""
ELSEWHERE = "ray-elsewhere"
"""The word of a script whose Ray was not started by it; its text is the address."""
_OPEN, _CLOSED, _END = "ray-open-", "ray-closed-", "ray-end-"
_POLL_SECONDS = 0.1
_LONGEST_SECONDS = 600.0
"""How long a script waits for its workers' records to be written."""


def install(host: Host) -> None:
    """Looks after this process's part in Ray, which has just been imported."""
    if is_worker():
        host.report(WORKER)
        return
    ray: Any = sys.modules["ray"]
    driver = _Driver(host)
    ray.init = driver.observed_init(ray.init)
    ray.shutdown = driver.observed_shutdown(ray.shutdown)


def is_worker() -> bool:
    """Whether this process is one in which Ray runs tasks and actors."""
    return any(os.path.basename(word) == "default_worker.py" for word in sys.orig_argv[:8])


def end_with_driver(host: Host, close: Callable[[], None]) -> None:
    """Has this worker's record closed when the script is about to end its Ray.

    Args:
        host: Is told when it is open, and when it is closed.
        close: Closes it.
    """
    before = _words(_END)
    host.report(f"{_OPEN}{os.getpid()}")

    def wait() -> None:
        while _words(_END) <= before:
            time.sleep(_POLL_SECONDS)
        close()
        host.report(f"{_CLOSED}{os.getpid()}")

    threading.Thread(target=wait, name="firstdiff-ray", daemon=True).start()


class _Driver:
    """The script that uses Ray.

    Args:
        host: Is told what it does.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ended = 0
        self._process = os.getpid()

    def observed_init(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of ``ray.init``."""

        @functools.wraps(run)
        def init(*args: Any, **kwargs: Any) -> Any:
            context = run(*args, **kwargs)
            session = str(getattr(context, "address_info", {}).get("session_dir", ""))
            if session and not session.endswith(f"_{os.getpid()}"):
                self._host.report(ELSEWHERE, str(context.address_info.get("address") or "its address is not known"))
            atexit.unregister(self._end_workers)
            atexit.register(self._end_workers)  # after Ray's own, so it runs before
            return context

        return init

    def observed_shutdown(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """What stands in the place of ``ray.shutdown``."""

        @functools.wraps(run)
        def shutdown(*args: Any, **kwargs: Any) -> Any:
            self._end_workers()
            return run(*args, **kwargs)

        return shutdown

    def _end_workers(self) -> None:
        """Has the workers close their records, and waits until they have."""
        if self._process != os.getpid():
            return
        self._host.report(f"{_END}{self._process}-{self._ended}")
        self._ended += 1
        deadline = time.monotonic() + _LONGEST_SECONDS
        while time.monotonic() < deadline and any(_is_alive(pid) for pid in _words(_OPEN) - _words(_CLOSED)):
            time.sleep(_POLL_SECONDS)


def _words(beginning: str) -> set[str]:
    """The ends of the words that begin so, of those that processes have left."""
    folder = os.path.join(os.path.dirname(os.environ.get(SPEC, "")), SEEN)
    try:
        return {name[len(beginning) :] for name in os.listdir(folder) if name.startswith(beginning)}
    except OSError:
        return set()  # whoever started the script is gone


def _is_alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (OSError, ValueError):
        return False
    return True
