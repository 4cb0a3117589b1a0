"""Trainers of several processes: started with torchrun, recorded by every rank, ended as a whole, failures named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.config import load_profile
from probe.errors import ConfigError, TrainerError
from probe.launch import launcher_for, run_spec
from probe.launch.failures import Failure, first_failure
from probe.store.reader import read_dump

TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from probe import Probe

def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    probe = Probe.from_env()
    print(f"it trains as {rank}", flush=True)
    for step in range(2):
        total = torch.tensor([rank + 1.0])
        if rank == 1 and step == 1:
            FAULT
        dist.all_reduce(total)
        probe.save({"loss": total, "prompts": rank})
        probe.step()
    dist.destroy_process_group()

main()
"""


@pytest.fixture
def train(tmp_path):
    """Runs a script in two processes; returns its run's folder."""

    def run(fault: str = "pass", script: str = TRAIN, **options) -> Path:
        (tmp_path / "train.py").write_text(script.replace("FAULT", fault))
        lines = "".join(f"  {name}: {value}\n" for name, value in {"nproc_per_node": 2, **options}.items())
        (tmp_path / "profile.yaml").write_text(f"trainer:\n  kind: command\n  command: [python, train.py]\n{lines}")
        profile = load_profile(str(tmp_path / "profile.yaml"))
        folder = tmp_path / "a"
        folder.mkdir()
        launcher_for(profile).run(folder, run_spec(profile, "a", folder / "msprobe_dump"))
        return folder

    return run


def test_every_rank_records_its_own_part_of_one_run(train):
    folder = train()
    dump = read_dump(folder / "msprobe_dump")
    assert (dump.complete, dump.problems, dump.steps_finished) == (True, [], 2)
    assert {rank: [(r.tag, r.step) for r in found] for rank, found in dump.records.items()} == {
        rank: [("loss", 0), ("prompts", 0), ("loss", 1), ("prompts", 1)] for rank in (0, 1)
    }
    assert sorted(path.name for path in (folder / "msprobe_dump/trace").iterdir()) == ["rank0.jsonl", "rank1.jsonl"]
    top = {path.name for path in (folder / "msprobe_dump").iterdir()}
    assert top == {
        "data", "index", "trace", "manifest.rank0.json", "manifest.rank1.json",
        "configurations.json", "environment.json", "environment.rank1.json",
    }  # fmt: skip
    log = (folder / "trainer.log").read_text()
    assert "[rank0] it trains as 0" in log
    assert "[rank1] it trains as 1" in log


def test_what_is_recorded_to_the_host_s_own_disk_is_moved_to_the_run_s_folder(train, tmp_path):
    dump = read_dump(train(local_dump="own") / "msprobe_dump")
    assert (dump.complete, sorted(dump.ranks)) == (True, [0, 1])
    assert list((tmp_path / "own").iterdir()) == []


def test_a_script_in_which_only_one_rank_records_is_no_whole_run(train):
    script = TRAIN.replace("probe = Probe.from_env()", "probe = Probe.from_env() if rank == 0 else Probe()")
    dump = read_dump(train(script=script) / "msprobe_dump")
    assert not dump.complete
    assert any("2 processes were started, 1 recorded" in problem for problem in dump.problems)


def test_a_script_that_hides_its_ranks_is_no_whole_run(train):
    script = """
import os
rank = int(os.environ["RANK"])
del os.environ["RANK"], os.environ["WORLD_SIZE"]
from probe import Probe
if rank == 0:
    probe = Probe.from_env()
    probe.save({"loss": 1})
    probe.step()
"""
    dump = read_dump(train(script=script) / "msprobe_dump")
    assert (dump.folder / "manifest.json").exists()
    assert not dump.complete
    assert any("2 processes were started, 1 recorded" in problem for problem in dump.problems)


def test_ranks_of_a_command_that_starts_torchrun_itself_are_one_run(train, tmp_path):
    (tmp_path / "ranks.py").write_text(TRAIN.replace("FAULT", "pass"))
    script = """
import subprocess, sys
command = ["torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2", "ranks.py"]
sys.exit(subprocess.call([sys.executable, "-m", *command]))
"""
    dump = read_dump(train(script=script, nproc_per_node="null") / "msprobe_dump")
    assert (dump.complete, sorted(dump.ranks)) == (True, [0, 1])


def test_a_rank_that_raises_is_named_and_ends_the_run(train):
    start = time.monotonic()
    with pytest.raises(
        TrainerError, match="^run a: rank 1 failed with exit status 1: ValueError: out of luck$"
    ) as error:
        train("raise ValueError('out of luck')")
    assert time.monotonic() - start < 60
    assert error.value.exit_code_of_child == 1
    assert "ValueError: out of luck" in error.value.log_tail


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        ("os._exit(7)", "rank 1 failed with exit status 7: it trains as 1"),
        ("os.kill(os.getpid(), 9)", "rank 1 was ended by SIGKILL: it trains as 1"),
    ],
)
def test_a_rank_that_vanishes_is_named(train, tmp_path, fault, sentence):
    with pytest.raises(TrainerError) as error:
        train(fault)
    assert str(error.value) == f"run a: {sentence}"
    dump = read_dump(tmp_path / "a/msprobe_dump")
    assert not dump.complete
    assert f"{dump.folder}: {sentence}" in dump.problems


