"""``make serve`` and ``make stop``: a Prefect server with its page, a worker and the deployments, on 127.0.0.1.

::

    .firstdiff/            all of its state, in the project's folder
      prefect/             the server's database and settings
      server.log           what server and worker say
      worker.log
      server.pid           who they are: a process and when it started
      worker.pid

``start`` returns when the page answers, the worker is there and everything is deployed. ``stop`` ends just that: the
flows that run first, with their trainers, then the worker, then the server. The history stays in the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from flows import processes, settings
from flows.settings import FOLDERS
from probe.errors import FirstdiffError, InconclusiveError, UsageError
from probe.privacy import SWITCHES

PROJECT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
POOL = "firstdiff"
MARK = "FIRSTDIFF_STATION"
"""The variable that server, worker and all that they start carry: the folder of the state."""
START_SECONDS = 240.0
FLOW_GRACE, WORKER_GRACE, SERVER_GRACE = 15.0, 10.0, 15.0
"""Seconds between SIGTERM and SIGKILL."""


class Station:
    """A server and a worker, and the folder of their state.

    Args:
        state: The folder.
        port: The server's port.
    """

    def __init__(self, state: Path, port: int) -> None:
        self.state = state.absolute()
        self.port = port
        self._profile_folders: list[str] = []

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The environment of server, worker and deployment: no setting of the user's own Prefect is in it."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        path = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
        return {
            **own,
            **SWITCHES,
            **settings.DEFAULTS,
            "PREFECT_HOME": str(self.state / "prefect"),
            "PREFECT_API_URL": f"{self.address}/api",
            "PREFECT_UI_URL": self.address,
            "PREFECT_SERVER_UI_API_URL": f"{self.address}/api",
            "PREFECT_SERVER_API_HOST": HOST,
            "PREFECT_SERVER_API_PORT": str(self.port),
            "PYTHONPATH": path,
            FOLDERS: os.pathsep.join([*self._profile_folders, *filter(None, [os.environ.get(FOLDERS)])]),
            MARK: str(self.state),
        }

    def start(self, nightly: list[str]) -> str:
        """Starts everything.

        Args:
            nightly: Profiles that are checked every night; those of ``prefect.yaml`` where there are none.

        Returns:
            The page's address.

        Raises:
            UsageError: It runs already, or the port is taken.
            InconclusiveError: It did not start; names the log.
        """
        if (running := self._process("server")) is not None:
            raise UsageError(f"{self.state}: a server runs here already (process {running.pid}); make stop ends it")
        require_free(self.port)
        nightly = [_profile(name) for name in nightly]
        self._profile_folders = [str(Path(name).parent) for name in nightly if Path(name).is_absolute()]
        (self.state / "prefect").mkdir(parents=True, exist_ok=True)
        try:
            self._spawn("server", "server", "start", "--host", HOST, "--port", str(self.port))
            self._wait("server", lambda: _answers(f"{self.address}/api/health"))
            self._wait("server", lambda: _answers(f"{self.address}/"))
            self._prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
            self._prefect("--no-prompt", "deploy", "--all")
            if nightly:
                found = f"profiles={json.dumps(nightly)}"
                self._prefect("--no-prompt", "deploy", "--name", "nightly", "--param", found)
            self._spawn("worker", "worker", "start", "--pool", POOL, "--type", "process", "--name", "here")
            self._wait("worker", self._worker_is_online)
        except BaseException:
            self.stop()
            raise
        return self.address

    def stop(self) -> list[str]:
        """Ends everything that runs, and nothing else.

        Returns:
            What was ended.
        """
        ended = []
        worker, server = self._process("worker"), self._process("server")
        if worker is not None:
            runs = [processes.Noted(pid, processes.started(pid)) for pid in processes.children(worker.pid)]
            processes.send(worker, signal.SIGSTOP)  # it takes no new run while those that it has end
            processes.end(runs, FLOW_GRACE)
            processes.send(worker, signal.SIGCONT)
            processes.end([worker], WORKER_GRACE)
            ended.append("worker")
        if server is not None:
            processes.end([server], SERVER_GRACE)
            ended.append("server")
        left = [processes.Noted(pid, processes.started(pid)) for pid in processes.marked(f"{MARK}={self.state}")]
        processes.end(left, FLOW_GRACE)
        for name in ("worker", "server"):
            (self.state / f"{name}.pid").unlink(missing_ok=True)
        return ended

    def _process(self, name: str) -> processes.Noted | None:
        found = processes.noted(self.state / f"{name}.pid")
        return found if found is not None and found.lives else None

    def _spawn(self, name: str, *arguments: str) -> None:
        environment = self.environment
        if name == "server":
            del environment["PREFECT_API_URL"]
        with (self.state / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "prefect", *arguments],
                cwd=PROJECT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        processes.note(self.state / f"{name}.pid", process.pid)

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self._process(name) is None or time.monotonic() > deadline:
                log = self.state / f"{name}.log"
                raise InconclusiveError(f"the {name} did not start; {log} says why{_last_words(log)}")
            time.sleep(0.2)

    def _prefect(self, *arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=PROJECT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise InconclusiveError(f"prefect {shlex.join(arguments)}: {said}")

    def _worker_is_online(self) -> bool:
        request = urllib.request.Request(
            f"{self.address}/api/work_pools/{POOL}/workers/filter",
            data=b"{}",
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return any(worker["status"] == "ONLINE" for worker in json.load(answer))
        except (OSError, ValueError):
            return False


def require_free(port: int) -> None:
    """Sees to it that a port is free.

    Raises:
        UsageError: It is not, or is none.
    """
    if not 1 <= port <= 65535:
        raise UsageError(f"SERVE_PORT: must be 1 to 65535, not {port}")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            reason = f"port {port} of {HOST} is taken ({error.strerror}); name another: make serve SERVE_PORT=4300"
            raise UsageError(reason) from error


def main(arguments: list[str] | None = None) -> int:
    """``python -m flows.station start`` or ``stop``."""
    parser = argparse.ArgumentParser(prog="python -m flows.station", description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("start", "stop"))
    parser.add_argument("--port", type=int, default=4200)
    parser.add_argument("--state", type=Path, default=PROJECT / ".firstdiff")
    parser.add_argument("--nightly", default="", help="profiles that are checked every night, with blanks between them")
    asked = parser.parse_args(arguments)
    station = Station(asked.state, asked.port)
    try:
        if asked.what == "start":
            sys.stdout.write(f"{station.start(shlex.split(asked.nightly))}\n")
            return 0
        ended = station.stop()
    except FirstdiffError as error:
        sys.stderr.write(f"firstdiff: {error}\n")
        return error.exit_code
    sys.stderr.write(f"ended: {', '.join(ended)}\n" if ended else "nothing runs\n")
    return 0


def _profile(name: str) -> str:
    """A profile for the worker, whose folder is the project's: paths become absolute."""
    from probe.config import load_profile

    load_profile(name)  # what is wrong is said now, not at night
    path = Path(name)
    return str(path.absolute()) if path.is_file() else name


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f": {lines[-1].strip()[:200]}" if lines else ""


if __name__ == "__main__":
    sys.exit(main())
