"""``Probe`` as a trainer sees it: inert outside a check, and in one a faithful and harmless recorder."""

from __future__ import annotations

import json
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from probe import Probe
from probe.errors import DumpError, RecordError, UsageError
from probe.store.reader import read_dump
from probe.types import STAGES, RunSpec


def random_states() -> tuple[object, ...]:
    kind, keys, *rest = np.random.get_state()
    return torch.get_rng_state().tolist(), random.getstate(), kind, keys.tolist(), rest


class TestOutsideACheck:
    @pytest.fixture
    def inert(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Probe:
        monkeypatch.delenv("FIRSTDIFF_SPEC", raising=False)
        monkeypatch.chdir(tmp_path)
        return Probe.from_env()

    def test_it_writes_nothing_and_changes_nothing(self, inert, tmp_path):
        model = torch.nn.Linear(2, 2)
        hook, states = sys.excepthook, random_states()
        inert.attach(actor=model)
        for _ in range(3):
            with inert.stage("actor_update", micro_step=0, rank=1):
                inert.save({"loss": model.weight.sum(), "a/b": object()}, mask=torch.ones(2), rank=1, micro_step=2)
            inert.step()
        inert.close()
        assert (inert.active, inert.finished) == (False, False)
        assert list(tmp_path.iterdir()) == []
        assert random_states() == states
        assert sys.excepthook is hook
        assert not model._forward_hooks and not model._forward_pre_hooks and not model._backward_hooks

    def test_mistakes_in_the_calls_show_there_too(self, inert):
        with pytest.raises(ValueError, match="unknown stage 'actor_updates'"), inert.stage("actor_updates"):
            pass
        with pytest.raises(TypeError, match="actor.*Module.*str"):
            inert.attach(actor="model")

    def test_an_exception_in_a_stage_passes_through(self, inert):
        with pytest.raises(KeyError, match="mine"), inert.stage("actor_update"):
            raise KeyError("mine")

    def test_an_empty_variable_is_no_spec(self, monkeypatch):
        monkeypatch.setenv("FIRSTDIFF_SPEC", "")
        assert not Probe.from_env().active


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{",
        "[]",
        "3",
        '"text"',
        "{}",
        '{"run": "a"}',
        '{"run": "a", "dump_path": "d", "surprise": 1}',
        '{"run": "a", "dump_path": "d", "dump_stages": null}',
        '{"run": "a", "dump_path": "d", "token_range": 3}',
        b"\xff\xfe",
    ],
)
def test_a_broken_spec_is_a_usage_error_that_names_the_file(content, monkeypatch, tmp_path):
    spec = tmp_path / "spec.json"
    if content is not None:
        spec.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.setenv("FIRSTDIFF_SPEC", str(spec))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="not a readable spec") as caught:
        Probe.from_env()
    assert str(spec) in str(caught.value)
    assert not (tmp_path / "d").exists()


