"""Starting trainers: any command that uses the probe, and the integrated trainer."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

import pytest

from probe.config import load_profile
from probe.errors import TrainerError
from probe.launch import CommandLauncher, IntegratedLauncher, launcher_for, run_spec
from probe.store.reader import read_dump


@pytest.fixture
def project(tmp_path):
    """A folder with a script of the user's and a profile beside it; returns what runs it."""

    class Project:
        folder = tmp_path / "project"
        run_folder = tmp_path / "a"

        def run(self, script: str = "", trainer: str = "command: [python, train.py]", rest: str = ""):
            (self.folder / "train.py").write_text(script)
            (self.folder / "profile.yaml").write_text(f"trainer:\n  kind: command\n  {trainer}\n{rest}")
            profile = load_profile(str(self.folder / "profile.yaml"))
            self.run_folder.mkdir()
            dump = self.run_folder / "msprobe_dump"
            launcher_for(profile).run(self.run_folder, run_spec(profile, "b", dump))
            return dump

    Project.folder.mkdir()
    return Project()


TRAIN = """
import json, os, sys
sys.path.insert(0, "lib")
import flows, helper, tasks
from probe import Probe
offered = os.environ["PYTHONPATH"].split(os.pathsep)
json.dump({
    "own modules": [flows.WHOSE, tasks.WHOSE, helper.WHOSE],
    "offered": sorted(os.listdir(offered[0])),
    "path after it": offered[1:],
    "executable": sys.executable,
    "arguments": sys.argv[1:],
    "cwd": os.getcwd(),
    "variables": {name: os.environ[name] for name in ("MINE", "FIRSTDIFF_RUN", "PYTHONHASHSEED", "OMP_NUM_THREADS")},
}, open("seen.json", "w"))
print("it trains")
probe = Probe.from_env()
for step in range(3):
    probe.save({"loss": step})
    probe.step()
    if probe.finished:
        break
"""


@pytest.fixture
def trained(project, monkeypatch, caplog):
    """The user's script after its run: what it saw, its dump, and what was logged."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere/of/the/user")
    caplog.set_level(logging.INFO, logger="firstdiff.trainer")
    inner = project.folder / "inner"
    (inner / "lib").mkdir(parents=True)
    (inner / "lib/helper.py").write_text("WHOSE = 'user'")
    for name in ("tasks", "flows"):
        (project.folder / f"{name}.py").write_text("WHOSE = 'user'")
    dump = project.run(
        TRAIN,
        "command: [python, ../train.py, --steps, '3']\n  cwd: inner\n  env: {MINE: 'x y', PYTHONHASHSEED: '7'}",
        "check: {steps: 2}\ndeterminism: {num_threads: 3}\n",
    )
    return json.loads((inner / "seen.json").read_text()), dump, project


def test_a_script_that_uses_the_probe_is_recorded(trained, caplog):
    seen, dump, project = trained
    assert [(r.tag, r.step) for r in read_dump(dump).records[0]] == [("loss", 0), ("loss", 1)]
    assert read_dump(dump).complete
    # where it runs and with what
    assert seen["executable"] == sys.executable
    assert seen["arguments"] == ["--steps", "3"]
    assert seen["cwd"] == str((project.folder / "inner").resolve())
    # what is offered to it: probe, and nothing else of ours
    assert seen["offered"] == ["probe"]
    assert seen["path after it"] == ["/somewhere/of/the/user"]
    assert seen["own modules"] == ["user"] * 3
    # its variables: the profile's over determinism's, determinism's over the machine's
    assert seen["variables"] == {"MINE": "x y", "FIRSTDIFF_RUN": "b", "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "3"}
    # its output
    assert (project.run_folder / "trainer.log").read_text() == "it trains\n"
    assert [r.message for r in caplog.get_records("setup") if r.name == "firstdiff.trainer"] == ["it trains"]


def test_a_script_that_records_nothing_is_an_error_that_says_what_is_missing(project):
    with pytest.raises(TrainerError, match=r"run b: .*recorded nothing.*probe.Probe.from_env\(\)"):
        project.run("print('hello')")


def test_a_script_that_fails_is_an_error_with_the_end_of_its_log(project):
    with pytest.raises(TrainerError, match=r"run b: the trainer failed with exit status 1") as caught:
        project.run("print('it trains')\nraise RuntimeError('out of luck')")
    assert caught.value.exit_code_of_child == 1
    assert caught.value.log_tail.startswith("it trains")
    assert caught.value.log_tail.endswith("RuntimeError: out of luck")
    assert "out of luck" in (project.run_folder / "trainer.log").read_text()


def test_any_other_program_is_used_as_it_is(project):
    program = project.folder / "start"
    program.write_text("#!/bin/sh\necho started by a shell $1\nexit 4\n")
    program.chmod(0o755)
    with pytest.raises(TrainerError, match="exit status 4") as caught:
        project.run(trainer="command: [./start, 'one argument; exit 5']")
    assert caught.value.log_tail == "started by a shell one argument; exit 5"


def test_a_program_that_is_not_there_is_named(project):
    with pytest.raises(TrainerError, match="run b: .*could not be started.*no-such-program"):
        project.run(trainer="command: [no-such-program]")


def test_the_profile_s_deadlines_hold(project):
    with pytest.raises(TrainerError, match=r"run b: .*trainer.time_limit"):
        project.run("import time\ntime.sleep(60)", "command: [python, -S, train.py]\n  time_limit: 1")


def test_a_script_that_writes_records_is_not_stalled(project):
    script = """
