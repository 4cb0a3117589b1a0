"""Runs that SIGKILL ended at a random moment: never identical, never a traceback, and what they left is right."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.comparison import compare_dumps
from probe.errors import FirstdiffError
from probe.store.reader import read_dump, read_values
from probe.types import Record

SEED = 20260
RUNS = 20

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")

FORKS = """
import json, os, random, signal, sys, time
import numpy as np
import torch
from probe import Probe
from probe.types import RunSpec

torch.set_num_threads(1)
folder, seed, runs = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
STEPS = 15
SIZES = {"prompts": 1, "responses": 1000, "old_log_prob": 7, "advantages": 100_000, "parts": 333, "loss": 1}

def train(name, changed=False):
    probe = Probe(RunSpec(run=name, dump_path=os.path.join(folder, name)))
    model = torch.nn.Linear(30, 30)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.zeros_(model.bias)
    probe.attach(actor=model)
    for step in range(STEPS):
        for number, (tag, size) in enumerate(SIZES.items()):
            values = torch.from_numpy(np.random.default_rng((step, number)).standard_normal(size, np.float32))
            if changed and step == 0 and tag == "loss":
                values[0] += 1
            probe.save({tag: {"x": values, "y": [values[:1], "text"]} if tag == "parts" else values})
            probe.save({tag: values[:1]}, micro_step=1, rank=number % 2)
        probe.step()
    probe.close()

def finished(name):
    try:
        with open(os.path.join(folder, name, "manifest.json")) as file:
            return json.load(file)["steps_finished"]
    except FileNotFoundError:
        return 0

def run(name, moment=None, changed=False):
    pid = os.fork()
    if pid == 0:
        try:
            train(name, changed)
            os._exit(0)
        finally:
            os._exit(1)
    if moment is not None:
        while finished(name) < moment[0] and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.001)
        time.sleep(moment[1])
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

start = time.monotonic()
assert run("whole") == 0
duration = time.monotonic() - start
assert run("changed", changed=True) == 0 and run("again") == 0
chosen = random.Random(seed)
# A random moment: so many steps are finished, and so many seconds more. Time alone would leave it to the machine.
moments = [(chosen.randrange(STEPS), chosen.uniform(0, duration / STEPS)) for _ in range(runs)]
ends = [run(f"killed{number}", moment) for number, moment in enumerate(moments)]
print(json.dumps({"duration": duration, "moments": moments, "ends": ends}))
"""


@dataclass(frozen=True)
class Runs:
    """What the forks left."""

    folder: Path
    moments: list[tuple[int, float]]  # finished steps, and seconds after that
    ends: list[int]

    def killed(self, number: int) -> Path:
        return self.folder / f"killed{number}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, run_python: Callable[..., str]) -> Runs:
    """A whole run, the same again, one with another loss in step 0, and those that were killed."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "forks.py").write_text(FORKS)
    told = json.loads(run_python(folder / "forks.py", folder, SEED, RUNS).splitlines()[-1])
    return Runs(folder, told["moments"], told["ends"])


def test_whole_runs_are_compared(runs: Runs) -> None:
    """Without this nothing below would say anything."""
    assert compare_dumps(runs.folder / "whole", runs.folder / "again", None)["verdict"] == "identical"
    document = compare_dumps(runs.folder / "whole", runs.folder / "changed", None)
    assert (document["verdict"], document["first"]["step"], document["first"]["tag"]) == ("divergent", 0, "loss")
    assert set(runs.ends) <= {0, -signal.SIGKILL}
    stopped = [_finished(runs.killed(number)) for number in range(RUNS) if not _complete(runs.killed(number))]
    assert any(stopped), "no run was killed after its first step and before its end"


def _manifest(folder: Path) -> Any:
    try:
        return json.loads((folder / "manifest.json").read_bytes())
    except FileNotFoundError:
        return None


def _complete(folder: Path) -> bool:
    manifest = _manifest(folder)
    return manifest is not None and bool(manifest["complete"])


def _finished(folder: Path) -> int:
    manifest = _manifest(folder)
    return 0 if manifest is None else int(manifest["steps_finished"])


def _compare(a: Path, b: Path) -> Any:
    """The document, or the sentence that says why there is none."""
    try:
        return compare_dumps(a, b, None)
    except FirstdiffError as error:
        assert error.exit_code == 2
        return str(error)


