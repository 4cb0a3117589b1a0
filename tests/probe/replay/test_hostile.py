"""What a replay says when there is nothing to replay, when the code is another, and when somebody interrupts it."""

from __future__ import annotations

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

from probe.errors import DumpError, UsageError
from probe.launch.watcher import descendants
from probe.replay import replay_check, summary

slow = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]

MAIN = """
import os, sys, threading
import torch
from probe import Probe
from probe.types import CaptureRequest, RunSpec

SCALE = 2.0

def times(factor):
    return lambda x: x * factor + int.from_bytes(os.urandom(3), "big") * SCALE

class Odd(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.after = torch.nn.Linear(3, 3), times(0.5)
        self.key = lambda x: -x

    def forward(self, x):
        return self.key(self.after(self.linear(x)))

spec = RunSpec(run="c", dump_path=sys.argv[1], trace=True, capture=CaptureRequest("actor", 0, "actor_update"))
probe = Probe(spec)
model = Odd()
probe.attach(actor=model)
with probe.stage("actor_update"):
    model(torch.randn(2, 3))
probe.step()
probe.close()
"""


@pytest.fixture
def own_code(modules: Any, captured: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A capture of a module whose code is a file of the test's own."""
    file = tmp_path / "code" / "own_code_of_a_test.py"
    file.parent.mkdir()
    file.write_text("from replayed_modules import Steady\n\n\nclass Own(Steady):\n    pass\n")
    monkeypatch.syspath_prepend(str(file.parent))
    import own_code_of_a_test  # type: ignore[import-not-found]

    monkeypatch.setattr(modules, "Own", own_code_of_a_test.Own, raising=False)
    yield captured("Own"), file
    sys.modules.pop("own_code_of_a_test")


def test_what_is_no_check(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("nowhere", "file"):
        with pytest.raises(UsageError, match="no such folder"):
            replay_check(tmp_path / name)
    with pytest.raises(UsageError, match="no folder of a check"):
        replay_check(tmp_path)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"verdict": "divergent", "replay": {"why": "an optimizer's step is no module's call"}}, "optimizer's step"),
        ({"verdict": "identical", "replay": None}, "the check is identical"),
        ({"verdict": "divergent", "replay": {"why": ["x"]}}, "record.trace"),
        ([], "record.trace"),
    ],
)
def test_a_check_without_a_capture_says_why(tmp_path: Path, document: Any, words: str) -> None:
    (tmp_path / "verdict.json").write_text(json.dumps(document))
    (tmp_path / "c/msprobe_dump").mkdir(parents=True)
    with pytest.raises(DumpError, match=words):
        replay_check(tmp_path)


@slow
def test_code_that_has_changed_since_is_told(own_code: tuple[Path, Path]) -> None:
    dump, file = own_code
    assert replay_check(dump, 2).changed == []
    file.write_text(file.read_text() + "\n# another line\n")
    answer = replay_check(dump, 2)
    assert answer.changed == ["own_code_of_a_test"]
    assert "own_code_of_a_test has changed since" in summary(answer)


@slow
def test_code_that_is_gone_is_one_sentence(own_code: tuple[Path, Path]) -> None:
    dump, file = own_code
    file.unlink()
    with pytest.raises(DumpError, match=r"^actor.part cannot be replayed: .*No module named 'own_code_of_a_test'$"):
        replay_check(dump, 2)


@slow
def test_a_device_that_is_not_here_is_one_sentence(captured: Callable[..., Path]) -> None:
    dump = captured("Steady")
    path = dump / "capture/capture.json"
    info = json.loads(path.read_text())
    info["tensors"]["weights.inner.weight"]["device"] = "cuda:7"
    path.write_text(json.dumps(info))
    with pytest.raises(DumpError, match="it ran on cuda:7, which this machine does not have"):
        replay_check(dump, 2)


@slow
def test_the_main_scripts_classes_closures_and_lambdas_are_replayed(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(MAIN)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, tmp_path / "main.py", tmp_path / "dump"], env=env, check=True)
    (tmp_path / "main.py").unlink()
    assert replay_check(tmp_path / "dump", 3).result == "confirmed alone"


@slow
def test_however_many_times_are_asked_for_it_ends(captured: Callable[..., Path]) -> None:
    answer = replay_check(captured("Unsteady"), 10**30, seconds=0.5)
    assert answer.result == "confirmed alone"
    assert 1 < answer.times < 100_000


@pytest.mark.parametrize(("times", "status"), [("0", 64), ("-3", 64), ("many", 64)])
@slow
def test_a_number_of_times_that_cannot_be(
    firstdiff: Any, captured: Callable[..., Path], times: str, status: int
) -> None:
    done = firstdiff("replay", captured("Held"), "--times", times, "--json")
    assert (done.status, done.document["verdict"]) == (status, None)
    assert "--times" in done.document["error"]


@slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux shows other processes")
def test_an_interruption_ends_it_and_all_that_it_started(captured: Callable[..., Path]) -> None:
    command = [sys.executable, "-m", "flows.cli", "replay", str(captured("Crash")), "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "REPLAYED": "hang"}
    started = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(below := descendants(started.pid)) < 3:  # the watcher, the child, its fork
        assert time.monotonic() < deadline
        time.sleep(0.2)
    started.send_signal(signal.SIGINT)
    output, said = started.communicate(timeout=60)
    assert started.returncode == 130
    assert json.loads(output) == {"format": 1, "verdict": None, "error": "interrupted"}
    assert said.strip() == "firstdiff: interrupted"
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in below):
        assert time.monotonic() < deadline, "something is left"
        time.sleep(0.1)