import os, pathlib, time
index = pathlib.Path(os.environ["FIRSTDIFF_SPEC"]).parent / "msprobe_dump/index"
index.mkdir(parents=True)
for _ in range(12):
    time.sleep(0.2)
    with (index / "rank0.jsonl").open("a") as file:
        file.write("{}\\n")
raise SystemExit(6)
"""
    with pytest.raises(TrainerError, match="exit status 6"):
        project.run(script, "command: [python, -S, train.py]\n  stall_seconds: 1")


def test_the_dump_of_a_script_that_ended_with_an_error_status_is_not_complete(project):
    script = """
import sys
from probe import Probe
def main():
    probe = Probe.from_env()
    probe.save({"loss": 1})
    probe.step()
    return 3
sys.exit(main())
"""
    with pytest.raises(TrainerError, match="exit status 3"):
        project.run(script)
    assert not read_dump(project.run_folder / "msprobe_dump").complete


def test_each_kind_of_trainer_has_its_launcher(tmp_path):
    (tmp_path / "command.yaml").write_text("trainer: {kind: command, command: [python]}")
    (tmp_path / "integrated.yaml").write_text("trainer: {kind: integrated}")
    assert isinstance(launcher_for(load_profile(str(tmp_path / "command.yaml"))), CommandLauncher)
    assert isinstance(launcher_for(load_profile(str(tmp_path / "integrated.yaml"))), IntegratedLauncher)


INTEGRATED = """
trainer:
  kind: integrated
  config:
    device: {device}
    model:
      config: {{hidden_size: 8, intermediate_size: 8, num_hidden_layers: 1, num_attention_heads: 1,
        num_key_value_heads: 1}}
    megatron_training: {{global_batch_size: 1, train_iters: 3}}
    msprobe_config: {{reference_dump: true, step_start: 1, step_end: 1}}
determinism: {{num_threads: 1}}
"""


@pytest.fixture
def integrated(tmp_path):
    def run(device: str) -> Path:
        (tmp_path / "profile.yaml").write_text(INTEGRATED.format(device=device))
        profile = load_profile(str(tmp_path / "profile.yaml"), ["check.steps=2"])
        folder = tmp_path / "a"
        folder.mkdir()
        launcher_for(profile).run(folder, run_spec(profile, "a", folder / "msprobe_dump"))
        return folder

    return run


def test_the_integrated_trainer_is_started_on_a_file_of_its_own(integrated):
    folder = integrated("cpu")
    dump = read_dump(folder / "msprobe_dump")
    assert (dump.complete, dump.steps_finished) == (True, 2)
    assert {r.tag for r in dump.records[0]} >= {"prompts", "responses", "old_log_prob", "loss", "weights"}
    configuration = json.loads((folder / "msprobe_dump/configurations.json").read_text())
    assert configuration["trainer"]["config"]["megatron_training"]["global_batch_size"] == 1
    written = (folder / "trainer.yaml").read_text()
    for line in ("msprobe: true", "key_data_dump: true", "reference_dump: true", "step_start: 1", "num_threads: 1"):
        assert line in written
    assert '"step": 0' in (folder / "trainer.log").read_text()


def test_an_integrated_trainer_that_cannot_start_says_why(integrated):
    with pytest.raises(TrainerError, match="run a: .*exit status 64") as caught:
        integrated("npu")
    assert "torch_npu is not installed" in caught.value.log_tail
    assert "Traceback" not in caught.value.log_tail
