"""``firstdiff check`` on a stand-in for a checkout of MindSpeed-RL, at both depths, on one process and on Ray's."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.store.manifests import read_manifest
from probe.store.reader import read_dump

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = ROOT / "tests/mindspeed_stand_in"
RAY = ("trainer.env.STAND_IN_RAY='1'", "trainer.overrides=[rl_config.actor_resource.num_npus=2]")
WHERE = "model.layers.1.mlp.down_proj"

pytestmark = pytest.mark.slow


class Folder:
    """A folder with the shipped profile and a checkout, as the README has one make it."""

    def __init__(self, path: Path, run: Callable[..., Any], api: str) -> None:
        self.path = path
        self.repo = path / "MindSpeed-RL"
        shutil.copytree(STAND_IN, self.repo, ignore=shutil.ignore_patterns("__pycache__"))
        profile = yaml.safe_load((ROOT / "profiles/mindspeed-rl.yaml").read_text())
        profile["trainer"]["config"] = "train_grpo"
        profile["trainer"]["env"] = {
            "PYTHONDONTWRITEBYTECODE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "HOME": str(path),
        }
        profile["check"]["steps"] = 2
        (path / "mine.yaml").write_text(yaml.safe_dump(profile))
        self._run, self._api = run, api

    def arguments(self, *overrides: str) -> list[str]:
        given = [word for override in overrides for word in ("--set", override)]
        return ["check", "mine.yaml", *given, "--json", "--out", str(self.path / "out")]

    def check(self, *overrides: str) -> dict[str, Any]:
        before = self.digest
        done = self._run(*self.arguments(*overrides), cwd=self.path, PREFECT_API_URL=self._api)
        document: dict[str, Any] = done.document
        assert document["verdict"] is not None, done.stderr
        assert self.digest == before
        return document

    @property
    def digest(self) -> str:
        files = sorted(path for path in self.repo.rglob("*") if path.is_file())
        return hashlib.sha256(b"".join(str(p).encode() + p.read_bytes() for p in files)).hexdigest()

    def processes(self) -> list[int]:
        """Those that a run started, wherever they are."""
        mark = f"FIRSTDIFF_SPEC={self.path}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture
def folder(firstdiff: Callable[..., Any], prefect_api: str, tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path, firstdiff, prefect_api)
    yield made
    assert made.processes() == []


@pytest.mark.parametrize("depth", ["trace", "dumps"])
def test_a_deterministic_training_is_identical(folder: Folder, depth: str) -> None:
    document = folder.check(f"trainer.depth={depth}")
    assert (document["verdict"], document["not_compared"]) == ("identical", [])
    assert document["key_data"]["compared"] > 50
    assert any("rl_config.guarantee_order is set to true (determinism: enforce)" in note for note in document["notes"])
    assert any("float32" in note for note in document["notes"]) == (depth == "dumps")
    assert ((document["trace"]["compared"] or 0) > 1000) == (depth == "trace")


def test_a_fault_is_located_to_the_module_by_traces(folder: Folder) -> None:
    document = folder.check(f"trainer.env.STAND_IN_FAULT=reference:{WHERE}:1")
    first = document["first"]
    assert (document["verdict"], document["cause"]["kind"]) == ("divergent", "module_forward")
    assert (first["step"], first["stage"], first["name"]) == (1, "reference_compute_log_prob", f"reference.{WHERE}")
    assert document["layers"]["reproduced"] is True


@pytest.mark.parametrize(
    ("role", "stage", "tag", "name"),
    [
        ("reference", "reference_compute_log_prob", "ref_log_prob", f"reference.0.{WHERE}"),
        ("actor", "actor_compute_log_prob", "old_log_prob", f"actor.{WHERE}"),
        ("rollout", "actor_generate_sequences", "responses", WHERE),
    ],
)
def test_a_fault_is_located_by_the_layers_that_msprobe_dumps(
    folder: Folder, role: str, stage: str, tag: str, name: str
) -> None:
    document = folder.check("trainer.depth=dumps", f"trainer.env.STAND_IN_FAULT={role}:{WHERE}:1")
    assert document["verdict"] == "divergent"
    assert document["certainty"]["level"] == "statistics"
    assert (document["key_data"]["first"]["tag"], document["first"]["step"]) == (tag, 1)
    assert (document["first"]["stage"], document["cause"]["kind"]) == (stage, "module_forward")
    assert document["first"]["name"].endswith(name)


def test_without_enforce_a_configuration_as_shipped_is_refused(
    folder: Folder, firstdiff: Callable[..., Any], prefect_api: str
) -> None:
    arguments = folder.arguments("determinism.enforce=false")
    done = firstdiff(*arguments, cwd=folder.path, PREFECT_API_URL=prefect_api)
    assert done.status == 64
    assert "rl_config.guarantee_order (false, must be true)" in done.stderr
    assert not any((folder.path / "out").iterdir())


def test_rays_workers_are_recorded_once_each_and_located(folder: Folder) -> None:
    document = folder.check(*RAY, f"trainer.env.STAND_IN_FAULT=actor:{WHERE}:1")
    assert (document["verdict"], document["cause"]["name"]) == ("divergent", f"actor.{WHERE}")
    assert (document["first"]["stage"], document["first"]["rank"]) == ("actor_compute_log_prob", [0, 1])
    manifest = read_manifest(folder.path / "out/a/msprobe_dump")
    assert manifest is not None
    assert (manifest.ranks, manifest.steps_finished, manifest.problems) == ([0, 1], 2, [])
    assert sorted(read_dump(folder.path / "out/b/msprobe_dump").ranks) == [0, 1]


def test_rays_workers_at_dumps_depth(folder: Folder) -> None:
    document = folder.check(*RAY, "trainer.depth=dumps", f"trainer.env.STAND_IN_FAULT=reference:{WHERE}:1")
    assert (document["verdict"], document["first"]["stage"]) == ("divergent", "reference_compute_log_prob")
    assert (document["first"]["rank"], document["cause"]["kind"]) == ([0, 1], "module_forward")


@pytest.mark.parametrize("cluster", [False, True])
def test_a_cancelled_check_leaves_no_process(
    folder: Folder, prefect_api: str, cluster: bool, ray_cluster: Callable[[], str]
) -> None:
    """Of a cluster that ran before, Ray's own processes stay, and none of the training's."""
    overrides = [*RAY, "check.steps=100000"]
    if cluster:
        overrides.append(f"trainer.ray_address={ray_cluster()}")
    child = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", *folder.arguments(*overrides)],
        cwd=folder.path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PREFECT_API_URL": prefect_api},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    log, deadline = folder.path / "out/a/trainer.log", time.monotonic() + 240
    while not (log.is_file() and "iteration 1" in log.read_text(errors="replace")):
        assert child.poll() is None and time.monotonic() < deadline, log.read_text() if log.is_file() else "no log"
        time.sleep(0.2)
    assert len(folder.processes()) >= 3  # the script and two workers at least
    child.send_signal(signal.SIGTERM)
    assert child.wait(120) == 130
    until = time.monotonic() + 30
    while folder.processes() and time.monotonic() < until:
        time.sleep(0.2)
    assert folder.processes() == []


@pytest.fixture
def ray_cluster(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Starts a cluster of one host, as ``ray start --head`` does; returns its address."""
    started: list[subprocess.Popen[bytes]] = []
    short = Path(tempfile.mkdtemp(prefix="ray-"))  # sockets have short names

    def start() -> str:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        command = [
            *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"),
            *("--node-ip-address=127.0.0.1", f"--port={port}", "--include-dashboard=false", "--num-cpus=4"),
            f"--temp-dir={short}",
        ]
        own = {"HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with (tmp_path / "ray.log").open("wb") as log:
            started.append(
                subprocess.Popen(command, env={**inherited, **own}, stdout=log, stderr=log, start_new_session=True)
            )
        deadline = time.monotonic() + 90
        while b"runtime started" not in (tmp_path / "ray.log").read_bytes():
            assert time.monotonic() < deadline and started[-1].poll() is None, (tmp_path / "ray.log").read_text()
            time.sleep(0.2)
        return f"127.0.0.1:{port}"

    yield start
    for one in started:
        one.terminate()
        one.wait(30)
        left = subprocess.run(["pgrep", "-f", str(short)], capture_output=True, text=True, check=False)
        for pid in left.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    shutil.rmtree(short, ignore_errors=True)