def test_from_env_follows_the_spec_that_the_variable_names(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    spec = RunSpec(run="c", dump_path=str(tmp_path / "dump"), last_step=0)
    (tmp_path / "spec.json").write_text(spec.to_json())
    monkeypatch.setenv("FIRSTDIFF_SPEC", str(tmp_path / "spec.json"))
    probe = Probe.from_env()
    assert probe.active
    probe.close()
    assert not probe.active
    assert json.loads((tmp_path / "dump/manifest.json").read_text())["run"] == "c"


class TestPlaces:
    def test_values_lie_in_the_folders_that_msprobe_uses(self, record):
        recording = record()
        with recording.probe.stage("actor_update", micro_step=3):
            recording.probe.save({"loss": torch.tensor(1.0)})
        recording.probe.step()
        recording.probe.save({"rewards": torch.tensor(1.0)})
        recording.probe.close()
        assert {name for name in recording.files() if name.startswith("data/")} == {
            "data/loss/step0/rank0/micro_step3/loss.npy",
            "data/loss/step0/rank0/micro_step3/loss.json",
            "data/rewards/step1/rank0/micro_step0/rewards.npy",
            "data/rewards/step1/rank0/micro_step0/rewards.json",
        }

    def test_records_carry_stage_step_rank_and_micro_step(self, record):
        recording = record()
        save = recording.probe.save
        save({"prompts": 1})
        with recording.probe.stage("actor_update", micro_step=2, rank=1):
            save({"loss": 1})
            save({"loss": 1}, micro_step=5)
            save({"loss": 1}, rank=0, micro_step=0)
            with recording.probe.stage("reference_compute_log_prob"):
                save({"ref_log_prob": 1})
            save({"log_prob": 1})
        recording.probe.step()
        save({"rewards": 1}, rank=1)
        places = {rank: [(r.tag, r.stage, r.step, r.micro_step) for r in recording.records(rank)] for rank in (0, 1)}
        assert places == {
            0: [
                ("prompts", None, 0, 0),
                ("loss", "actor_update", 0, 0),
                ("ref_log_prob", "reference_compute_log_prob", 0, 0),
            ],
            1: [
                ("loss", "actor_update", 0, 2),
                ("loss", "actor_update", 0, 5),
                ("log_prob", "actor_update", 0, 2),
                ("rewards", None, 1, 0),
            ],
        }
        assert json.loads((recording.folder / "manifest.json").read_text())["ranks"] == [0, 1]

    def test_the_rank_comes_from_torch_distributed(self, start_script, tmp_path):
        process = start_script(
            tmp_path,
            """
import torch
from torch.testing._internal.distributed.fake_pg import FakeStore
from probe import Probe
torch.distributed.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
probe = Probe.from_env()
probe.attach(actor=torch.nn.Linear(1, 1))
probe.save({"prompts": 1})
with probe.stage("actor_update"):
    probe.save({"loss": 1})
probe.step()
""",
        )
        assert process.wait(60) == 0, process.stderr.read()
        dump = read_dump(tmp_path / "dump")
        assert {rank: [r.tag for r in found] for rank, found in dump.records.items()} == {
            3: ["prompts", "loss", "weights", "weights"],
        }
        assert dump.problems == [
            f"{dump.folder}: of 4 processes, rank 0, 1, 2 did not record; every process opens a Probe"
        ]

    def test_one_of_several_processes_records_its_own_rank_only(self, start_script, tmp_path):
        process = start_script(
            tmp_path,
            """
import os
os.environ |= {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
from probe import Probe
Probe.from_env().save({"loss": 1}, rank=0)
""",
        )
        assert process.wait(60) == 1
        assert "rank=0 in the process of rank 1: each process saves its own" in process.stderr.read()

    @pytest.mark.parametrize(("rank", "size"), [("2", "2"), ("-1", "2"), ("x", "2"), ("0", "")])
    def test_ranks_that_cannot_be_are_refused(self, start_script, tmp_path, rank, size):
        script = f"""
import os
os.environ |= {{"RANK": "{rank}", "WORLD_SIZE": "{size}"}}
from probe import Probe
Probe.from_env()
"""
        process = start_script(tmp_path, script)
        assert process.wait(60) == 1
        assert f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK=None: not the ranks of a run" in process.stderr.read()
        assert not (tmp_path / "dump").exists()

    def test_every_stage_can_be_entered_again_and_again(self, record):
        recording = record()
        for stage in STAGES:
            for _ in range(2):
                with recording.probe.stage(stage):
                    recording.probe.save({"x": 1})
        assert [(r.stage, r.call) for r in recording.records()] == [
            (stage, 2 * number + again) for number, stage in enumerate(STAGES) for again in (0, 1)
        ]


class TestRepeatedSaves:
    def test_they_are_kept_in_one_numbering(self, record):
        recording = record()
        recording.probe.save({"x": 10})
        recording.probe.save({"x": {"a": 11, "b": 12}})
        with recording.probe.stage("actor_update"):
            recording.probe.save({"x": 13})
        recording.probe.save({"x": {"b": 14}})
        folder = "data/x/step0/rank0/micro_step0"
        assert [(r.path, r.call, r.file, recording.values(r).item()) for r in recording.records()] == [
            ("", 0, f"{folder}/x.npy", 10),
            ("a", 0, f"{folder}/x.1.npy", 11),
            ("b", 0, f"{folder}/x.2.npy", 12),
            ("", 1, f"{folder}/x.3.npy", 13),
            ("b", 1, f"{folder}/x.4.npy", 14),
        ]
        paths = [
            json.loads((recording.folder / folder / f"x{number}.json").read_text())["data"]["path"]
            for number in ("", ".1", ".2", ".3", ".4")
        ]
        assert paths == ["", "a", "b", "", "b"]

    def test_each_step_rank_and_micro_step_counts_anew(self, record):
        recording = record()
        for _ in range(2):
            for rank in (0, 1):
                for micro_step in (0, 1):
                    recording.probe.save({"x": 1}, rank=rank, micro_step=micro_step)
            recording.probe.step()
        assert {r.call for rank in (0, 1) for r in recording.records(rank)} == {0}
        assert not [name for name in recording.files() if name.endswith(".1.npy")]

    def test_paths_that_look_alike_lose_nothing(self, record):
        recording = record()
        recording.probe.save({"x": {"a.b": 1, "a": {"b": 2}}})
        assert [(r.path, r.call, recording.values(r).item()) for r in recording.records()] == [
            ("a\\.b", 0, 1),
            ("a.b", 0, 2),
        ]


class TestTags:
    @pytest.mark.parametrize(
        "tag", ["", ".", "..", "a/b", "a\\b", "/etc", "a\0b", "a\nb", "a:b", "a*", " a", "a ", "a.", "x" * 151, 7, None]
    )
    def test_what_cannot_name_a_folder_is_refused(self, tag, record):
        recording = record()
        with pytest.raises(RecordError, match="not a valid folder name"):
            recording.probe.save({tag: 1})
        assert not (recording.folder / "data").exists()

    @pytest.mark.parametrize("tag", ["loss", "entropy_loss", "x.1", "KL (k3)", "奖励", "a-b=c", "x" * 150])
    def test_any_folder_name_is_taken(self, tag, record):
        recording = record()
        recording.probe.save({tag: 3})
        (only,) = recording.records()
        assert (only.tag, recording.values(only).item()) == (tag, 3)

    def test_a_tag_that_the_file_system_refuses_is_a_clear_error(self, record):
        with pytest.raises(DumpError) as caught:
            record().probe.save({"奖" * 150: 1})
        assert "\n" not in str(caught.value)


class TestWeights:
    def test_every_parameter_and_buffer_of_every_attached_model_is_recorded_at_step(self, record):
        recording = record()
        recording.probe.attach(actor=torch.nn.BatchNorm1d(2), reference=torch.nn.Linear(2, 1, bias=False))
        recording.probe.step()
        assert [(r.tag, r.step, r.path, r.dtype, r.shape, r.file) for r in recording.records()] == [
            ("weights", 0, "actor.weight", "float32", (2,), None),
            ("weights", 0, "actor.bias", "float32", (2,), None),
            ("weights", 0, "actor.running_mean", "float32", (2,), None),
            ("weights", 0, "actor.running_var", "float32", (2,), None),
            ("weights", 0, "actor.num_batches_tracked", "int64", (), None),
            ("weights", 0, "reference.weight", "float32", (1, 2), None),
        ]

    def test_one_changed_bit_changes_that_parameter_s_digest_alone(self, record):
        recording, model = record(), torch.nn.Linear(3, 3)
        recording.probe.attach(actor=model)
        recording.probe.step()
        model.weight.data.view(torch.int32)[1, 2] ^= 1
        recording.probe.step()
        digests = {(r.step, r.path): r.digest for r in recording.records()}
        assert digests[0, "actor.weight"] != digests[1, "actor.weight"]
        assert digests[0, "actor.bias"] == digests[1, "actor.bias"]

    def test_roles_come_go_and_change(self, record):
        recording = record()
        first, second = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1, bias=False)
        recording.probe.step()
        recording.probe.attach(actor=first)
        recording.probe.step()
        recording.probe.attach(critic=second)
        recording.probe.step()
        recording.probe.attach(actor=None, critic=first)
        recording.probe.step()
        assert [(r.step, r.path) for r in recording.records()] == [
            (1, "actor.weight"),
            (1, "actor.bias"),
            (2, "actor.weight"),
            (2, "actor.bias"),
            (2, "critic.weight"),
            (3, "critic.weight"),
            (3, "critic.bias"),
        ]

    def test_a_tag_of_the_trainer_s_own_called_weights_loses_nothing(self, record):
        recording = record()
        recording.probe.attach(actor=torch.nn.Linear(1, 1))
        recording.probe.save({"weights": torch.tensor([3.0, 4.0])})
        recording.probe.step()
        recording.probe.close()
        own = recording.folder / "data/weights/step0/rank0/micro_step0/weights.json"
        assert json.loads(own.read_text())["data"]["norm"] == 5
        assert [r.path for r in recording.records()] == ["", "actor.weight", "actor.bias"]

    def test_what_is_no_module_is_refused_by_name(self, record):
        with pytest.raises(TypeError, match=r"attach\(critic=…\): expected a torch.nn.Module, not dict"):
            record().probe.attach(actor=torch.nn.Linear(1, 1), critic={})


