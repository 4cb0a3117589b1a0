"""No process of a check calls anywhere but this machine, whatever the environment says of where it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

WATCHER = """
import os, sys

def _watch(event, arguments):
    if event in ("socket.connect", "socket.sendto"):
        address = arguments[1]
        if not isinstance(address, tuple):
            return
        host = address[0]
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = arguments[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    own = host in (None, "", "localhost", "::1", "0.0.0.0") or str(host).startswith("127.")
    with open(os.environ["SOCKETS_SEEN"], "a") as file:
        file.write(f"{'own' if own else 'outside'} {event} {host} {' '.join(sys.orig_argv[1:4])!r}\\n")
    if not own:
        raise OSError("no call leaves this machine")

sys.addaudithook(_watch)
with open(os.environ["SOCKETS_SEEN"], "a") as file:
    file.write(f"began {os.getpid()} {' '.join(sys.orig_argv[1:4])!r}\\n")
"""
TRAINER = """
from probe import Probe
probe = Probe.from_env()
probe.save({"loss": 1.0})
probe.step()
probe.close()
"""
OPT_OUTS = ("CI", "GITHUB_ACTIONS", "DO_NOT_TRACK", "BUILD_NUMBER", "JENKINS_URL", "GITLAB_CI", "TF_BUILD", "TRAVIS")


@pytest.fixture
def watched(tmp_path: Path) -> Callable[..., list[str]]:
    """Runs Python in a user's bare environment; returns what sockets were used for, by every Python process of it."""
    (tmp_path / "watcher").mkdir()
    (tmp_path / "watcher" / "sitecustomize.py").write_text(WATCHER)
    seen = tmp_path / "seen.txt"

    def run(*arguments: str) -> list[str]:
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT_", "PYTEST_")) and name not in OPT_OUTS
        }
        root = str(Path(__file__).resolve().parents[2])
        env |= {
            "PREFECT_HOME": str(tmp_path / "prefect"),
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "watcher"), root]),
            "SOCKETS_SEEN": str(seen),
        }
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return seen.read_text().splitlines()

    return run


@pytest.mark.slow
def test_no_process_of_a_check_calls_home(watched: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "tiny.yaml").write_text(
        "trainer: {kind: command, command: [python, train.py]}\n"
        "check: {allow_different: [environment.determinism.in_effect.torch_seed]}\n"
    )
    lines = watched("-m", "flows.cli", "check", "tiny.yaml", "--out", "out", "-q")
    began = [line for line in lines if line.startswith("began")]
    for process in ("-m flows.cli", "-m flows.serve", "train.py"):
        assert any(process in line for line in began), f"{process} was not watched"
    assert any(line.startswith("own socket.connect 127.0.0.1") for line in lines)
    assert [line for line in lines if line.startswith("outside")] == []


def test_the_watch_sees_who_calls(watched: Callable[..., list[str]]) -> None:
    call = "import socket, contextlib\nwith contextlib.suppress(OSError): socket.create_connection(('192.0.2.1', 9))"
    assert any(line.startswith("outside") for line in watched("-c", call))


@pytest.mark.parametrize("entry", ["tasks.collect", pytest.param("flows.determinism", marks=pytest.mark.slow)])
def test_whatever_is_imported_first_calls_nobody(watched: Callable[..., list[str]], entry: str) -> None:
    """As on a terminal of somebody new, where Prefect would send its first event."""
    lines = watched(
        "-c",
        "import sys, time\nsys.stdout.isatty = sys.stderr.isatty = sys.stdin.isatty = lambda: True\n"
        f"import {entry}, prefect\nfrom prefect.analytics import is_telemetry_enabled\n"
        "assert not is_telemetry_enabled()\ntime.sleep(1)",
    )
    assert [line for line in lines if line.startswith("outside")] == []


@pytest.mark.slow
def test_the_integrated_trainer_alone_calls_nobody(watched: Callable[..., list[str]], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("megatron_training: {train_iters: 1}\n")
    lines = watched("-m", "probe.trainer", "--config", "config.yaml")
    assert [line for line in lines if line.startswith("outside")] == []
