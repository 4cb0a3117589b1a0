"""However a check ends, nothing of its trainers is left; tried again, its flow run goes on from whole runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from probe.launch.watcher import carrying, descendants

QUIET_PREFECT = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
ENDS_WITHIN = 15.0
ROOT = Path(__file__).resolve().parents[2]
SIGN_OF_STEP = {
    1: "b/spec.json",
    2: "b/finished.json",
    3: "keydata/ref_log_prob.xlsx",
    4: "d/spec.json",
    5: "d/finished.json",
    6: "layers/compare_result_*.xlsx",
}
"""What is in a check's folder as soon as a step has begun."""
WHOLE_IN_STEP = {1: "a", 2: "ab", 3: "ab", 4: "abc", 5: "abcd", 6: "abcd"}
"""Runs that are whole by then."""

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows other processes")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def trainers(check: Path) -> set[int]:
    beginning = f"FIRSTDIFF_SPEC={check}/".encode()
    return set(carrying(lambda variable: variable.startswith(beginning)))


def wait_for(found: Callable[[], Any], seconds: float = 120, every: float = 0.005) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come that far"
        time.sleep(every)
    return value


def assert_nothing_is_left(check: Path, before: list[int]) -> None:
    start = time.monotonic()
    while (left := trainers(check) | {pid for pid in before if is_running(pid)}) and (
        time.monotonic() < start + ENDS_WITHIN
    ):
        time.sleep(0.05)
    assert not left, [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in left]


class Started:
    """A ``firstdiff check`` that runs."""

    def __init__(self, folder: Path, api: str, *arguments: str) -> None:
        self.out = folder / "out"
        command = [sys.executable, "-m", "flows.cli", "check", *arguments, "--json", "--out", str(self.out)]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **QUIET_PREFECT, "PREFECT_API_URL": api},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def end(self, number: int) -> tuple[int, str]:
        """Sends a signal; returns the exit status and what it said."""
        before = descendants(self.process.pid)
        self.process.send_signal(number)
        start = time.monotonic()
        _, errors = self.process.communicate(timeout=60)
        assert time.monotonic() - start < ENDS_WITHIN
        assert_nothing_is_left(self.out, before)
        return self.process.returncode, errors

    @property
    def verdict(self) -> Any:
        return json.loads((self.out / "verdict.json").read_text())


@pytest.fixture
def start(tmp_path: Path, prefect_api: str) -> Iterator[Callable[..., Started]]:
    made: list[Started] = []

    def begin(*arguments: str) -> Started:
        made.append(Started(tmp_path, prefect_api, *arguments))
        return made[-1]

    yield begin
    for one in made:
        one.process.kill()
        one.process.communicate()


HANG = """
import os, subprocess, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
open("began", "w").close()
time.sleep(600)
"""