class TestWhatIsKept:
    def test_digests_only_keeps_no_values_and_the_same_digests(self, record):
        full, digests = record(), record(key_data="digests")
        for recording in (full, digests):
            recording.probe.save({"x": {"a": torch.arange(3), "b": "text"}}, mask=torch.tensor([1, 0, 0]))
        assert [(r.digest, r.masked) for r in full.records()] == [(r.digest, r.masked) for r in digests.records()]
        assert not [name for name in digests.files() if name.endswith(".npy")]
        assert {r.file for r in digests.records()} == {None}
        folder = digests.folder / "data/x/step0/rank0/micro_step0"
        assert json.loads((folder / "x.json").read_text())["data"]["max"] == 2

    def test_off_keeps_no_key_data(self, record):
        recording = record(key_data="off")
        recording.probe.attach(actor=torch.nn.Linear(1, 1))
        recording.probe.save({"x": 1})
        recording.probe.step()
        recording.probe.close()
        assert recording.files() == {"manifest.json", "environment.json"}

    def test_configurations_json_is_the_resolved_configuration(self, record):
        configuration = {"rl_config": {"名": [1, 2.5, None]}}
        assert (
            json.loads((record(configuration=configuration).folder / "configurations.json").read_text())
            == configuration
        )
        assert "configurations.json" not in record(configuration=configuration, configurations=False).files()
        assert "configurations.json" not in record().files()

    def test_nothing_is_recorded_after_the_last_step(self, record):
        recording = record(last_step=1)
        seen = []
        for _ in range(4):
            with recording.probe.stage("actor_update"):
                recording.probe.save({"x": 1})
            recording.probe.step()
            seen.append(recording.probe.finished)
        recording.probe.close()
        assert seen == [False, True, True, True]
        assert [r.step for r in recording.records()] == [0, 1]
        dump = read_dump(recording.folder)
        assert (dump.steps_finished, dump.complete) == (2, True)