HANG = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"{os.environ['RANK']}.pid", "w").write(str(os.getpid()))
time.sleep(600)
"""


def test_nothing_is_left_of_ranks_that_do_not_listen(train, tmp_path, gone):
    with pytest.raises(TrainerError, match="trainer.time_limit"):
        train(script=HANG, time_limit=12)
    pids = [int((tmp_path / f"{rank}.pid").read_text()) for rank in (0, 1)]
    assert all(gone(pid) for pid in pids)


def test_nothing_is_left_when_torchrun_itself_is_killed(train, tmp_path, gone):
    script = HANG + "\n"
    script = script.replace(
        "time.sleep(600)", "os.environ['RANK'] == '1' and os.kill(os.getppid(), 9)\ntime.sleep(600)"
    )
    with pytest.raises(TrainerError, match="the trainer was ended by SIGKILL"):
        train(script=script)
    assert all(gone(int(path.read_text())) for path in tmp_path.glob("*.pid"))


def test_nothing_is_left_of_an_interrupted_check(tmp_path, gone):
    (tmp_path / "train.py").write_text(HANG)
    (tmp_path / "profile.yaml").write_text("trainer: {kind: command, command: [python, train.py], nproc_per_node: 2}")
    watcher = """
import sys
from pathlib import Path
from probe.config import load_profile
from probe.launch import launcher_for, run_spec
profile = load_profile("profile.yaml")
Path("a").mkdir()
launcher_for(profile).run(Path("a").absolute(), run_spec(profile, "a", Path("a/msprobe_dump").absolute()))
"""
    started = subprocess.Popen([sys.executable, "-c", watcher], cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*.pid"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    assert started.wait(60) != 0
    assert all(gone(int(path.read_text())) for path in tmp_path.glob("*.pid"))


def test_a_program_that_is_not_there_is_named(tmp_path):
    (tmp_path / "profile.yaml").write_text("trainer: {kind: command, command: [no-such-program], nproc_per_node: 1}")
    profile = load_profile(str(tmp_path / "profile.yaml"))
    (tmp_path / "a").mkdir()
    with pytest.raises(TrainerError, match="could not be started: No such file or directory: no-such-program"):
        launcher_for(profile).run(tmp_path / "a", run_spec(profile, "a", tmp_path / "a/msprobe_dump"))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ("nnodes: 2", "nnodes: several hosts need nproc_per_node"),
        ("nnodes: 2, nproc_per_node: 1", "nnodes: several hosts need rdzv_endpoint"),
        ("node_rank: 1", "node_rank: there is no host 1 among 1"),
        ("nproc_per_node: 0", "greater than or equal to 1"),
        ("nnodes: 2, nproc_per_node: 1, rdzv_endpoint: somewhere", "rdzv_endpoint: string should match pattern"),
    ],
)
def test_hosts_that_could_not_find_each_other_are_refused(tmp_path, keys, sentence):
    (tmp_path / "profile.yaml").write_text(f"trainer: {{kind: command, command: [python, a.py], {keys}}}")
    with pytest.raises(ConfigError, match=sentence):
        load_profile(str(tmp_path / "profile.yaml"))


@pytest.mark.parametrize("command", ["[torchrun, a.py]", "[python, -m, torch.distributed.run, a.py]"])
def test_a_command_that_starts_ranks_itself_is_refused(tmp_path, command):
    (tmp_path / "profile.yaml").write_text(f"trainer: {{kind: command, command: {command}, nproc_per_node: 2}}")
    with pytest.raises(ConfigError, match="starts several processes by itself"):
        load_profile(str(tmp_path / "profile.yaml"))


def test_ranks_that_lost_a_peer_or_were_ended_come_after_the_one_that_failed():
    closed = "RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:1"
    lost = Failure(0, 1, 100, 1.0, closed)
    ended = Failure(2, -15, 99, 0.5, "step 3")
    failed = Failure(1, 1, 100, 2.0, "ValueError: out of luck")
    assert first_failure([lost, ended, failed]) == failed
    assert first_failure([lost, ended]) == lost
    assert first_failure([Failure(3, -9, 100, 3.0, "x"), lost]).rank == 3
    assert first_failure([]) is None


def test_the_last_words_are_the_exception_s_line(tmp_path):
    file = tmp_path / "stderr.log"
    file.write_text(
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 1\n[rank1]:     main()\n'
        "[rank1]: ValueError: out of luck\n[rank1]:[W1 ProcessGroup.cpp:1] Warning: not destroyed\nfirstdiff: later\n"
    )
    assert Failure.of(1, 1, 0, [file], None).last_words == "ValueError: out of luck"
    file.write_text("one\n\ntwo\n\n")
    assert Failure.of(1, 1, 0, [file], None).last_words == "two"
    file.write_text("")
    assert Failure.of(1, -11, 0, [file], "host7").sentence == "rank 1 on host7 was ended by SIGSEGV: it printed nothing"


def test_the_ranks_of_firstdiff_s_own_process_do_not_reach_a_trainer_of_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "train.py").write_text("from probe import Probe\nprobe = Probe.from_env()\nprobe.save({'loss': 1})\n")
    (tmp_path / "profile.yaml").write_text("trainer: {kind: command, command: [python, train.py]}")
    profile = load_profile(str(tmp_path / "profile.yaml"))
    (tmp_path / "a").mkdir()
    launcher_for(profile).run(tmp_path / "a", run_spec(profile, "a", tmp_path / "a/msprobe_dump"))
    assert read_dump(tmp_path / "a/msprobe_dump").complete
    assert os.path.exists(tmp_path / "a/msprobe_dump/manifest.json")
