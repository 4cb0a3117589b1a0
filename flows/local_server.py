"""A Prefect server for one ``firstdiff check``, where none is configured: on 127.0.0.1, without a page, ends with it.

Prefect starts such a server by itself, but only once it is imported, on a port that another may take before it does,
with services that one check has no use for, and migrates a database that several do at once. This one starts beside
everything else that is imported, on a socket that is its own from the first moment, and migrates under a lock. It ends
when the pipe to it closes, so it outlives no check, however that ends.

Standard library only: Prefect is imported in the child, ``flows.serve``.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import IO

from probe.errors import InconclusiveError

log = logging.getLogger("firstdiff")

GO = b"go\n"
"""What the child waits for before it touches anything."""
MIGRATING, SERVING = b"migrating\n", b"serving\n"
"""What the child says."""
HEALTH_SECONDS = 180.0
"""Longest time until the server answers once it says that it serves."""
GRACE_SECONDS = 5.0
"""Time that the server has to end by itself."""

SETTINGS = {
    "PREFECT_UI_ENABLED": "false",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_SERVER_DATABASE_MIGRATE_ON_START": "false",  # flows.serve does so, under a lock
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",  # a block registers its type when it is saved
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_API_EVENTS_STREAM_OUT_ENABLED": "false",
    "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "false",
}
"""Settings of the server's process alone. What is left on records the states of the flow run and its task runs."""


class LocalServer:
    """The server's process, seen from the check.

    Example:
        >>> server = LocalServer()  # doctest: +SKIP
        >>> server.wait()  # doctest: +SKIP
        'http://127.0.0.1:40213/api'
    """

    def __init__(self) -> None:
        self._output: IO[bytes] = tempfile.TemporaryFile(prefix="firstdiff-server-")
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            self._port = listening.getsockname()[1]
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flows.serve", str(listening.fileno())],
                cwd=_root(),  # the current folder may hold a user's own flows
                env={**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join([_root(), *_python_path()])},
                pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._output,
                start_new_session=True,  # Ctrl-C is for the check, which ends the server last
            )
        atexit.register(self.stop)  # before Prefect's own handlers are registered, so after them

    def wait(self) -> str:
        """Lets the server begin and waits until it answers; returns the address of its API.

        Raises:
            InconclusiveError: It ended instead.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        url = f"http://127.0.0.1:{self._port}/api"
        try:
            self._process.stdin.write(GO)
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line == MIGRATING:
                    log.info("preparing Prefect's database, once on this machine")
                elif line == SERVING:
                    _no_proxy().open(f"{url}/health", timeout=HEALTH_SECONDS).close()
                    return url
        except OSError as error:
            raise InconclusiveError(f"Prefect's server for this check does not answer: {error}") from error
        finally:
            self._process.stdout.close()
        raise InconclusiveError(f"Prefect's server for this check ended at once: {self._last_words()}")

    def stop(self) -> None:
        """Ends the server. It may be called twice."""
        atexit.unregister(self.stop)
        if self._process.stdin is not None and not self._process.stdin.closed:
            try:
                self._process.stdin.close()
            except OSError:  # it ended before it had read everything
                pass
        if self._process.stdout is not None:
            self._process.stdout.close()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _last_words(self) -> str:
        self._output.seek(0)
        lines = [line.strip() for line in self._output.read().decode(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


def _root() -> str:
    """Where ``flows`` is imported from."""
    return str(Path(__file__).resolve().parent.parent)


def _python_path() -> list[str]:
    return [path for path in [os.environ.get("PYTHONPATH", "")] if path]


def _no_proxy() -> urllib.request.OpenerDirector:
    """Opens addresses of this machine, whatever proxy the environment names."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