class TestDumpFolder:
    def test_one_that_holds_files_is_refused_and_left_alone(self, tmp_path):
        (tmp_path / "dump").mkdir()
        (tmp_path / "dump/old").write_text("old")
        with pytest.raises(DumpError, match=r"dump: the dump folder is not empty"):
            Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))
        assert [path.name for path in (tmp_path / "dump").iterdir()] == ["old"]

    def test_two_runs_never_share_one(self, record):
        recording = record()
        with pytest.raises(DumpError, match="not empty"):
            Probe(RunSpec(run="b", dump_path=str(recording.folder)))

    def test_an_empty_one_is_taken(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        (tmp_path / "dump").mkdir()
        Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump"))).close()
        assert read_dump(tmp_path / "dump").complete

    def test_a_file_in_its_place_is_a_clear_error(self, tmp_path):
        (tmp_path / "dump").write_text("")
        with pytest.raises(DumpError, match="dump: the dump folder cannot be made"):
            Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))

    def test_a_relative_one_stays_where_it_was_when_the_trainer_changes_folder(self, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)
        monkeypatch.chdir(tmp_path)
        probe = Probe(RunSpec(run="a", dump_path="dump"))
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        probe.save({"x": 1})
        probe.close()
        assert len(read_dump(tmp_path / "dump").records[0]) == 1
        assert list((tmp_path / "elsewhere").iterdir()) == []


