"""What the documented feature leaves on disk, read by msprobe's own tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

CONFIG = """
device: cpu
megatron_training: {train_iters: 2, global_batch_size: 2}
rl_config: {n_samples_per_prompt: 2}
msprobe_config:
  msprobe: true
  dump_path: DUMP
  key_data_dump: true
  configurations_dump: true
  actor_infer_dump: true
  token_range_start: 0
  token_range_end: 1
  actor_train_dump: true
  reference_dump: true
  step_start: 1
  step_end: 1
"""


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the integrated trainer alone with every item of GRPO on."""
    return _trained(tmp_path_factory.mktemp("all_items"), CONFIG)


def _trained(folder: Path, config: str) -> Path:
    (folder / "config.yaml").write_text(config.replace("DUMP", str(folder / "msprobe_dump")))
    command = [sys.executable, "-m", "probe.trainer", "--config", str(folder / "config.yaml")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "msprobe_dump"


def _mindspeed_rl_accepts(dump: Path, algorithm: str) -> bool:
    """The conditions of MindSpeed-RL's tests/st/mindstudio/check_and_clean_mindstudio_output.py."""
    tag, *stages = {
        "grpo": ("responses", "actor_generate_sequences", "actor_update", "reference_compute_log_prob"),
        "dapo": ("responses", "actor_update"),
        "ppo": ("values", "critic_update"),
    }[algorithm]
    files = [name for _, _, names in os.walk(dump / "data" / tag) for name in names]
    found = (dump / "configurations.json").is_file(), f"{tag}.json" in files
    return all(found) and all((dump / stage).is_dir() for stage in stages)


def test_mindspeed_rl_would_accept_the_deliverables(dump: Path) -> None:
    assert _mindspeed_rl_accepts(dump, "grpo")
    assert not _mindspeed_rl_accepts(dump, "ppo"), "the conditions tell them apart"


DAPO = (
    CONFIG.replace("{train_iters: 2,", "{stage: ray_dapo, train_iters: 2,")
    .replace("  reference_dump: true\n", "")
    .replace("n_samples_per_prompt: 2", "n_samples_per_prompt: 2, clip_higher_enable: true, token_level_loss: true")
)


def test_mindspeed_rl_would_accept_the_deliverables_of_dapo(tmp_path: Path) -> None:
    assert _mindspeed_rl_accepts(_trained(tmp_path, DAPO), "dapo")


def test_the_tree_has_the_documented_names_and_no_others(dump: Path) -> None:
    stages = {"actor_generate_sequences", "actor_compute_log_prob", "actor_update", "reference_compute_log_prob"}
    own = {"data", "configurations.json", "index", "manifest.json", "environment.json"}
    assert {path.name for path in dump.iterdir()} == stages | own
    tags = {"advantages", "kl_loss", "log_prob", "old_log_prob", "loss", "prompts", "ref_log_prob", "responses"}
    assert {path.name for path in (dump / "data").iterdir()} == tags | {"rewards", "grad_norm", "weights"}
    assert not [path for path in dump.rglob("*") if path.name.startswith(("proc", "."))]
    for stage in stages:
        assert {path.name for path in (dump / stage).iterdir()} == {"step1"}, "only the steps asked for"
        assert (dump / stage / "step1/rank0/dump.json").is_file()


PPO = (
    CONFIG.replace("{train_iters: 2,", "{stage: ray_ppo, train_iters: 2,")
    .replace("rl_config: {", "rl_config: {adv_estimator: gae, ")
    .replace("  reference_dump", "  critic_train_dump: true\n  reference_dump")
)


def test_a_ppo_run_has_every_name_of_the_documented_tree(tmp_path: Path) -> None:
    dump = _trained(tmp_path, PPO)
    assert _mindspeed_rl_accepts(dump, "ppo")
    stages = {
        "actor_generate_sequences",
        "actor_compute_log_prob",
        "critic_compute_values",
        "actor_update",
        "critic_update",
        "reference_compute_log_prob",
    }
    own = {"data", "configurations.json", "index", "manifest.json", "environment.json"}
    assert {path.name for path in dump.iterdir()} == stages | own
    documented = {"advantages", "kl_loss", "log_prob", "old_log_prob", "loss", "prompts", "ref_log_prob", "responses"}
    documented |= {"values"}
    assert {path.name for path in (dump / "data").iterdir()} == documented | {"rewards", "grad_norm", "weights"}
    for stage in stages:
        assert (dump / stage / "step1/rank0/dump.json").is_file()
    values = json.loads((dump / "critic_compute_values/step1/rank0/dump.json").read_text())["data"]
    assert "Module.value_head.Linear.forward.0" in values
    update = json.loads((dump / "critic_update/step1/rank0/dump.json").read_text())["data"]
    assert "Module.value_head.Linear.backward.0" in update


def test_exactly_the_passes_of_the_chosen_tokens_are_dumped(tmp_path: Path) -> None:
    range_of = CONFIG.replace("token_range_start: 0", "token_range_start: 2")
    config = range_of.replace("token_range_end: 1", "token_range_end: 4")
    dump = _trained(tmp_path, config + "generate_config: {sampling_config: {max_tokens: 6}}\n")
    window = dump / "actor_generate_sequences/step1/rank0"
    data = json.loads((window / "dump.json").read_text())["data"]
    passes = [content for name, content in data.items() if name.startswith("Module.lm_head.Linear.forward.")]
    assert len(passes) == 3, "tokens 2, 3 and 4"
    embedded = [content for name, content in data.items() if ".embed_tokens.Embedding.forward." in name]
    drawn = np.load(dump / "data/responses/step1/rank0/micro_step0/responses.npy")
    for token, content in zip((1, 2, 3), embedded, strict=True):  # the pass of a token reads the one before it
        read = content["input_args"][0]
        assert (read["shape"], read["Max"], read["Min"]) == ([4, 1], drawn[:, token].max(), drawn[:, token].min())


@pytest.mark.parametrize("stage", ["actor_update", "reference_compute_log_prob"])
def test_msprobe_compare_reads_a_stage_folder(dump: Path, tmp_path: Path, stage: str) -> None:
    step = str(dump / stage / "step1")
    command = [str(Path(sys.executable).parent / "msprobe"), "compare", "-tp", step, "-gp", step, "-o", str(tmp_path)]
    done = subprocess.run([*command, "--xlsx"], capture_output=True, text=True, check=False)
    (table,) = tmp_path.glob("compare_result_*.xlsx")
    frame = pd.read_excel(table)
    assert len(frame) > 20, done.stdout
    assert set(frame["Result"]) == {"pass"}
