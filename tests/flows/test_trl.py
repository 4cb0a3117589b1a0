"""``firstdiff check`` on TRL's and transformers' trainers: real ones, on a model in a folder, with no line of ours."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.store.reader import read_dump

pytestmark = pytest.mark.slow
SCRIPTS = Path(__file__).with_name("scripts")


@pytest.mark.parametrize(
    "command",
    [
        "python grpo.py MODEL",
        "python grpo.py MODEL --lora --set num_iterations=2",
        "python grpo.py MODEL --judge --set max_steps=1",
        "python grpo.py MODEL --rloo --set max_steps=1",
        'python grpo.py MODEL --set steps_per_generation=4 --set eval_strategy="steps" --set eval_steps=1',
        "torchrun --nproc-per-node 2 grpo.py MODEL --set max_steps=1",
        "python sft.py MODEL",
    ],
)
def test_a_deterministic_training_is_identical(
    check_command: Callable[..., Any], tiny_qwen2: Path, tmp_path: Path, command: str
) -> None:
    document = check_command(command.replace("MODEL", str(tiny_qwen2))).document
    assert document["verdict"] == "identical", document
    assert document["not_compared"] == []
    assert document["trace"]["compared"] > 500
    tags = {record.tag for record in read_dump(tmp_path / "out/a/msprobe_dump").records[0]}
    assert {"inputs", "loss", "grad_norm", "weights"} <= tags
    if "grpo.py" in command:
        assert {"prompts", "responses", "ref_log_prob", "rewards", "advantages", "log_prob", "kl_loss"} <= tags


@pytest.mark.parametrize(
    ("command", "step", "stage", "event", "cause", "name"),
    [
        ("grpo.py MODEL --fault reference", 0, "reference_compute_log_prob", "forward_output", "module_forward",
         "reference.model.layers.1.mlp"),
        ("grpo.py MODEL --fault reward", 0, None, "data", "rewards", "rewards"),
        ("grpo.py MODEL --fault data", 0, None, "data", "data", "prompts"),
        ("sft.py MODEL forward", 0, "actor_update", "forward_output", "module_forward", "actor.model.layers.1.mlp"),
        ("sft.py MODEL data", 0, None, "data", "data", "inputs"),
    ],
)  # fmt: skip
def test_a_fault_is_located(
    check_command: Callable[..., Any],
    tiny_qwen2: Path,
    command: str,
    step: int,
    stage: str | None,
    event: str,
    cause: str,
    name: str,
) -> None:
    document = check_command(f"python {command.replace('MODEL', str(tiny_qwen2))}").document
    assert document["verdict"] == "divergent"
    first = document["first"]
    assert (first["step"], first["stage"], first["event"]) == (step, stage, event)
    assert (document["cause"]["kind"], document["cause"]["name"]) == (cause, name)
    if cause == "module_forward":
        assert document["layers"]["reproduced"] is True
        assert document["replay"]["module"] == name


def test_another_order_of_the_prompts_of_a_step_is_a_permutation(
    check_command: Callable[..., Any], tiny_qwen2: Path
) -> None:
    one_batch = "--set per_device_train_batch_size=64 --set gradient_accumulation_steps=1 --set max_steps=1"
    document = check_command(f"python grpo.py {tiny_qwen2} --fault data {one_batch}").document
    assert (document["cause"]["kind"], document["cause"]["name"]) == ("data", "prompts")
    assert document["cause"]["permutation"] is True


def test_a_version_that_is_not_known_is_observed_as_any_script(
    check_command: Callable[..., Any], tiny_qwen2: Path, tmp_path: Path
) -> None:
    document = check_command(f"python grpo.py {tiny_qwen2} --later --fault reference").document
    assert document["verdict"] == "divergent"
    assert document["first"]["stage"] == "ref_model.no_grad"
    assert document["cause"]["kind"] == "module_forward"
    assert document["cause"]["name"] == "ref_model.model.layers.1.mlp"
    (note,) = [note for note in document["notes"] if "observed as any script" in note]
    assert "Later._generate takes (texts), not (prompts, …)" in note
    assert "tested with 1.16.0" in note
    assert f"firstdiff: {note}" in (tmp_path / "out/a/trainer.log").read_text()


def test_one_line_in_a_script_that_a_profile_starts(
    check: Callable[..., Any], tiny_qwen2: Path, tmp_path: Path
) -> None:
    shutil.copy2(SCRIPTS / "grpo.py", tmp_path)
    command = ["python", "grpo.py", str(tiny_qwen2), "--line", "--fault", "reference"]
    profile = tmp_path / "line.yaml"
    profile.write_text(json.dumps({"trainer": {"kind": "command", "command": command}}))
    document = check(profile, HF_HUB_OFFLINE="1").document
    assert document["verdict"] == "divergent"
    assert document["first"]["stage"] == "reference_compute_log_prob"
    assert document["cause"]["name"] == "reference.model.layers.1.mlp"


def test_the_page_of_the_readme_word_for_word(
    firstdiff: Callable[..., Any], prefect_api: str, root: Path, tmp_path: Path
) -> None:
    page = (root / "README.md").read_text(encoding="utf-8").split("\n## TRL and transformers\n")[1].split("\n## ")[0]
    script, command = re.findall(r"```(?:python|sh)\n(.*?)```", page, re.DOTALL)[:2]
    (tmp_path / "grpo.py").write_text(script, encoding="utf-8")
    program, *arguments = command.split()
    assert program == "firstdiff"
    done = firstdiff(*arguments, cwd=tmp_path, PREFECT_API_URL=prefect_api, HF_HUB_OFFLINE="1")
    assert done.status == 0, done.stderr
    assert done.last_line.startswith("identical; all")