class TestErrors:
    def test_an_exception_in_a_stage_is_the_trainer_s_own(self, record):
        recording = record()
        with pytest.raises(KeyError) as caught, recording.probe.stage("actor_update"):
            raise KeyError("mine")
        assert caught.value.__cause__ is None and caught.value.__context__ is None
        recording.probe.save({"x": 1})
        assert recording.records()[0].stage is None

    def test_a_stage_may_be_called_after_an_attached_model(self, record):
        recording = record()
        recording.probe.attach(generator=torch.nn.Linear(1, 1))
        for name in ("generator", "generator.no_grad"):
            with recording.probe.stage(name):
                recording.probe.save({"x": 1})
        for name in ("generater", "generator/x", "generator..", "no_grad.generator"):
            with pytest.raises(ValueError, match="unknown stage"), recording.probe.stage(name):
                pass
        assert [one.stage for one in recording.records()] == ["generator", "generator.no_grad"]

    def test_unknown_stages_are_refused_with_the_known_ones(self, record):
        with pytest.raises(ValueError, match="unknown stage 'rollout'.*actor_generate_sequences"):
            record().probe.stage("rollout").__enter__()

    def test_raise_ends_recording_with_the_error_and_an_incomplete_manifest(self, record):
        recording = record()
        recording.probe.save({"x": 1})
        with pytest.raises(RecordError, match=r"y\.0: a object cannot be recorded"):
            recording.probe.save({"y": [object()]})
        recording.probe.step()
        recording.probe.close()
        dump = read_dump(recording.folder)
        assert not dump.complete
        assert "recording stopped at step 0: y.0: a object cannot be recorded" in dump.problems[0]

    def test_continue_trains_on_without_recording_and_says_so(self, record, capsys):
        recording = record(on_error="continue")
        recording.probe.save({"x": 1})
        with recording.probe.stage("actor_update"):
            recording.probe.save({"y": object(), "z": 1})
            recording.probe.save({"z": 1})
        recording.probe.step()
        recording.probe.save({"z": 1})
        recording.probe.close()
        dump = read_dump(recording.folder)
        assert [r.tag for r in recording.records()] == ["x"]
        assert (dump.complete, dump.steps_finished) == (False, 0)
        assert "recording stopped at step 0" in dump.problems[0]
        assert capsys.readouterr().err.count("training goes on") == 1

    def test_a_disk_that_cannot_be_written_is_an_error_of_the_dump(self, record):
        recording = record()
        (recording.folder / "data").write_text("a file where the folder should be")
        recording.probe.save({"x": 1})  # is written later
        with pytest.raises(DumpError, match="recording stopped at step 0") as caught:
            recording.probe.close()
        assert str(recording.folder) in str(caught.value)

    def test_a_disk_that_cannot_be_written_does_not_stop_a_trainer_that_is_to_continue(self, record):
        recording = record(on_error="continue")
        (recording.folder / "data").write_text("a file where the folder should be")
        recording.probe.save({"x": 1})
        recording.probe.step()
        recording.probe.close()
        assert not read_dump(recording.folder).complete

    def test_an_error_of_the_probe_in_a_stage_does_not_hide_the_trainer_s_own(self, record):
        recording = record(on_error="continue")
        (recording.folder / "data").write_text("a file where the folder should be")
        with pytest.raises(KeyError, match="mine"), recording.probe.stage("actor_update"):
            recording.probe.save({"x": 1})
            raise KeyError("mine")

    def test_closing_twice_does_no_harm(self, record):
        recording = record()
        recording.probe.close()
        before = (recording.folder / "manifest.json").read_text()
        recording.probe.close()
        assert (recording.folder / "manifest.json").read_text() == before

    @pytest.mark.parametrize("use", ["save", "step", "stage"])
    @pytest.mark.parametrize("on_error", ["raise", "continue"])
    def test_what_comes_after_close_is_lost_and_so_the_dump_is_not_whole(self, record, on_error, use, capsys):
        recording = record(on_error=on_error)
        recording.probe.save({"x": 1})
        recording.probe.step()
        recording.probe.close()
        assert read_dump(recording.folder).complete

        def go_on():
            if use == "stage":
                with recording.probe.stage("actor_update"):
                    return
            recording.probe.save({"x": 1}) if use == "save" else recording.probe.step()

        if on_error == "raise":
            with pytest.raises(RecordError, match=r"close\(\) has ended the recording"):
                go_on()
        go_on()
        go_on()
        if on_error == "continue":
            assert len(capsys.readouterr().err.splitlines()) == 1
        dump = read_dump(recording.folder)
        assert not dump.complete
        assert [problem.partition(": ")[2] for problem in dump.problems] == [
            "the trainer went on after close(), at step 1"
        ]

    def test_continue_goes_on_after_a_wrong_micro_step(self, record):
        recording = record(on_error="continue")
        with recording.probe.stage("actor_update", micro_step=-1):
            recording.probe.save({"x": 1})
        recording.probe.close()
        assert "micro_step=-1 is not a whole number" in read_dump(recording.folder).problems[0]