@pytest.mark.parametrize("number", range(RUNS), ids=lambda number: f"seed{SEED}-{number}")
class TestKilled:
    def test_it_is_never_identical(self, runs: Runs, number: int) -> None:
        killed, moment = runs.killed(number), f"killed after {runs.moments[number]} (steps, seconds)"
        for pair in ((killed, runs.folder / "whole"), (runs.folder / "whole", killed), (killed, killed)):
            found = _compare(*pair)
            if _complete(killed):  # it was killed when all was written, if at all
                assert found["verdict"] == "identical", moment
            elif isinstance(found, str):
                assert _manifest(killed) is None and str(killed) in found, (moment, found)
            else:
                assert found["verdict"] == "inconclusive", (moment, found["key_data"]["summary"])
                assert any("did not finish" in sentence for sentence in found["not_compared"]), moment
                assert found["key_data"]["compared_to_step"] == _finished(killed) - 1, moment

    def test_what_it_left_is_what_was_recorded(self, runs: Runs, number: int) -> None:
        killed, whole = runs.killed(number), read_dump(runs.folder / "whole")
        if _manifest(killed) is None:
            assert isinstance(_compare(killed, runs.folder / "whole"), str)
            return
        dump = read_dump(killed)
        for rank, records in dump.records.items():
            expected = whole.records[rank][: len(records)]
            assert records == expected, "a beginning of what the whole run has, in its order"
            for record in records:
                _assert_same_values(killed, whole.folder, record)
            assert len([r for r in records if r.step < _finished(killed)]) == len(
                [r for r in whole.records[rank] if r.step < _finished(killed)]
            ), "a step that the manifest calls finished is whole"

    def test_no_half_file_is_taken_for_data(self, runs: Runs, number: int) -> None:
        killed = runs.killed(number)
        for file in killed.rglob("*.npy"):
            np.load(file)
        for file in killed.rglob("*.json"):
            json.loads(file.read_bytes())
        if _manifest(killed) is not None:
            named = {record.file for records in read_dump(killed).records.values() for record in records}
            assert not any(name is not None and name.endswith(".partial") for name in named)

    def test_a_difference_before_its_end_is_found(self, runs: Runs, number: int) -> None:
        killed = runs.killed(number)
        finished = _finished(killed)
        for pair in ((killed, runs.folder / "changed"), (runs.folder / "changed", killed)):
            found = _compare(*pair)
            if isinstance(found, str):
                continue
            if finished == 0:
                assert found["verdict"] in ("inconclusive", "divergent")
                continue
            assert (found["verdict"], found["first"]["step"], found["first"]["tag"]) == ("divergent", 0, "loss")
            if _complete(killed):
                assert found["key_data"]["compared_to_step"] is None
                continue
            assert found["key_data"]["compared_to_step"] == finished - 1
            assert any(f"up to the end of step {finished - 1}" in note for note in found["notes"])


def _assert_same_values(killed: Path, whole: Path, record: Record) -> None:
    if record.file is None:
        return
    left, right = read_values(killed, record), read_values(whole, record)
    assert (left.dtype, left.shape, left.tobytes()) == (right.dtype, right.shape, right.tobytes())


# ---- checks whose trainer is killed ----

TRAINER = """
import json, os, pathlib, random, signal, sys, threading, time
import torch
from probe import Probe

run = os.environ["FIRSTDIFF_RUN"]
plan = json.loads(pathlib.Path("plan.json").read_text())
mine = plan.get(run, {})
started = time.monotonic()
pathlib.Path(f"pid-{run}.partial").write_text(str(os.getpid()))
os.replace(f"pid-{run}.partial", f"pid-{run}")
if "seconds" in mine:
    timer = threading.Timer(mine["seconds"], os.kill, (os.getpid(), signal.SIGKILL))
    timer.daemon = True
    timer.start()
torch.set_num_threads(1)
torch.manual_seed(0)
probe = Probe.from_env()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
probe.attach(actor=model)
spec = json.loads(pathlib.Path(os.environ["FIRSTDIFF_SPEC"]).read_text())
manifest = pathlib.Path(spec["dump_path"], "manifest.json")
for step in range(plan["steps"]):
    if probe.finished:
        break
    batch = torch.randn(16, 8)
    probe.save({"prompts": batch})
    rewards = torch.ones(16, 8)
    if mine.get("differs") == step:
        rewards[3, 3] = 2
    probe.save({"rewards": rewards, "advantages": torch.randn(plan["size"])})
    with probe.stage("actor_update"):
        loss = (model(batch) - rewards).square().mean()
        probe.save({"loss": loss})
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if mine.get("dies") == step:
        while json.loads(manifest.read_text())["steps_finished"] < step:  # what was saved is written
            time.sleep(0.01)
        if plan["how"] == "raise":
            raise RuntimeError("the loader went away")
        if plan["how"] == "exit":
            sys.exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
    probe.step()
pathlib.Path(f"seconds-{run}").write_text(str(time.monotonic() - started))
"""


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., Path]:
    """A profile of a small trainer, and what happens to its runs."""

    def make(**plan: Any) -> Path:
        (tmp_path / "train.py").write_text(TRAINER)
        (tmp_path / "plan.json").write_text(json.dumps({"steps": 6, "size": 100, "how": "kill", **plan}))
        (tmp_path / "mine.yaml").write_text("trainer:\n  kind: command\n  command: [python, train.py]\n")
        return tmp_path / "mine.yaml"

    return make


