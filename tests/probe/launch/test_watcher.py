"""Nothing of a trainer outlives the process that runs it, however that ends: SIGKILL, of its group too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.errors import InternalError, TrainerError
from probe.launch import watcher

from .conftest import is_running

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux adopts orphans")

FAMILY = """
echo $$ > trainer.pid
(trap 'DEAF' TERM; echo $BASHPID > deaf.pid; while :; do sleep 0.2; done) &
setsid bash -c 'echo $$ > session.pid; exec sleep 600' &
bash -c 'setsid env -i bash -c "echo \\$\\$ > orphan.pid; exec sleep 600" & exit'
wait
"""
"""A trainer, a child that may ignore SIGTERM, one in a session of its own, and an orphan without any environment."""
NAMES = ("trainer", "deaf", "session", "orphan")

CALLER = """
import os, sys, time
from pathlib import Path
from probe.launch import run_process
BEFORE
run_process(["bash", "-c", Path("family.sh").read_text()], cwd=Path("."), env=dict(os.environ),
    log_file=Path("trainer.log"), on_line=lambda line: None, remove=[Path("scratch")])
"""


@pytest.fixture
def family(tmp_path):
    """Starts a process that runs a trainer with a family; returns it and their pids."""
    started = []

    def start(before: str = "", deaf: str = "exit") -> tuple[subprocess.Popen, dict[str, int]]:
        (tmp_path / "family.sh").write_text(FAMILY.replace("DEAF", deaf))
        (tmp_path / "scratch").mkdir()
        command = [sys.executable, "-c", CALLER.replace("BEFORE", before)]
        started.append(subprocess.Popen(command, cwd=tmp_path, start_new_session=True))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            pids = {path.stem: path.read_text() for path in tmp_path.glob("*.pid")}
            if set(NAMES) <= set(pids) and all(pids.values()):
                return started[-1], {name: int(pid) for name, pid in pids.items()}
            time.sleep(0.05)
        pytest.fail("the trainer did not start")

    yield start
    for process in started:
        process.kill()
        process.wait()


def left(pids: dict[str, int], seconds: float = 15) -> list[str]:
    deadline = time.monotonic() + seconds
    while (names := [name for name, pid in pids.items() if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return names


@pytest.mark.parametrize(("number", "deaf"), [(signal.SIGKILL, ""), (signal.SIGTERM, "exit"), (signal.SIGINT, "exit")])
def test_the_end_of_the_caller_is_the_end_of_all(family, tmp_path, number, deaf):
    process, pids = family(deaf=deaf)
    (watches,) = [pid for pid in watcher.descendants(process.pid) if pid not in pids.values()][:1]
    process.send_signal(number)
    assert left({**pids, "watcher": watches}) == []
    deadline = time.monotonic() + 5
    while number != signal.SIGINT and (tmp_path / "scratch").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (tmp_path / "scratch").exists() == (number == signal.SIGINT), "what the caller could not tidy up is removed"


def test_a_signal_for_the_caller_s_whole_group_does_not_reach_the_watcher(family):
    process, pids = family()
    os.killpg(process.pid, signal.SIGKILL)
    assert left(pids) == []


def test_a_child_of_the_caller_that_has_its_descriptors_does_not_keep_the_trainer(family, tmp_path):
    """It was forked while the trainer ran: the pipe to the watcher stays open in it."""
    fork = """
import threading
def fork():
    while not Path("orphan.pid").exists(): time.sleep(0.05)
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    Path("fork").write_text(str(pid))
threading.Thread(target=fork).start()
"""
    process, pids = family(fork)
    while not (tmp_path / "fork").exists() or not (tmp_path / "fork").read_text():
        time.sleep(0.05)
    process.kill()
    try:
        assert left(pids) == []
        assert is_running(int((tmp_path / "fork").read_text()))
    finally:
        os.kill(int((tmp_path / "fork").read_text()), signal.SIGKILL)


def test_a_watcher_that_is_killed_takes_its_trainer_along_and_the_caller_says_so(watch, tmp_path):
    script = """
        echo $$ > trainer.pid
        setsid sh -c 'echo $$ > far.pid; exec sleep 600' & while [ ! -s far.pid ]; do sleep 0.05; done
        kill -9 $PPID; exec sleep 600
    """
    with pytest.raises(TrainerError, match="^the process that watches the trainer was ended from outside$"):
        watch(script, env={**os.environ, "MARK": str(tmp_path)}, mark="MARK")
    assert left({name: int((tmp_path / f"{name}.pid").read_text()) for name in ("trainer", "far")}, 1) == []


RANKS = """
import os, signal, time
from torch.utils.data import DataLoader
signal.signal(signal.SIGTERM, signal.SIG_IGN)
class Slow:
    def __len__(self): return 9
    def __getitem__(self, index):
        open(f"{os.environ['RANK']}-{os.getpid()}.worker", "w").close()
        time.sleep(600)
open(f"{os.environ['RANK']}.rank", "w").write(str(os.getpid()))
next(iter(DataLoader(Slow(), num_workers=2)))
"""
LAUNCH = """
from pathlib import Path
from probe.config import load_profile
from probe.launch import launcher_for, run_spec
profile = load_profile("profile.yaml")
Path("a").mkdir()
launcher_for(profile).run(Path("a").absolute(), run_spec(profile, "a", Path("a/msprobe_dump").absolute()))
"""


@pytest.mark.slow
def test_ranks_and_their_data_loaders_end_with_the_caller_that_is_killed(tmp_path):
    (tmp_path / "train.py").write_text(RANKS)
    (tmp_path / "profile.yaml").write_text("trainer: {kind: command, command: [python, train.py], nproc_per_node: 2}")
    (tmp_path / "tmp").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCH], cwd=tmp_path, env={**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    )
    try:
        deadline = time.monotonic() + 90
        while len(list(tmp_path.glob("*.worker"))) < 4 and time.monotonic() < deadline:
            time.sleep(0.1)
        pids = {str(pid): pid for pid in watcher.descendants(process.pid)}
        assert len(pids) >= 1 + 1 + 2 + 4, "watcher, torchrun, ranks, their data loaders"
    finally:
        process.kill()
        process.wait()
    assert left(pids) == []
    assert [path.name for path in (tmp_path / "tmp").iterdir() if path.name.startswith("firstdiff-")] == []


def test_the_watcher_is_small_and_loads_nothing_of_ours():
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-X", "importtime", watcher.__file__],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "json" in loaded
    assert loaded.isdisjoint({"torch", "probe", "numpy", "prefect", "site"})


def test_descendants_are_those_of_one_process_alone(tmp_path):
    mine = subprocess.Popen(["sh", "-c", "sleep 60 & echo $! ; wait"], stdout=subprocess.PIPE, text=True)
    other = subprocess.Popen(["sleep", "60"])
    try:
        grandchild = int(mine.stdout.readline())
        assert watcher.descendants(mine.pid) == [grandchild]
        assert {mine.pid, grandchild, other.pid} <= set(watcher.descendants(os.getpid()))
        os.kill(grandchild, signal.SIGKILL)
    finally:
        for process in (mine, other):
            process.kill()
            process.communicate()


def test_a_mark_that_others_have_too_is_refused(watch, monkeypatch):
    """All that carries it would be ended."""
    monkeypatch.setenv("FIRSTDIFF_SPEC", "/mine")
    with pytest.raises(InternalError, match="marks this process too"):
        watch("true", mark="FIRSTDIFF_SPEC")
