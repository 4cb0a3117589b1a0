"""What may happen at night to a station of its own: worker, server, machine killed in every step of a check; cancel.

The keeper starts again what died. A check then finishes and reports, or ends whole; no run stays active for longer than
the limit, which is short here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import processes
from flows.keeper import LOOK_SECONDS
from flows.stale import VARIABLE
from flows.station import MARK
from probe.launch.watcher import carrying

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows other processes")

ENDS_WITHIN = 15.0
STEPS = {
    1: "b/spec.json",
    2: "b/finished.json",
    3: "keydata/old_log_prob.xlsx",
    4: "d/spec.json",
    5: "d/finished.json",
    6: "layers/compare_result_*.xlsx",
}
"""What is in a check's folder as soon as a step has begun."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
CHECK = "determinism-check/determinism-check"
ODD = """
import os, time, torch
from probe import Probe

class Odd(torch.nn.Module):
    def forward(self, x):
        return x + torch.tensor(list(os.urandom(4)))

torch.manual_seed(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), Odd())
probe = Probe.from_env()
probe.attach(actor=net)
for step in range(2):
    with probe.stage("actor_compute_log_prob"):
        probe.save({"old_log_prob": net(torch.ones(2, 4))})
    probe.step()
    print("step", step, flush=True)
    time.sleep(0.5)
probe.close()
"""


@pytest.fixture(scope="module")
def odd(night: Any) -> str:
    """A profile whose check goes through all six steps."""
    (night.project / "odd.py").write_text(ODD, encoding="utf-8")
    path = night.project / "odd.yaml"
    path.write_text("trainer:\n  kind: command\n  command: [python, odd.py]\n", encoding="utf-8")
    return str(path)


def wait_for(found: Callable[[], Any], seconds: float, every: float = 0.01) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := found()):
        assert time.monotonic() < deadline, "it did not come that far"
        time.sleep(every)
    return value


def begun(night: Any, odd: str, step: int) -> tuple[str, Path]:
    """A check that has come as far as a step; its flow run and its folder."""
    wait_for(lambda: is_whole(night), 120, 0.3)
    run = night.begin(CHECK, profile=odd)
    folder = wait_for(lambda: night.folder(run), 120)
    wait_for(lambda: any(folder.glob(STEPS[step])), 180)
    return run, folder


def is_whole(night: Any) -> bool:
    """Whether server, worker and keeper are there, and the server answers."""
    try:
        night.get("health")
    except OSError:
        return False
    return all(night.process(part) is not None for part in ("server", "worker", "keeper"))


def trainers(folder: Path) -> list[int]:
    beginning = f"FIRSTDIFF_SPEC={folder}/".encode()
    return carrying(lambda variable: variable.startswith(beginning))


def final(night: Any, run: str, seconds: float = 240) -> Any:
    """A flow run in its final state, which arrives although the server may be away meanwhile."""

    def ended() -> Any:
        with contextlib.suppress(OSError):
            found = night.get(f"flow_runs/{run}")
            return found if found["state_type"] in ENDED else None
        return None

    return wait_for(ended, seconds, 0.3)


def assert_it_finished(night: Any, run: str, folder: Path) -> None:
    found = final(night, run)
    verdict = json.loads((folder / "verdict.json").read_text())
    assert (found["state_name"], found["state_type"]) == ("Divergent", "FAILED"), (found["state"], verdict)
    assert (verdict["verdict"], verdict["cause"]["name"]) == ("divergent", "actor.1")
    assert verdict["layers"]["reproduced"] is True
    assert not (folder / "check.pid").exists()
    assert trainers(folder) == []


def assert_it_ended_whole(folder: Path) -> None:
    wait_for(lambda: not trainers(folder), ENDS_WITHIN, 0.1)
    wait_for(lambda: not (folder / "check.pid").exists(), ENDS_WITHIN, 0.1)
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "inconclusive"


