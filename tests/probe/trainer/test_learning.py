"""The integrated trainer learns: the same sums by each algorithm, from several seeds, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

STEPS = 400

ALGORITHMS: dict[str, dict[str, dict[str, Any]]] = {
    "grpo": {},
    "ppo": {
        "rl_config": {"adv_estimator": "gae", "critic_forward_micro_batch_size": 128},
        "critic_config": {"lr": 1e-3, "micro_batch_size": 128},
    },
    "dapo": {
        "rl_config": {
            "clip_higher_enable": True,
            "filter_groups_enable": True,
            "filter_groups_max_batches": 3,
            "overlong_buffer_enable": True,
            "overlong_buffer": 1,
        }
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_reward_rises(root: Path, tmp_path: Path, algorithm: str, seed: int) -> None:
    config = yaml.safe_load((root / "profiles/training/arithmetic.yaml").read_text())
    for section, values in ALGORITHMS[algorithm].items():
        config.setdefault(section, {}).update(values)
    config["megatron_training"].update(stage=f"ray_{algorithm}", seed=seed, train_iters=STEPS)
    config["determinism"] = {"num_threads": 1}
    (tmp_path / "trainer.yaml").write_text(yaml.safe_dump(config))

    command = [sys.executable, "-m", "probe.trainer", "--config", str(tmp_path / "trainer.yaml")]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    rewards = [json.loads(line)["reward"] for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rewards) == STEPS
    tenth = STEPS // 10
    first, last = sum(rewards[:tenth]) / tenth, sum(rewards[-tenth:]) / tenth
    assert last > first + 0.2, f"mean reward of the first tenth {first:.3f}, of the last {last:.3f}"
