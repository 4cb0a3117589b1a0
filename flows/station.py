"""``make serve`` and ``make stop``: a Prefect server with its page, a worker and the deployments, on 127.0.0.1.

A keeper looks after the two (``keeper.py``). Where one or more of the three are gone, ``start`` starts just those.

::

    .firstdiff/            all of its state, in the project's folder
      prefect/             the server's database and settings
      server.log           what they say
      worker.log
      keeper.log
      server.pid           who they are: a process and when it started
      worker.pid
      keeper.pid
      port                 where the server answers

``start`` returns when the page answers, the worker is there, everything is deployed, and what an earlier time left
half done is marked. ``stop`` ends just that: the flows that run first, with their trainers, then the worker, then the
server. The history stays in the folder.
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
from flows.keeper import Keeper
from flows.settings import FOLDERS
from flows.stale import StaleRuns, mark_folders, stale_seconds
from probe.errors import FirstdiffError, InconclusiveError, UsageError
from probe.privacy import SWITCHES

PROJECT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
POOL = "firstdiff"
MARK = "FIRSTDIFF_STATION"
"""The variable that server, worker and all that they start carry: the folder of the state."""
PARTS = ("server", "worker", "keeper")
START_SECONDS = 240.0
RETRIES = 8
"""How often a flow tries to reach a server that is gone, ever later: for eight minutes."""
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
            "PREFECT_WORKER_QUERY_SECONDS": "3",
            "PREFECT_CLIENT_MAX_RETRIES": str(RETRIES),
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
        if all(self.lives(name) for name in PARTS):
            raise UsageError(f"{self.state}: server and worker run here already; make stop ends them")
        if (keeper := self._process("keeper")) is not None:
            processes.end([keeper], SERVER_GRACE)  # two would start what is missing twice
        there = [name for name in PARTS if self.lives(name)]
        if there:
            self.port = self._noted_port()
        else:
            require_free(self.port)
        nightly = [_profile(name) for name in nightly]
        self._profile_folders = [str(Path(name).parent) for name in nightly if Path(name).is_absolute()]
        (self.state / "prefect").mkdir(parents=True, exist_ok=True)
        try:
            self._start_server(nightly)
            if not self.lives("worker"):
                self._mark_stale()
                self.revive("worker")
            self._wait("worker", self._worker_is_online)
            self.revive("keeper")
        except BaseException:
            if not there:
                self.stop()
            raise
        return self.address

    def _start_server(self, nightly: list[str]) -> None:
        if not self.lives("server"):
            self.revive("server")
        self._wait("server", self.answers)
        self._wait("server", lambda: _answers(f"{self.address}/"))
        self._prefect("work-pool", "create", POOL, "--type", "process", "--overwrite")
        self._prefect("--no-prompt", "deploy", "--all")
        if nightly:
            found = f"profiles={json.dumps(nightly)}"
            self._prefect("--no-prompt", "deploy", "--name", "nightly", "--param", found)

    def stop(self) -> list[str]:
        """Ends everything that runs, and nothing else.

        Returns:
            What was ended.
        """
        ended = []
        keeper, worker, server = self._process("keeper"), self._process("worker"), self._process("server")
        if keeper is not None:
            processes.end([keeper], SERVER_GRACE)
        if worker is not None:
            processes.send(worker, signal.SIGSTOP)  # it takes no new run while those that it has end
        processes.end(self._flows(), FLOW_GRACE)
        if worker is not None:
            processes.send(worker, signal.SIGCONT)
            processes.end([worker], WORKER_GRACE)
            ended.append("worker")
        if server is not None:
            processes.end([server], SERVER_GRACE)
            ended.append("server")
        left = [processes.Noted(pid, processes.started(pid)) for pid in self._marked()]
        processes.end(left, FLOW_GRACE)
        for name in PARTS:
            (self.state / f"{name}.pid").unlink(missing_ok=True)
        return ended

    def lives(self, name: str) -> bool:
        """Whether a part of it runs."""
        return self._process(name) is not None

    def answers(self) -> bool:
        """Whether the server answers."""
        return _answers(f"{self.address}/api/health")

    def revive(self, name: str) -> None:
        """Starts a part of it."""
        server = ("-m", "prefect", "server", "start", "--host", HOST, "--port", str(self.port))
        worker = ("-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process", "--name", "here")
        keeper = ("-m", "flows.station", "keep", "--state", str(self.state), "--port", str(self.port))
        self._spawn(name, *{"server": server, "worker": worker, "keeper": keeper}[name])
        if name == "server":
            (self.state / "port").write_text(f"{self.port}\n", encoding="utf-8")

    def keep(self) -> None:
        """Looks after server and worker for ever."""
        runs = StaleRuns(f"{self.address}/api", POOL, stale_seconds())
        Keeper(self, runs, self._say).keep()

    def _mark_stale(self) -> None:
        """Marks what ran when a worker vanished: on the server, and in the folder of checks."""
        for line in [
            *StaleRuns(f"{self.address}/api", POOL, stale_seconds()).mark(without_worker=True),
            *mark_folders(PROJECT / "checks"),
        ]:
            self._say(line)

    def _say(self, line: str) -> None:
        with (self.state / "keeper.log").open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def _flows(self) -> list[processes.Noted]:
        """The processes of flow runs: children of the worker, and those whose worker is gone."""
        own = {found.pid for name in PARTS if (found := self._process(name)) is not None}
        worker = self._process("worker")
        marked = set(self._marked()) - own
        flows = {pid for pid in marked if processes.parent(pid) not in marked}
        flows |= set(processes.children(worker.pid) if worker is not None else [])
        return [processes.Noted(pid, processes.started(pid)) for pid in flows]

    def _marked(self) -> list[int]:
        return processes.marked(f"{MARK}={self.state}")

    def _noted_port(self) -> int:
        """The port of a server whose worker runs."""
        try:
            return int((self.state / "port").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return self.port

    def _process(self, name: str) -> processes.Noted | None:
        found = processes.noted(self.state / f"{name}.pid")
        return found if found is not None and found.lives else None

    def _spawn(self, name: str, *arguments: str) -> None:
        environment = self.environment
        if name == "server":
            del environment["PREFECT_API_URL"]
        with (self.state / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
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


def port_of(text: str) -> int:
    """A port from what somebody wrote.

    Raises:
        UsageError: It is none.
    """
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise UsageError(f"SERVE_PORT: must be 1 to 65535, not {text!r:.40}")
    return int(text)


def require_free(port: int) -> None:
    """Sees to it that a port is free.

    Raises:
        UsageError: It is not.
    """
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
    parser.add_argument("what", choices=("start", "stop", "keep"))
    parser.add_argument("--port", default="4200")
    parser.add_argument("--state", type=Path, default=PROJECT / ".firstdiff")
    parser.add_argument("--nightly", default="", help="profiles that are checked every night, with blanks between them")
    asked = parser.parse_args(arguments)
    try:
        station = Station(asked.state, port_of(asked.port))
        if asked.what == "start":
            sys.stdout.write(f"{station.start(_names(asked.nightly))}\n")
            return 0
        if asked.what == "keep":
            station.keep()
        ended = station.stop()
    except FirstdiffError as error:
        sys.stderr.write(f"firstdiff: {error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"firstdiff: {error.filename or asked.state}: {error.strerror or error}\n")
        return InconclusiveError.exit_code
    sys.stderr.write(f"ended: {', '.join(ended)}\n" if ended else "nothing runs\n")
    return 0


def _names(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"NIGHTLY: {text!r:.200}: {str(error).lower()}") from error


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
