"""What ``make serve`` starts, on a fresh copy of the project, and how tests speak to it."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from flows import processes
from flows.settings import FOLDERS
from flows.station import MARK

STALE_SECONDS = 40.0
"""The limit of a station whose parts are killed: above the time between two heartbeats."""
TRAINER = """
import os, time, torch
from probe import Probe
torch.manual_seed(1)
probe = Probe.from_env()
for step in range(3):
    probe.save({"prompts": torch.arange(4), "loss": torch.tensor(list(os.urandom(4)) if MODE == "random" else [1, 2])})
    probe.step()
    time.sleep(SECONDS)
    print("step", step, "<script>alert(1)</script>", flush=True)
probe.close()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


SCRIPTS = Path(__file__).with_name("scripts")


@pytest.fixture
def check_command(firstdiff: Callable[..., Any], prefect_api: str, tmp_path: Path) -> Callable[..., Any]:
    """Checks a command in a folder that holds its script alone; options stand before ``--``."""
    (tmp_path / "scratch").mkdir()

    def run(command: str, *options: str) -> Any:
        words = command.split()
        script = next(word for word in words if word.endswith(".py"))
        shutil.copy2(SCRIPTS / script, tmp_path / "scratch")
        arguments = ("--json", "--out", str(tmp_path / "out"), *options, "--", *words)
        own = {"PREFECT_API_URL": prefect_api, "HF_HUB_OFFLINE": "1"}
        done = firstdiff("check", *arguments, cwd=tmp_path / "scratch", **own)
        shutil.rmtree(tmp_path / "scratch/out", ignore_errors=True)  # that of transformers.Trainer
        assert {path.name for path in (tmp_path / "scratch").iterdir()} == {script}
        assert done.status == {"identical": 0, "divergent": 1, "inconclusive": 2}[done.document["verdict"]], done.stderr
        return done

    return run


@dataclass
class Running:
    """A station that runs, and how one speaks to it."""

    project: Path
    port: int
    environment: dict[str, str]
    received: list[dict[str, Any]] = field(default_factory=list)

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    def post(self, path: str, **content: Any) -> Any:
        request = urllib.request.Request(
            f"{self.api}/{path}", json.dumps(content).encode(), {"Content-Type": "application/json"}
        )
        for _ in range(20):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != 503:  # a busy database; every client of Prefect asks again
                    raise
                error.close()
                time.sleep(0.5)
        raise AssertionError(f"{path}: the database stays busy")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.api}/{path}", timeout=30) as answer:
            return json.load(answer)

    def deployment(self, name: str) -> dict[str, Any]:
        flow, _, own = name.partition("/")
        return self.get(f"deployments/name/{flow}/{own}")

    def begin(self, name: str, **parameters: Any) -> str:
        deployment = self.deployment(name)
        return self.post(f"deployments/{deployment['id']}/create_flow_run", parameters=parameters)["id"]

    def ended(self, run: str, seconds: float = 240) -> dict[str, Any]:
        return self.when(
            run, lambda found: found["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"), seconds
        )

    def when(self, run: str, true: Callable[[dict[str, Any]], bool], seconds: float = 240) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not true(found := self.get(f"flow_runs/{run}")):
            assert time.monotonic() < deadline, found["state"]
            time.sleep(0.5)
        return found

    def artifacts(self, run: str) -> dict[str, dict[str, Any]]:
        found = self.post("artifacts/filter", artifacts={"flow_run_id": {"any_": [run]}})
        return {artifact["key"] or artifact["type"]: artifact for artifact in found}

    def command(self, *arguments: str) -> str:
        """``python -m flows.station ARGUMENTS``; returns its output."""
        done = subprocess.run(
            [sys.executable, "-m", "flows.station", *arguments],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def process(self, part: str) -> processes.Noted | None:
        """The server, worker or keeper; None while it does not run."""
        found = processes.noted(self.project / f".firstdiff/{part}.pid")
        return found if found is not None and found.lives else None

    def kill(self, part: str, *numbers: int) -> None:
        """Sends signals to the server, worker or keeper."""
        process = self.process(part)
        assert process is not None
        for number in numbers:
            os.kill(process.pid, number)
            time.sleep(1.0 if number != numbers[-1] else 0.0)  # two at once are one
        if signal.SIGKILL in numbers:
            while process.lives:
                time.sleep(0.02)

    def cancel(self, run: str) -> None:
        """Asks for a flow run's end, as the page does."""
        self.post(f"flow_runs/{run}/set_state", state={"type": "CANCELLING", "name": "Cancelling"})

    def flow_process(self, run: str) -> int | None:
        """The process that a flow run is in."""
        worker = self.process("worker")
        wanted = f"PREFECT__FLOW_RUN_ID={run}"
        return next((pid for pid in processes.marked(wanted) if worker and processes.parent(pid) == worker.pid), None)

    def folder(self, run: str) -> Path | None:
        """The folder of a check."""
        return next((self.project / "checks").glob(f"*{run[:8]}*"), None)

    def profile(self, name: str, mode: str = "same", seconds: float = 0.0) -> str:
        """Writes a profile with a trainer of a few lines; returns its path."""
        script = TRAINER.replace("MODE", repr(mode)).replace("SECONDS", str(seconds))
        (self.project / f"{name}.py").write_text(script, encoding="utf-8")
        path = self.project / f"{name}.yaml"
        path.write_text(f"trainer:\n  kind: command\n  command: [python, {name}.py]\n", encoding="utf-8")
        return str(path)


def clone_of(root: Path, target: Path) -> Path:
    """What a fresh clone holds, without its tests."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if name.startswith("tests/") or not (root / name).is_file():
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name)
    return target


@pytest.fixture(scope="session")
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A webhook's receiver on 127.0.0.1."""
    received: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", received
    server.shutdown()
    server.server_close()


@contextmanager
def serving(root: Path, project: Path, received: list[dict[str, Any]], **variables: str) -> Iterator[Running]:
    """What ``make serve`` starts on a fresh clone, for a while."""
    clone_of(root, project)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PYTHONPATH"))}
    own[FOLDERS] = str(project)  # that is where tests write their profiles
    running = Running(project, free_port(), {**own, **variables}, received)
    try:
        assert running.command("start", "--port", str(running.port)) == f"http://127.0.0.1:{running.port}\n"
        yield running
    finally:
        running.command("stop")
        assert processes.marked(f"{MARK}={project / '.firstdiff'}") == []
        assert not list((project / ".firstdiff").glob("*.pid"))


@pytest.fixture(scope="session")
def station(
    root: Path, tmp_path_factory: pytest.TempPathFactory, receiver: tuple[str, list[dict[str, Any]]]
) -> Iterator[Running]:
    with serving(root, tmp_path_factory.mktemp("clone"), receiver[1]) as running:
        automations = subprocess.run(
            [sys.executable, "-m", "flows.automations", "--port", str(running.port)],
            cwd=running.project,
            env={**running.environment, "FIRSTDIFF_NOTIFY_WEBHOOK": receiver[0]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert automations.returncode == 0, automations.stderr
        assert "by webhook: installed" in automations.stdout
        assert "by slack: left out" in automations.stdout
        yield running


@pytest.fixture(scope="module")
def night(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A station whose parts are killed: no other test's."""
    with serving(root, tmp_path_factory.mktemp("night"), [], FIRSTDIFF_STALE_SECONDS=str(STALE_SECONDS)) as running:
        yield running
