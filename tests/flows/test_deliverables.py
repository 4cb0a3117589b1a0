"""What the documented feature leaves on disk, read by msprobe's own tools."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
    folder = tmp_path_factory.mktemp("all_items")
    (folder / "config.yaml").write_text(CONFIG.replace("DUMP", str(folder / "msprobe_dump")))
    command = [sys.executable, "-m", "probe.trainer", "--config", str(folder / "config.yaml")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "msprobe_dump"


def test_mindspeed_rl_would_accept_the_deliverables(dump: Path) -> None:
    """The conditions of MindSpeed-RL's tests/st/mindstudio/check_and_clean_mindstudio_output.py for GRPO."""
    assert (dump / "configurations.json").is_file()
    assert list((dump / "data/responses").rglob("responses.json"))
    for stage in ("actor_generate_sequences", "actor_update", "reference_compute_log_prob"):
        assert (dump / stage).is_dir(), stage


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


@pytest.mark.parametrize("stage", ["actor_update", "reference_compute_log_prob"])
def test_msprobe_compare_reads_a_stage_folder(dump: Path, tmp_path: Path, stage: str) -> None:
    step = str(dump / stage / "step1")
    command = [str(Path(sys.executable).parent / "msprobe"), "compare", "-tp", step, "-gp", step, "-o", str(tmp_path)]
    done = subprocess.run([*command, "--xlsx"], capture_output=True, text=True, check=False)
    (table,) = tmp_path.glob("compare_result_*.xlsx")
    frame = pd.read_excel(table)
    assert len(frame) > 20, done.stdout
    assert set(frame["Result"]) == {"pass"}