ENDINGS = {
    "normal": ("", 0, True),
    "sys-exit-0": ("sys.exit(0)", 0, True),
    "closed": ("probe.close()", 0, True),
    "exception": ("raise RuntimeError('mine')", 1, False),
    "exception-in-a-stage": ("with probe.stage('actor_update'):\n    raise RuntimeError('mine')", 1, False),
    "exception-with-another-hook": ("sys.excepthook = lambda *_: None\nraise RuntimeError('mine')", 1, False),
    "interrupt": ("raise KeyboardInterrupt", -signal.SIGINT, False),
    # an exit status is not seen from inside: test_launcher.py has the script that ends with sys.exit(3)
    "os-exit": ("os._exit(0)", 0, False),
    "kill": ("os.kill(os.getpid(), 9)", -signal.SIGKILL, False),
    "term": ("os.kill(os.getpid(), 15)", -signal.SIGTERM, False),
    "killed-after-a-fork-ended-well": (
        "child = os.fork()\nif child == 0:\n    sys.exit(0)\nos.waitpid(child, 0)\nos.kill(os.getpid(), 9)",
        -signal.SIGKILL,
        False,
    ),
}


# One interpreter imports torch; each ending is the end of a fork of it, from its top level.
FORK_AND_END = """
import gc, json, os, sys
from probe import Probe
gc.freeze()  # forks leave alone what is loaded
pids = {}
for name, code in json.load(open("endings.json")).items():
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(name + ".err", os.O_CREAT | os.O_WRONLY), 2)
        os.environ["FIRSTDIFF_SPEC"] = name + ".spec"
        probe = Probe.from_env()
        probe.save({"x": 1})
        probe.step()
        exec(code)
        break
    pids[name] = pid
else:
    ends = {name: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for name, pid in pids.items()}
    json.dump(ends, open("ends.json", "w"))
"""


@pytest.fixture(scope="module")
def endings(start_script, tmp_path_factory):
    """Every ending's exit status, error output and dump folder."""
    base = tmp_path_factory.mktemp("endings")
    (base / "endings.json").write_text(json.dumps({name: code for name, (code, _, _) in ENDINGS.items()}))
    for name in ENDINGS:
        (base / f"{name}.spec").write_text(RunSpec(run="a", dump_path=str(base / name)).to_json())
    _, err = start_script(base, FORK_AND_END).communicate(timeout=60)
    assert (base / "ends.json").exists(), err
    ends = json.loads((base / "ends.json").read_text())
    return {name: (ends[name], (base / f"{name}.err").read_text(), base / name) for name in ENDINGS}


@pytest.mark.parametrize("name", ENDINGS)
def test_a_dump_is_complete_only_when_its_process_ended_well(name, endings):
    _, status, complete = ENDINGS[name]
    returncode, err, folder = endings[name]
    assert returncode == status, err
    dump = read_dump(folder)
    assert dump.complete is complete
    if "exit" in ENDINGS[name][0] or "kill" in ENDINGS[name][0]:  # there may have been no time to write
        assert dump.steps_finished in (0, 1)
    else:
        assert (dump.steps_finished, [r.tag for r in dump.records[0]]) == (1, ["x"])


def test_the_trainer_s_own_error_is_printed_as_always(endings):
    assert endings["exception"][1].rstrip().endswith("RuntimeError: mine")
    assert "Traceback" in endings["exception"][1]


def train(probe: Probe) -> tuple[list[torch.Tensor], tuple[object, ...]]:
    """A little training with dropout, batch statistics and AdamW; returns weights, buffers and random states."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16),
        torch.nn.BatchNorm1d(16),
        torch.nn.ReLU(inplace=True),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(16, 2),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    probe.attach(actor=model)
    for _ in range(5):
        x = torch.randn(4, 8) * random.random() * np.random.rand()
        probe.save({"prompts": x}, mask=torch.ones(4, 8))
        with probe.stage("actor_update", micro_step=0):
            logits = model(x)
            loss = logits.logsumexp(1).mean() - logits[:, 0].mean()
            probe.save({"log_prob": logits, "loss": {"total": loss, "view": logits[:, ::2].t()}})
            loss.backward()
            probe.save({"grad_norm": torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)})
            optimizer.step()
            optimizer.zero_grad()
        probe.step()
    return [*model.state_dict().values()], random_states()


def test_a_recorded_training_is_the_same_bit_for_bit_as_one_that_is_not(record):
    weights, states = train(Probe())
    for key_data in ("full", "digests"):
        recording = record(key_data=key_data)
        recorded_weights, recorded_states = train(recording.probe)
        assert len(recording.records()) > 50
        assert recorded_states == states
        for one, other in zip(weights, recorded_weights, strict=True):
            assert one.numpy().tobytes() == other.numpy().tobytes()
