"""``python -m probe.trainer --config FILE`` alone, in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.compare import compare_configurations
from probe.config import Determinism, Profile, TrainingConfig, load_profile
from probe.launch.plan import run_spec
from probe.store.reader import read_dump

EVERYTHING = "key_data_dump: true, configurations_dump: true"
LAYERS = "actor_infer_dump: true, reference_dump: true, actor_train_dump: true"


def trainer_file(rest: str = "", megatron: str = "", device: str = "cpu") -> str:
    return f"""
device: {device}
model: {{config: {{hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2,
  num_key_value_heads: 1}}}}
megatron_training: {{train_iters: 2, global_batch_size: 2, {megatron}}}
determinism: {{num_threads: 1}}
{rest}
"""


RUNS = {
    "float32": trainer_file(f"msprobe_config: {{msprobe: true, {EVERYTHING}}}"),
    "float32-again": trainer_file(f"msprobe_config: {{msprobe: true, {EVERYTHING}}}"),
    "bfloat16": trainer_file("msprobe_config: {msprobe: true, key_data_dump: true}", "bf16: true"),
    "bfloat16-again": trainer_file("msprobe_config: {msprobe: true, key_data_dump: true}", "bf16: true"),
    "another-seed": trainer_file("msprobe_config: {msprobe: true, key_data_dump: true}", "seed: 2"),
    "off": trainer_file(f"msprobe_config: {{msprobe: false, {EVERYTHING}, {LAYERS}}}"),
    "nothing-chosen": trainer_file("msprobe_config: {msprobe: true}"),
    "long-prompt": trainer_file(
        "rl_config: {max_prompt_length: 4}\nmsprobe_config: {msprobe: true, key_data_dump: true}",
        "data_path: long.jsonl",
    ),
    "no-such-module": trainer_file("faults: [{role: actor, module: model.nothing}]"),
    "cuda": trainer_file(device="cuda"),
    "npu": trainer_file(device="npu"),
    "occupied": trainer_file("msprobe_config: {msprobe: true, key_data_dump: true}"),
    "unknown-key": "megatron_training: {train_itres: 2}\n",
    "wrong-type": "megatron_training: {train_iters: many}\n",
    "not-yaml": "megatron_training: {train_iters: 2\n",
    "not-integrated": "rl_config: {use_integrated_worker: false}\nmsprobe_config: {msprobe: true}\n",
    "missing": None,
}


@dataclass
class Run:
    """What a run left."""

    folder: Path
    status: int
    out: str
    err: str

    @property
    def dump(self) -> Path:
        return self.folder / "msprobe_dump"

    def json(self, name: str) -> Any:
        return json.loads((self.dump / name).read_text())


ALONE = ("float32", "float32-again")
"""Runs in interpreters of their own, which start again for PYTHONHASHSEED. The others are forks of one that has torch
and transformers loaded and the right environment, since loading takes longer than all that they do."""

FORK = """
import gc, json, os, runpy, sys
import torch, transformers
from transformers import Qwen2ForCausalLM
gc.freeze()  # forks leave alone what is loaded
ends = {}
for name in json.loads(sys.argv[1]):
    pid = os.fork()
    if pid == 0:
        os.chdir(name)
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"../{name}.{stream}", os.O_CREAT | os.O_WRONLY), number)
        sys.argv = ["probe.trainer", "--config", f"../{name}.yaml"]
        runpy.run_module("probe.trainer", run_name="__main__")
        break
    ends[name] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