def test_a_check_that_is_killed_leaves_no_trainer(start: Callable[..., Started], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANG)
    (tmp_path / "mine.yaml").write_text("trainer: {kind: command, command: [python, train.py]}")
    check = start("mine.yaml")
    wait_for((tmp_path / "began").exists)
    assert len(trainers(check.out)) == 2
    status, _ = check.end(signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert not (check.out / "verdict.json").exists()
    assert (check.out / "check.pid").exists()


def begun(check: Path, step: int) -> Callable[[], bool]:
    return lambda: any(check.glob(SIGN_OF_STEP[step]))


@pytest.mark.slow
@pytest.mark.parametrize("step", SIGN_OF_STEP)
def test_a_check_that_is_told_to_end_ends_whole_in_every_step(start: Callable[..., Started], step: int) -> None:
    check = start("demo", "--set", "check.steps=3")
    wait_for(begun(check.out, step))
    status, errors = check.end(signal.SIGTERM)
    assert "Traceback" not in errors
    assert status == 130, errors
    assert check.verdict["verdict"] == "inconclusive"
    assert not (check.out / "check.pid").exists()


@pytest.mark.slow
@pytest.mark.parametrize("step", SIGN_OF_STEP)
def test_a_check_that_is_killed_in_any_step_goes_on_from_its_whole_runs(
    start: Callable[..., Started], prefect_api: str, step: int
) -> None:
    check = start("demo", "--set", "check.steps=3", "--set", "check.compress=false")
    wait_for(begun(check.out, step))
    check.end(signal.SIGKILL)
    notes = {run: check.out / run / "finished.json" for run in "abcd"}
    whole = {run: note.stat().st_mtime_ns for run, note in notes.items() if note.exists()}
    assert set(WHOLE_IN_STEP[step]) <= set(whole)
    flow_run = json.loads((check.out / "check.json").read_text())["flow_run"]
    asyncio.run(_crashed(prefect_api, flow_run))
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "flow-run", "retry", flow_run]
        + ["--entrypoint", f"{ROOT / 'flows/determinism.py'}:determinism_check"],
        env={**os.environ, **QUIET_PREFECT, "PREFECT_API_URL": prefect_api},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr + done.stdout
    verdict = check.verdict
    assert (verdict["verdict"], verdict["first"]["step"]) == ("divergent", 2), done.stderr + done.stdout
    assert verdict["cause"]["name"] == "reference.model.layers.1.mlp.down_proj"
    assert verdict["layers"]["reproduced"] is True
    assert {run: notes[run].stat().st_mtime_ns for run in whole} == whole, "a whole run was done again"
    assert all(note.exists() for note in notes.values())
    assert len({(check.out / run / "msprobe_dump/index/rank0.jsonl").read_bytes() for run in "ab"}) == 2


async def _crashed(api: str, flow_run: str) -> None:
    """What a server that finds the flow's process gone does."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.states import Crashed

    with temporary_settings({PREFECT_API_URL: api}):
        async with get_client() as client:
            await client.set_flow_run_state(UUID(flow_run), Crashed(), force=True)


SERVE = """
from flows.determinism import determinism_check
if __name__ == "__main__":
    determinism_check.serve(name="ends", pause_on_shutdown=False)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, prefect_api: str) -> Iterator[Path]:
    """A process that runs the flow's deployment; its folder."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "serve.py").write_text(SERVE)
    env = {**os.environ, **QUIET_PREFECT, "PREFECT_API_URL": prefect_api, "PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    log = (folder / "serve.log").open("wb")
    process = subprocess.Popen([sys.executable, "serve.py"], cwd=folder, env=env, stdout=log, stderr=log)
    yield folder
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    log.close()


@pytest.mark.slow
@pytest.mark.parametrize("step", SIGN_OF_STEP)
def test_a_flow_run_that_is_cancelled_in_any_step_ends_its_trainer(served: Path, prefect_api: str, step: int) -> None:
    out = served / f"out{step}"
    flow_run = asyncio.run(_of_deployment(prefect_api, {"profile": "demo", "out": str(out)}))
    wait_for(begun(out, step), 240)
    asyncio.run(_cancel(prefect_api, flow_run))
    assert_nothing_is_left(out, [])
    wait_for(lambda: asyncio.run(_state(prefect_api, flow_run)) == "CANCELLED", 60, every=0.5)
    if step < 6:  # in the last one, the verdict may have come first
        assert json.loads((out / "verdict.json").read_text())["verdict"] == "inconclusive"


async def _of_deployment(api: str, parameters: dict[str, Any]) -> UUID:
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}):
        async with get_client() as client:
            for _ in range(120):
                try:
                    deployment = await client.read_deployment_by_name("determinism-check/ends")
                    break
                except ObjectNotFound:
                    await asyncio.sleep(0.5)
            return (await client.create_flow_run_from_deployment(deployment.id, parameters=parameters)).id


async def _cancel(api: str, flow_run: UUID) -> None:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from prefect.states import Cancelling

    with temporary_settings({PREFECT_API_URL: api}):
        async with get_client() as client:
            await client.set_flow_run_state(flow_run, Cancelling())


async def _state(api: str, flow_run: UUID) -> str:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}):
        async with get_client() as client:
            state = (await client.read_flow_run(flow_run)).state
            return str(state.type.value) if state else ""
