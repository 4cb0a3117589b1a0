"""What a check that is tried again takes over: whole runs of the very same spec, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from probe.config import load_profile
from probe.errors import TrainerError
from probe.launch import begin_run, dump_folder, forget_results, is_finished, launcher_for, run_spec
from probe.launch.finished import FINISHED, note_finished
from probe.store.writer import mark_incomplete
from probe.types import RunSpec

from .conftest import is_running

TRAIN = """
import sys
from probe import Probe
probe = Probe.from_env()
for step in range(2):
    probe.save({"loss": step * 0.5})
    probe.step()
sys.exit(int(sys.argv[1]))
"""


@dataclass(frozen=True)
class Run:
    folder: Path
    spec: RunSpec

    @property
    def dump(self) -> Path:
        return Path(self.spec.dump_path)


def train(check: Path, status: int = 0) -> Run:
    check.mkdir(parents=True, exist_ok=True)
    (check / "train.py").write_text(TRAIN)
    profile = check / "profile.yaml"
    profile.write_text(f"trainer: {{kind: command, command: [python, train.py, '{status}']}}")
    loaded = load_profile(str(profile))
    dump = dump_folder(check, "a")
    begin_run(dump.parent)
    spec = run_spec(loaded, "a", dump)
    launcher_for(loaded).run(dump.parent, spec)
    return Run(dump.parent, spec)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(tmp_path_factory.mktemp("check"))


@pytest.fixture
def run(original: Run, tmp_path: Path) -> Run:
    """A whole run in a folder of this test's own, noted as such."""
    shutil.copytree(original.folder, tmp_path / "a")
    made = Run(tmp_path / "a", replace(original.spec, dump_path=str(tmp_path / "a/msprobe_dump")))
    note_finished(made.folder, made.spec)
    assert is_finished(made.folder, made.spec)
    return made


def test_a_run_whose_trainer_ended_well_is_whole(original):
    assert is_finished(original.folder, original.spec)
    assert json.loads((original.folder / FINISHED).read_text())["run"] == "a"


def test_one_that_failed_after_its_last_step_is_not(tmp_path):
    with pytest.raises(TrainerError):
        train(tmp_path / "check", status=3)
    assert not (tmp_path / "check/a" / FINISHED).exists()


def test_one_of_another_spec_is_not(run):
    for change in (
        {"run": "b"},
        {"dump_path": "elsewhere"},
        {"last_step": 1},
        {"dump_stages": ("actor_update",)},
        {"configuration": {**run.spec.configuration, "faults": [1]}},
    ):
        assert not is_finished(run.folder, replace(run.spec, **change)), change


def test_a_copy_of_another_run_is_not(run, tmp_path):
    shutil.copytree(run.folder, tmp_path / "b")
    assert not is_finished(tmp_path / "b", replace(run.spec, run="b", dump_path=str(tmp_path / "b/msprobe_dump")))
    assert not is_finished(tmp_path / "b", replace(run.spec, dump_path=str(tmp_path / "b/msprobe_dump")))


def damage_no_note(run: Run) -> None:
    (run.folder / FINISHED).unlink()


def damage_half_a_note(run: Run) -> None:
    (run.folder / FINISHED).write_text("{")


def damage_marked(run: Run) -> None:
    mark_incomplete(run.dump, "it was not whole")


def damage_marked_and_noted(run: Run) -> None:
    mark_incomplete(run.dump, "it was not whole")
    note_finished(run.folder, run.spec)


def damage_no_manifest(run: Run) -> None:
    (run.dump / "manifest.json").unlink()


def damage_one_more_rank(run: Run) -> None:
    shutil.copy(run.dump / "manifest.json", run.dump / "manifest.rank1.json")


def damage_cut_index(run: Run) -> None:
    index = run.dump / "index/rank0.jsonl"
    index.write_bytes(index.read_bytes()[:-40])


def damage_no_dump(run: Run) -> None:
    shutil.rmtree(run.dump)


@pytest.mark.parametrize(
    "damage", [value for name, value in globals().items() if name.startswith("damage_")], ids=lambda one: one.__name__
)
def test_one_that_is_damaged_is_not(run, damage):
    damage(run)
    assert not is_finished(run.folder, run.spec)


def test_half_a_run_is_moved_aside_and_only_its_log_is_kept(run, tmp_path):
    log = (run.folder / "trainer.log").read_bytes()
    for number in (1, 2):
        begin_run(run.folder)
        assert list(run.folder.iterdir()) == []
        aside = tmp_path / f"interrupted/a-{number}"
        assert not (aside / "msprobe_dump").exists()
        (run.folder / "trainer.log").write_bytes(b"again")
    assert (tmp_path / "interrupted/a-1/trainer.log").read_bytes() == log
    assert (tmp_path / "interrupted/a-2/trainer.log").read_bytes() == b"again"


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows a process's environment")
def test_a_trainer_that_still_records_there_is_ended_first(run):
    environment = {**os.environ, "FIRSTDIFF_SPEC": str(run.folder / "spec.json")}
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    mine = subprocess.Popen(command, env=environment, start_new_session=True)
    other = subprocess.Popen(command, env={**environment, "FIRSTDIFF_SPEC": f"{run.folder}b/spec.json"})
    try:
        begin_run(run.folder)
        assert mine.wait(1) == -9
        assert is_running(other.pid)
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()


def test_what_an_earlier_attempt_concluded_goes_and_its_runs_stay(run, tmp_path):
    for name in ("keydata", "layers"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "table.xlsx").touch()
    for name in ("verdict.json", "report.html", "profile.yaml"):
        (tmp_path / name).touch()
    forget_results(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "profile.yaml"]
    assert is_finished(run.folder, run.spec)