else:
    json.dump(ends, open("ends.json", "w"))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Run]:
    base = tmp_path_factory.mktemp("runs")
    lines = [{"prompt": prompt, "answer": 0} for prompt in ("1+1=", "1+2=", "10+10=", "2+2=")]
    (base / "long.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, content in RUNS.items():
        (base / name).mkdir()
        if content is not None:
            (base / f"{name}.yaml").write_text(content)
    (base / "occupied/msprobe_dump").mkdir()
    (base / "occupied/msprobe_dump/old").write_text("old")

    def start(arguments: list[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, *arguments], cwd=folder, env={**os.environ, **environment}, **pipes)

    forked = [name for name in RUNS if name not in ALONE]
    determinism = Determinism(num_threads=1).environment
    server = start(["-c", FORK, json.dumps(forked)], base, **determinism)
    found = {}
    for name in ALONE:
        arguments = ["-m", "probe.trainer", "--config", str(base / f"{name}.yaml")]
        process = start(arguments, base / name, PYTHONHASHSEED="123", HCCL_DETERMINISTIC="false")
        out, err = process.communicate(timeout=300)
        found[name] = Run(base / name, process.returncode, out, err)
    _, err = server.communicate(timeout=300)
    assert (base / "ends.json").exists(), err
    for name, status in json.loads((base / "ends.json").read_text()).items():
        found[name] = Run(base / name, status, (base / f"{name}.out").read_text(), (base / f"{name}.err").read_text())
    return found


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_two_processes_give_the_same_index_byte_for_byte(precision, runs):
    one, other = runs[precision], runs[f"{precision}-again"]
    assert (one.status, other.status) == (0, 0), one.err + other.err
    index = (one.dump / "index/rank0.jsonl").read_bytes()
    assert index == (other.dump / "index/rank0.jsonl").read_bytes()
    assert len(index.splitlines()) > 50


def test_what_is_trained_shows_in_the_index(runs):
    indexes = [(runs[name].dump / "index/rank0.jsonl").read_bytes() for name in ("float32", "bfloat16", "another-seed")]
    assert len(set(indexes)) == 3


def test_bfloat16_computes_in_it_and_keeps_float32_weights(runs):
    records = read_dump(runs["bfloat16"].dump).records[0]
    assert {r.dtype for r in records if r.tag == "weights"} == {"float32"}
    single, half = (
        {r.digest for r in read_dump(runs[name].dump).records[0] if r.tag == "old_log_prob"}
        for name in ("float32", "bfloat16")
    )
    assert not single & half


def test_every_tag_of_a_grpo_step_is_recorded_in_its_stage(runs):
    dump = read_dump(runs["float32"].dump)
    assert (dump.complete, dump.steps_finished) == (True, 2)
    for step in (0, 1):
        found = {r.tag: r.stage for r in dump.records[0] if r.step == step}
        assert found == {
            "prompts": None,
            "responses": "actor_generate_sequences",
            "rewards": None,
            "old_log_prob": "actor_compute_log_prob",
            "ref_log_prob": "reference_compute_log_prob",
            "advantages": None,
            "log_prob": "actor_update",
            "kl_loss": "actor_update",
            "loss": "actor_update",
            "grad_norm": "actor_update",
            "weights": None,
        }


def test_the_actor_is_trained_and_the_reference_is_not(runs):
    weights = [r for r in read_dump(runs["float32"].dump).records[0] if r.tag == "weights"]
    digests = {(r.step, r.path): r.digest for r in weights}
    moved = {path for step, path in digests if step == 0 and digests[0, path] != digests[1, path]}
    assert "actor.model.layers.0.mlp.down_proj.weight" in moved
    assert not [path for path in moved if path.startswith("reference.")]


def test_each_step_prints_its_metrics(runs):
    steps = [json.loads(line) for line in runs["off"].out.splitlines() if line.startswith("{")]
    assert [entry["step"] for entry in steps] == [0, 1]
    assert all(set(entry) == {"step", "reward", "loss", "grad_norm"} for entry in steps)


def test_recording_changes_nothing_of_the_training(runs):
    assert runs["float32"].out == runs["off"].out


def test_what_is_in_effect_is_what_was_asked_for(runs):
    determinism = runs["float32"].json("environment.json")["determinism"]
    effect = determinism["in_effect"]
    assert determinism["requested"]["python_hash_seed"] == 0
    assert {name: effect["variables"][name] for name in effect["variables"]} == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HCCL_DETERMINISTIC": "true",
        "LCCL_DETERMINISTIC": "1",
        "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
        "CLOSE_MATMUL_K_SHIFT": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
    assert (effect["hash_randomization"], effect["num_threads"], effect["torch_seed"]) == (False, 1, 1)
    assert (effect["deterministic_algorithms"], effect["warn_only"]) == (True, False)


def test_configurations_json_has_every_section_resolved(runs):
    configuration = runs["float32"].json("configurations.json")
    assert set(configuration) == set(Profile.model_fields), "as a check's run writes it"
    config = configuration["trainer"]["config"]
    assert config["megatron_training"]["train_iters"] == 2
    assert config["actor_config"]["lr"] == 1e-3  # a default
    assert set(config) == set(TrainingConfig.model_fields)
    assert not (runs["bfloat16"].dump / "configurations.json").exists()


def test_a_run_that_was_started_alone_is_the_experiment_of_a_check_of_the_same_file(runs, tmp_path):
    alone = runs["float32"]
    config, sections = alone.json("configurations.json")["trainer"]["config"], ("determinism", "faults")
    document = {"trainer": {"kind": "integrated", "config": {**config, "msprobe_config": {}}}}
    document |= {section: alone.json("configurations.json")[section] for section in sections}
    (tmp_path / "profile.yaml").write_text(json.dumps(document))
    profile = load_profile(str(tmp_path / "profile.yaml"))
    checked = tmp_path / "checked"
    checked.mkdir()
    spec = run_spec(profile, "a", checked)
    (checked / "configurations.json").write_text(json.dumps(spec.configuration))
    environment = alone.json("environment.json")
    environment["determinism"]["requested"] = spec.determinism
    (checked / "environment.json").write_text(json.dumps(environment))
    assert compare_configurations(alone.dump, checked).error is None


def test_msprobe_false_turns_every_item_off(runs):
    assert runs["off"].status == 0, runs["off"].err
    assert list(runs["off"].folder.iterdir()) == []


def test_msprobe_true_alone_records_no_key_data_and_no_layers(runs):
    assert runs["nothing-chosen"].status == 0, runs["nothing-chosen"].err
    assert {path.name for path in runs["nothing-chosen"].dump.rglob("*") if path.is_file()} == {
        "manifest.json",
        "environment.json",
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unknown-key", ["megatron_training.train_itres", "train_iters"]),
        ("wrong-type", ["megatron_training.train_iters", "'many'"]),
        ("not-yaml", ["not valid YAML", "line"]),
        ("not-integrated", ["rl_config.use_integrated_worker", "true"]),
        ("missing", ["no such file"]),
        ("no-such-module", ["faults.0.module", "'model.nothing'"]),
        ("long-prompt", ["rl_config.max_prompt_length", "'10+10='"]),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence_with_the_file_and_the_key_and_exit_64(name, words, runs):
    run = runs[name]
    assert run.status == 64
    last = run.err.splitlines()[-1]
    assert f"{name}.yaml" in last
    assert all(word in last for word in words), last
    assert "Traceback" not in run.err
    assert len(run.err.splitlines()) == 1, run.err


@pytest.mark.parametrize("name", ["cuda", "npu"])
def test_a_device_that_is_not_here_is_one_sentence_and_exit_64(name, runs):
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    assert runs[name].status == 64
    (sentence,) = runs[name].err.splitlines()
    assert f"device: {name} is asked for" in sentence


def test_an_occupied_dump_folder_is_one_sentence_and_exit_2(runs):
    assert runs["occupied"].status == 2
    (sentence,) = runs["occupied"].err.splitlines()
    assert str(runs["occupied"].dump) in sentence and "not empty" in sentence
    assert [path.name for path in runs["occupied"].dump.iterdir()] == ["old"]


def test_a_run_that_ends_with_an_error_leaves_an_incomplete_dump(runs):
    dump = read_dump(runs["long-prompt"].dump)
    assert dump.steps_finished == 1
    assert not dump.complete


@pytest.mark.slow
def test_a_range_past_the_end_is_said_once_though_the_interpreter_starts_again(tmp_path):
    section = "msprobe_config: {msprobe: true, reference_dump: true, step_end: 9}"
    (tmp_path / "trainer.yaml").write_text(trainer_file(section))
    environment = {**os.environ, "PYTHONHASHSEED": "123"}
    command = [sys.executable, "-m", "probe.trainer", "--config", "trainer.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("msprobe_config.step_end is 9, the last step 1") == 1


def test_an_environment_that_names_no_ranks_is_said_in_one_sentence(tmp_path):
    (tmp_path / "trainer.yaml").write_text(trainer_file("msprobe_config: {msprobe: true, key_data_dump: true}"))
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "many"}
    command = [sys.executable, "-m", "probe.trainer", "--config", "trainer.yaml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (64, False), done.stderr
    assert "WORLD_SIZE=many" in done.stderr


def test_a_reader_that_goes_away_leaves_the_training_alone(tmp_path: Path) -> None:
    (tmp_path / "file.yaml").write_text(trainer_file("msprobe_config: {msprobe: true, key_data_dump: true}"))
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "probe.trainer", "--config", "file.yaml"],
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((tmp_path / "msprobe_dump/manifest.json").read_text())["complete"] is True
