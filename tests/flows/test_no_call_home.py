"""Nothing calls home: every process of a check, and of a server and worker, is watched for connections and look-ups.

The watch is a ``sitecustomize`` that each Python process inherits. It writes down where a socket connects to and which
names are looked up, unless that is this machine, and refuses it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

WATCH = """
import os, sys, traceback

def watch(event, args):
    if event == "socket.connect":
        address = args[1]
    elif event in ("socket.sendto", "socket.sendmsg"):
        address = args[1]
    elif event == "socket.getaddrinfo":
        address = args[0]
    else:
        return
    host = address[0] if isinstance(address, tuple) else address
    if isinstance(host, bytes):
        host = host.decode(errors="replace")
    here = host is None or str(host).startswith(("127.", "/", "\\0")) or host in ("localhost", "::1", "", "0.0.0.0")
    log = os.open(os.environ["WATCH_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    if here:
        os.write(log, b"here\\n")
        os.close(log)
        return
    stack = " < ".join(frame.name + " " + frame.filename for frame in reversed(traceback.extract_stack()[-12:-1]))
    os.write(log, f"AWAY {event} {host!r} in {sys.argv[:3]}: {stack}\\n".encode())
    os.close(log)
    raise OSError("nothing may be reached")

sys.addaudithook(watch)
"""
IN_CI = ("CI", "GITHUB_ACTIONS", "GITLAB_CI", "JENKINS_URL", "TRAVIS", "CIRCLECI", "BUILDKITE", "TF_BUILD", "CI_NAME")


@pytest.fixture
def watched(tmp_path: Path) -> dict[str, str]:
    """The environment of somebody who has set nothing, with the watch."""
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    unset = ("PREFECT_", "HF_", "DO_NOT_TRACK", "PIP_", "VLLM_", "RAY_")
    kept = {name: value for name, value in os.environ.items() if name not in IN_CI and not name.startswith(unset)}
    return {
        **kept,
        "PREFECT_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "watch"), str(ROOT)]),
        "WATCH_LOG": str(tmp_path / "connections"),
    }


def connections(env: dict[str, str]) -> list[str]:
    file = Path(env["WATCH_LOG"])
    return file.read_text().splitlines() if file.exists() else []


def assert_all_here(env: dict[str, str]) -> None:
    found = connections(env)
    assert [line for line in found if line.startswith("AWAY")] == []
    assert "here" in found, "the watch saw nothing at all"


def test_the_watch_sees_what_goes_elsewhere(watched: dict[str, str]) -> None:
    code = "import urllib.request as u\ntry: u.urlopen('http://192.0.2.1/', timeout=1)\nexcept OSError: pass"
    subprocess.run([sys.executable, "-c", code], env=watched, check=True, timeout=60)
    assert [line for line in connections(watched) if "192.0.2.1" in line]


def run(env: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.parametrize("entry", ["flows.cli", "flows.determinism", "tasks.collect"])
def test_importing_calls_nobody(watched: dict[str, str], tmp_path: Path, entry: str) -> None:
    """As on a terminal of somebody new, where Prefect would send its first event."""
    code = (
        "import sys\nsys.stdout.isatty = sys.stderr.isatty = sys.stdin.isatty = lambda: True\n"
        f"import {entry}, prefect, time\n"
        "from prefect.analytics import is_telemetry_enabled\nassert not is_telemetry_enabled()\ntime.sleep(1)"
    )
    done = run(watched, tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert [line for line in connections(watched) if line.startswith("AWAY")] == []


@pytest.mark.slow
def test_a_check_without_a_server_calls_nobody(watched: dict[str, str], tmp_path: Path) -> None:
    done = run(watched, tmp_path, "-m", "flows.cli", "check", "demo", "--set", "check.steps=3", "--json")
    assert done.returncode == 1, done.stderr
    assert_all_here(watched)


@pytest.mark.slow
def test_neither_does_the_integrated_trainer_alone(watched: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("megatron_training: {train_iters: 1}\n")
    done = run(watched, tmp_path, "-m", "probe.trainer", "--config", "config.yaml")
    assert done.returncode == 0, done.stderr
    assert [line for line in connections(watched) if line.startswith("AWAY")] == []


@pytest.mark.slow
def test_a_server_with_the_projects_settings_calls_nobody(watched: dict[str, str], tmp_path: Path) -> None:
    """Prefect's own command, in the project's folder, with what ``flows.settings`` puts into the environment."""
    from flows.settings import DEFAULTS
    from probe.privacy import SWITCHES

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**watched, **SWITCHES, **DEFAULTS}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and server.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=5).close()
                break
            except OSError:
                time.sleep(0.3)
        done = run({**env, "PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}, tmp_path, *_tiny(tmp_path))
        assert done.returncode == 0, done.stderr
        time.sleep(3)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert_all_here(watched)


def _tiny(folder: Path) -> list[str]:
    (folder / "train.py").write_text(
        "import torch\nfrom probe import Probe\ntorch.manual_seed(0)\nprobe = Probe.from_env()\n"
        "probe.save({'loss': 1.0})\nprobe.step()\n"
    )
    (folder / "tiny.yaml").write_text("trainer: {kind: command, command: [python, train.py]}\n")
    return ["-m", "flows.cli", "check", "tiny.yaml", "--json"]