def _said(out: Path, run: str) -> Any:
    return json.loads((out / run / "msprobe_dump/manifest.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "raise", "exit"])
def test_run_b_alone_dies(check: Callable[..., Any], planned: Callable[..., Path], tmp_path: Path, how: str) -> None:
    out = tmp_path / "out"
    done = check(planned(b={"dies": 3}, how=how), "--out", out)

    assert (done.status, done.document["verdict"]) == (2, "inconclusive"), done.stderr
    assert "run b" in done.document["error"]
    assert done.document["key_data"]["compared_to_step"] == 2
    assert done.document["key_data"]["different"] == done.document["key_data"]["missing"] == 0
    assert any("up to the end of step 2" in note for note in done.document["notes"])
    assert (_said(out, "a")["complete"], _said(out, "a")["steps_finished"]) == (True, 6)
    assert (_said(out, "b")["complete"], _said(out, "b")["steps_finished"]) == (False, 3)
    assert _said(out, "b")["errors"]


def test_run_b_dies_after_a_difference(check: Callable[..., Any], planned: Callable[..., Path], tmp_path: Path) -> None:
    done = check(planned(b={"dies": 3, "differs": 1}), "--out", tmp_path / "out")

    assert (done.status, done.document["verdict"]) == (1, "divergent"), done.stderr
    assert (done.document["first"]["step"], done.document["first"]["tag"]) == (1, "rewards")
    assert done.document["key_data"]["compared_to_step"] == 2
    assert any("up to the end of step 2" in note for note in done.document["notes"])
    assert any("SIGKILL" in note for note in done.document["notes"])


def test_run_a_dies(check: Callable[..., Any], planned: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = check(planned(a={"dies": 2}), "--out", out)

    assert (done.status, done.document["verdict"]) == (2, "inconclusive"), done.stderr
    assert "run a" in done.document["error"] and "SIGKILL" in done.document["error"]
    assert done.document["key_data"]["compared_to_step"] == 1
    assert done.document["key_data"]["compared"] > 0
    assert _said(out, "a")["steps_finished"] == 2
    assert _said(out, "b")["steps_finished"] <= 3, "run b need not go on after the step in which run a died"


@pytest.mark.slow
def test_run_a_dies_after_a_difference(check: Callable[..., Any], planned: Callable[..., Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = check(planned(a={"dies": 2, "differs": 0}), "--out", out)

    assert (done.status, done.document["verdict"]) == (1, "divergent"), done.stderr
    assert (done.document["first"]["step"], done.document["first"]["tag"]) == (0, "rewards")
    assert done.document["key_data"]["compared_to_step"] == 1
    assert any("up to the end of step 1" in note for note in done.document["notes"])
    assert _said(out, "b")["steps_finished"] <= 3


@pytest.mark.slow
def test_both_die_in_the_same_way(check: Callable[..., Any], planned: Callable[..., Path]) -> None:
    done = check(planned(a={"dies": 2}, b={"dies": 2}))
    assert (done.status, done.document["verdict"]) == (2, "inconclusive"), done.stderr


def _kill_when(file: Path, seconds: float, ended: threading.Event) -> None:
    """Kills the process that a file names, some time after the file is there."""
    while not file.exists():
        if ended.wait(0.005):
            return
    if not ended.wait(seconds):
        try:
            os.kill(int(file.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            return


@pytest.mark.slow
@pytest.mark.parametrize("inside", [True, False], ids=["from inside", "from outside"])
def test_checks_whose_trainer_is_killed(
    check: Callable[..., Any], planned: Callable[..., Path], tmp_path: Path, inside: bool
) -> None:
    chosen = random.Random(SEED + inside)
    size = {"steps": 12, "size": 50_000}
    assert check(planned(**size)).status == 0
    seconds = float((tmp_path / "seconds-a").read_text())
    killed = 0
    for number in range(10):
        run, moment = chosen.choice("ab"), chosen.uniform(0, seconds)
        told = f"seed {SEED + inside}, check {number}: run {run} after {moment:.3f} s"
        for name in ("pid-a", "pid-b", "seconds-a", "seconds-b"):
            (tmp_path / name).unlink(missing_ok=True)
        profile = planned(**size, **({run: {"seconds": moment}} if inside else {}))
        ended = threading.Event()
        killer = threading.Thread(target=_kill_when, args=(tmp_path / f"pid-{run}", moment, ended))
        if not inside:
            killer.start()
        try:
            done = check(profile)
        finally:
            ended.set()
            if not inside:
                killer.join()
        if (tmp_path / f"seconds-{run}").exists() and done.status == 0:
            continue  # it had ended before
        killed += 1
        assert done.status == 2, (told, done.stderr)
        assert done.document["verdict"] == "inconclusive", told
        assert "SIGKILL" in done.document["error"], (told, done.document["error"])
        assert "Traceback" not in done.stdout, told
        assert done.document["key_data"]["different"] == done.document["key_data"]["missing"] == 0, told
    assert killed > 0
    after = check(planned(**size))
    assert (after.status, after.document["verdict"]) == (0, "identical"), after.stderr