def assert_the_next_check_is_right(night: Any, odd: str) -> None:
    run, folder = begun(night, odd, 1)
    assert_it_finished(night, run, folder)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_check_whose_worker_is_killed_in_any_step_finishes_and_reports(night: Any, odd: str, step: int) -> None:
    run, folder = begun(night, odd, step)
    before = night.process("worker")
    night.kill("worker", signal.SIGKILL)
    assert_it_finished(night, run, folder)
    wait_for(lambda: is_whole(night) and night.process("worker") != before, 60, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("step", STEPS)
def test_a_check_whose_worker_is_told_to_end_in_any_step_finishes_or_ends_whole(
    night: Any, odd: str, step: int, times: int
) -> None:
    run, folder = begun(night, odd, step)
    before = night.process("worker")
    night.kill("worker", *[signal.SIGTERM] * times)
    if final(night, run)["state_type"] == "CRASHED":
        wait_for(lambda: not trainers(folder), ENDS_WITHIN, 0.1)
        if (folder / "check.pid").exists():  # it was killed, too: the next check marks it
            assert_the_next_check_is_right(night, odd)
        found = json.loads((folder / "verdict.json").read_text())["verdict"]
        assert found == "inconclusive" or (step > 4 and found == "divergent")
    else:
        assert_it_finished(night, run, folder)
    wait_for(lambda: is_whole(night) and night.process("worker") != before, 60, 0.3)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("step", STEPS)
def test_a_check_whose_server_ends_in_any_step_finishes_and_its_state_arrives(
    night: Any, odd: str, step: int, number: int
) -> None:
    run, folder = begun(night, odd, step)
    before = night.process("server")
    night.kill("server", number)
    assert_it_finished(night, run, folder)
    assert night.process("server") != before
    assert night.artifacts(run)["odd"]["data"].startswith("# Divergent")


@pytest.mark.slow
def test_a_server_and_a_keeper_that_are_gone_are_started_by_make_serve_while_a_check_runs(night: Any, odd: str) -> None:
    run, folder = begun(night, odd, 1)
    night.kill("keeper", signal.SIGKILL)
    night.kill("server", signal.SIGKILL)
    worker = night.process("worker")
    time.sleep(5)
    assert night.command("start", "--port", "4200") == f"http://127.0.0.1:{night.port}\n"
    assert night.process("worker") == worker
    assert_it_finished(night, run, folder)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_a_check_that_is_cancelled_in_any_step_ends_its_trainer(night: Any, odd: str, step: int) -> None:
    run, folder = begun(night, odd, step)
    night.cancel(run)
    start = time.monotonic()
    wait_for(lambda: not trainers(folder), ENDS_WITHIN, 0.1)
    assert final(night, run, 60)["state_type"] == "CANCELLED"
    assert time.monotonic() - start < 60
    if step < 6:  # in the last one, the verdict may have come first
        assert_it_ended_whole(folder)


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_check_whose_worker_was_killed_can_still_be_cancelled(night: Any, odd: str, step: int) -> None:
    run, folder = begun(night, odd, step)
    night.kill("worker", signal.SIGKILL)
    night.cancel(run)
    wait_for(lambda: not trainers(folder), ENDS_WITHIN, 0.1)
    assert final(night, run, 30)["state_type"] == "CANCELLED"
    assert_it_ended_whole(folder)


@pytest.mark.slow
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_run_whose_process_and_worker_are_killed_gets_its_end_at_once(night: Any, odd: str, cancelled: bool) -> None:
    run, folder = begun(night, odd, 4)
    process = night.flow_process(run)
    night.kill("worker", signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    if cancelled:
        with contextlib.suppress(OSError):
            night.cancel(run)
    start = time.monotonic()
    state = final(night, run, ENDS_WITHIN + 10)
    assert state["state_type"] in (("CANCELLED", "CRASHED") if cancelled else ("CRASHED",))
    assert time.monotonic() - start < ENDS_WITHIN + LOOK_SECONDS
    wait_for(lambda: not trainers(folder), ENDS_WITHIN, 0.1)
    assert_the_next_check_is_right(night, odd)
    assert_it_ended_whole(folder)


@pytest.mark.slow
def test_a_nightly_run_that_is_killed_with_its_worker_leaves_no_run_of_it(night: Any, odd: str) -> None:
    wait_for(lambda: is_whole(night), 60, 0.3)
    before = set((night.project / "checks").iterdir())
    run = night.begin("nightly/nightly", profiles=[odd])
    wait_for(lambda: set((night.project / "checks").iterdir()) - before, 120)
    process = night.flow_process(run)
    night.kill("worker", signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    assert final(night, run, 30)["state_type"] == "CRASHED"
    assert_no_run_stays(night, 30)


@pytest.mark.slow
def test_a_check_from_the_command_line_that_is_killed_does_not_stay_running(
    night: Any, odd: str, tmp_path: Path
) -> None:
    wait_for(lambda: is_whole(night), 60, 0.3)
    command = [sys.executable, "-m", "flows.cli", "check", odd, "--out", str(tmp_path / "out")]
    environment = {**night.environment, "PREFECT_API_URL": night.api, "DO_NOT_TRACK": "1"}
    check = subprocess.Popen(
        command, cwd=night.project, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_for((tmp_path / "out/a/spec.json").exists, 120)
    run = json.loads((tmp_path / "out/check.json").read_text())["flow_run"]
    check.kill()
    check.wait()
    limit = float(night.environment[VARIABLE])
    assert final(night, run, limit + 30)["state_type"] == "CRASHED"


@pytest.mark.slow
def test_after_a_reboot_what_is_stale_is_marked_and_the_next_check_is_right(night: Any, odd: str) -> None:
    run, folder = begun(night, odd, 4)
    state = night.project / ".firstdiff"
    for pid in processes.marked(f"{MARK}={state}"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not trainers(folder), ENDS_WITHIN, 0.1)
    assert not (folder / "verdict.json").exists()
    night.command("start", "--port", str(night.port))
    assert night.get(f"flow_runs/{run}")["state_type"] == "CRASHED"
    assert_it_ended_whole(folder)
    assert_no_run_stays(night, 1)
    assert_the_next_check_is_right(night, odd)


def assert_no_run_stays(night: Any, seconds: float) -> None:
    active = {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}
    wait_for(lambda: not night.post("flow_runs/filter", flow_runs=active), seconds, 0.3)
