"""A deployment's flow run runs no program that its worker's owner did not allow."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.permissions import ALLOW, require_allowed
from flows.settings import FOLDERS
from flows.station import PROJECT, Station
from probe.config import Request
from probe.errors import ConfigError

COMMAND = "trainer: {kind: command, command: [python, x.py], env: {MODE: x}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a worker, which runs a deployment's flow run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0" * 32)
    for name in (ALLOW, FOLDERS):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text(COMMAND)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.yaml").write_text(COMMAND)
    (tmp_path / "profiles" / "link.yaml").symlink_to(tmp_path / "elsewhere" / "other.yaml")
    return tmp_path


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("trainer.command=[sh, -c, id]", "command"),
        ("trainer.command.1=y.py", "command"),
        ("trainer.env.LD_PRELOAD=/tmp/x.so", "env"),
        ("trainer.cwd=/", "cwd"),
        ("trainer={kind: command, command: [id]}", "command"),
        ("check.b.trainer.command=[id]", "command"),
        ("check={b: {trainer.env.LD_PRELOAD: x}}", "env"),
        ("trainer.kind=integrated", "kind"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_what_runs_may_not_be_changed(override: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    request = Request(profile="mine", overrides=["trainer={kind: integrated}" if key == "kind" else override])
    with pytest.raises(ConfigError, match=rf"^parameters: overrides: trainer\.{key} may not be changed"):
        require_allowed(request)
    monkeypatch.setenv(ALLOW, "1")
    require_allowed(request)
    monkeypatch.setenv(ALLOW, "0")
    with pytest.raises(ConfigError):
        require_allowed(request)


@pytest.mark.usefixtures("folder")
def test_what_is_trained_may_be_changed() -> None:
    require_allowed(Request(profile="mine", steps=3, overrides=["trainer.time_limit=9"]))
    require_allowed(Request(profile="deterministic", seed=3, algorithm="ppo"))


@pytest.mark.parametrize("profile", ["elsewhere/other.yaml", "profiles/../elsewhere/other.yaml", "link"])
def test_profiles_come_from_the_profile_folders(profile: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^parameters: profile: .* lies outside the worker's profile folders"):
        require_allowed(Request(profile=profile))
    monkeypatch.setenv(FOLDERS, str(folder / "elsewhere"))
    require_allowed(Request(profile=profile))


@pytest.mark.usefixtures("folder")
def test_who_runs_the_command_may_do_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT__FLOW_RUN_ID")
    require_allowed(Request(profile="elsewhere/other.yaml", overrides=["trainer.command=[id]"]))


@pytest.fixture
def station(tmp_path: Path) -> Iterator[Station]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    station = Station(tmp_path / "state", port)
    command = [sys.executable, "-m", "flows.station", "start", "--port", str(port), "--state", str(station.state)]
    try:
        subprocess.run(command, cwd=PROJECT, check=True, capture_output=True, timeout=600)
        yield station
    finally:
        station.stop()


@pytest.mark.slow
def test_a_worker_refuses_a_command_from_the_form(station: Station, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    override = f"trainer={{kind: command, command: [touch, {json.dumps(str(touched))}]}}"
    for deployment, named in (
        ("determinism-check", "profile=deterministic"),
        ("nightly", 'profiles=["deterministic"]'),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "deployment", "run", f"{deployment}/{deployment}", "--watch"]
            + ["-p", named, "-p", f"overrides={json.dumps(override)}"],
            cwd=PROJECT,
            env={**os.environ, **station.environment},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        said = " ".join((done.stdout + done.stderr).split())
        found = re.search(r"UUID: ([0-9a-f-]{36})", said)
        assert found, said
        with urllib.request.urlopen(f"{station.address}/api/flow_runs/{found[1]}", timeout=30) as answer:
            state = json.load(answer)["state"]
        assert state["name"] == "Refused", said
        assert state["message"].startswith("parameters: overrides: trainer."), state["message"]
    assert not touched.exists()
