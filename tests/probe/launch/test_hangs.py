"""A trainer that hangs: found by its time limit or by no progress, shown by the stacks of all its processes, ended."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.config import load_profile
from probe.errors import HangError
from probe.launch import launcher_for, run_spec
from probe.launch.failures import Failure
from probe.launch.hosts import _together
from probe.launch.running import Ended, _growth_of
from probe.store.reader import read_dump
from probe.types import STACK_SIGNAL

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux shows what a process catches"
)

FAMILY = """
import faulthandler, os, signal, sys, time
def the_parent_waits_here():
    time.sleep(600)
def the_child_waits_here():
    time.sleep(600)
def one_with_a_handler_of_its_own_waits_here():
    signal.signal(signal.SIGUSR1, lambda *args: print("never asked", flush=True))
    time.sleep(600)
if os.fork() == 0:
    one_with_a_handler_of_its_own_waits_here()
SWITCH_ON
if os.fork() == 0:
    the_child_waits_here()
print("it began", flush=True)
the_parent_waits_here()
"""


@needs_proc
@pytest.mark.parametrize(
    ("limit", "switch_on"),
    [
        ("time_limit", f"faulthandler.register({STACK_SIGNAL}, file=2)"),
        ("stall_seconds", "faulthandler.enable()"),
    ],
    ids=["asked", "aborted"],
)
def test_a_hang_ends_with_the_stacks_of_all_in_the_log(watch, tmp_path, limit, switch_on, monkeypatch):
    monkeypatch.setenv("PATH", "")  # without py-spy
    with pytest.raises(HangError, match=limit) as error:
        watch([sys.executable, "-S", "-c", FAMILY.replace("SWITCH_ON", switch_on)], **{limit: 1.5})
    log = (tmp_path / "trainer.log").read_text()
    for name in ("the_parent_waits_here", "the_child_waits_here"):
        assert re.search(rf'File "<string>", line \d+ in {name}\b', log), log
    assert len(re.findall(r"^firstdiff: .*process \d+: .*python", log, re.MULTILINE)) == 2
    assert "never asked" not in log
    assert error.value.log_tail == "it began", "the report shows what the trainer said last, not the stacks"


PY_SPY = """#!/bin/sh
[ "$1 $2" = "dump --pid" ] || exit 1
echo "Thread $3 (idle): MainThread"
"""


@needs_proc
@pytest.mark.parametrize(("script", "words"), [(PY_SPY, "(idle): MainThread"), ("#!/bin/sh\nexit 1\n", "waits_here")])
def test_py_spy_is_asked_where_it_is_and_may_look(watch, tmp_path, monkeypatch, script, words):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/py-spy").write_text(script)
    (tmp_path / "bin/py-spy").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    with pytest.raises(HangError):
        watch([sys.executable, "-S", "-c", FAMILY.replace("SWITCH_ON", "faulthandler.enable()")], time_limit=1)
    assert words in (tmp_path / "trainer.log").read_text()


SHOWS = """
import signal
from probe.collect.stacks import show_stacks_on_signal
from probe.types import STACK_SIGNAL

def here():
    signal.raise_signal(STACK_SIGNAL)

signal.signal(STACK_SIGNAL, lambda *args: print("mine"))
show_stacks_on_signal()
here()
signal.signal(STACK_SIGNAL, signal.SIG_DFL)
show_stacks_on_signal()
here()
"""


def test_a_probe_shows_stacks_on_the_signal_and_never_takes_a_handler_away():
    done = subprocess.run([sys.executable, "-c", SHOWS], capture_output=True, text=True, check=True)
    assert done.stdout == "mine\n"
    assert done.stderr.count("in here") == 1


def test_every_record_step_and_dumped_layer_is_progress(tmp_path, make_dump):
    look = _growth_of(tmp_path / "dump")
    seen = [look()]
    make_dump("dump", [("loss", 1.0)], finish=False)
    seen.append(look())
    layers = tmp_path / "dump/actor_update/step0/rank0/dump_tensor_data"
    layers.mkdir(parents=True)
    seen.append(look())
    time.sleep(0.02)
    (layers / "Module.pt").touch()
    seen.append(look())
    time.sleep(0.02)
    (tmp_path / "dump/manifest.json").touch()
    seen.append(look())
    assert len(set(seen)) == len(seen)
    assert look() == seen[-1]


def test_what_other_hosts_ranks_said_when_a_hang_was_ended_is_not_the_reason():
    hung = Ended("the trainer made no progress for 9 s (trainer.stall_seconds)", hung=True)
    other = Ended("ended since host 0 failed", told=True, failures=[Failure(3, 1, 5, 1.0, "Connection closed by peer")])
    found = _together([other, hung])
    assert (found.error, found.failures, found.hung) == (f"host 1: {hung.error}", [], True)


TRAIN = """
import time
import torch
import torch.distributed as dist
from probe import Probe

dist.init_process_group("gloo")
rank = dist.get_rank()
probe = Probe.from_env()

def waits_for_a_file():
    time.sleep(600)

for step in range(9):
    if rank == 1 and step == 2:
        waits_for_a_file()
    total = torch.tensor([rank + 1.0])
    dist.all_reduce(total)
    probe.save({"loss": total})
    probe.step()
"""


@pytest.fixture
def train(tmp_path):
    """Runs a script to its hang; returns the error."""

    def run(script: str, **options) -> HangError:
        (tmp_path / "train.py").write_text(script)
        lines = "".join(f"  {name}: {value}\n" for name, value in options.items())
        (tmp_path / "profile.yaml").write_text(f"trainer:\n  kind: command\n  command: [python, train.py]\n{lines}")
        profile = load_profile(str(tmp_path / "profile.yaml"))
        (tmp_path / "a").mkdir()
        with pytest.raises(HangError) as error:
            launcher_for(profile).run(tmp_path / "a", run_spec(profile, "a", tmp_path / "a/msprobe_dump"))
        return error.value

    return run


@pytest.mark.slow
@needs_proc
def test_ranks_that_hang_show_their_stacks_and_the_error_names_run_limit_and_step(train, tmp_path):
    error = train(TRAIN, nproc_per_node=2, stall_seconds=20)
    assert str(error) == (
        "run a: the trainer made no progress for 20 s (trainer.stall_seconds); the last step that it finished is 1"
    )
    log = (tmp_path / "a/trainer.log").read_text()
    assert re.search(r"\[rank1\] .* in waits_for_a_file", log), log
    assert re.search(r"\[rank0\] .* in all_reduce", log), log
    assert re.search(r"firstdiff: stacks of process \d+ \(rank 0\): ", log)
    dump = read_dump(tmp_path / "a/msprobe_dump")
    assert not dump.complete
    assert any("trainer.stall_seconds" in problem for problem in dump.problems)


@needs_proc
def test_a_trainer_that_hangs_before_it_opens_its_probe_shows_its_stacks(train, tmp_path):
    error = train("import time\ndef loads_the_model():\n    time.sleep(600)\nloads_the_model()\n", time_limit=2)
    assert str(error) == "run a: the trainer ran longer than 2 s (trainer.time_limit); it had recorded nothing"
    assert "in loads_the_model" in (tmp_path / "a/trainer.log").read_text()
