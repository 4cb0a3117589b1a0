"""Two ranks on this machine, over gloo: the same training as one rank's, and the same again after a resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.store.reader import read_dump

ROOT = Path(__file__).resolve().parents[3]
SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {"rl_config": {"n_samples_per_prompt": 2, "mini_batch_size": 2, "epochs": 2, "shuffle_mini_batch": True}},
    "ppo": {
        "megatron_training": {"stage": "ray_ppo"},
        "rl_config": {"adv_estimator": "gae", "n_samples_per_prompt": 2, "use_kl_in_reward": True, "kl_penalty": "kl"},
        "critic_config": {"micro_batch_size": 2},
    },
    "dapo": {
        "megatron_training": {"stage": "ray_dapo"},
        "rl_config": {
            "n_samples_per_prompt": 2,
            "clip_higher_enable": True,
            "token_level_loss": True,
            "filter_groups_enable": True,
            "overlong_buffer_enable": True,
            "use_dynamic_bsz": True,
            "max_packing_token_size": 16,
        },
    },
}


class Trainings:
    """Trainings of two ranks, each in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, name: str, algorithm: str, ranks: int = 2, fails: bool = False, **training: Any) -> Any:
        """Trains; returns the dump, or what it said where it has to fail."""
        given = ALGORITHMS[algorithm]
        config = {
            "device": "cpu",
            "model": {"config": SMALL},
            **given,
            "megatron_training": {
                "train_iters": 4,
                "global_batch_size": 4,
                **given.get("megatron_training", {}),
                **training,
            },
            "generate_config": {"sampling_config": {"max_tokens": 3}},
            "determinism": {"num_threads": 1},
            "msprobe_config": {
                "msprobe": True,
                "dump_path": str(self._folder / name),
                "key_data_dump": True,
                "configurations_dump": True,
            },
        }
        file = self._folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(config))
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        done = subprocess.run(
            [sys.executable, *torchrun, "-m", "probe.trainer", "--config", str(file)],
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if fails:
            assert done.returncode != 0
            return done.stdout + done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
        dump = read_dump(self._folder / name)
        assert (dump.complete, dump.problems) == (True, [])
        assert sorted(dump.ranks) == list(range(ranks))
        return dump


@pytest.fixture
def trainings(tmp_path: Path) -> Trainings:
    return Trainings(tmp_path)


def _lines(folder: Path, rank: int, first: int = 0) -> list[bytes]:
    lines = (folder / f"index/rank{rank}.jsonl").read_bytes().splitlines()
    return [line for line in lines if json.loads(line)["step"] >= first]


def _weights(dump: Any, rank: int) -> list[tuple[int, str, str]]:
    return [(r.step, r.path, r.digest) for r in dump.records[rank] if r.tag == "weights" and "reference" not in r.path]


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [
        ("ppo", "ddp"),
        *(
            pytest.param(algorithm, kind, marks=pytest.mark.slow)
            for algorithm, kind in (("grpo", "ddp"), ("dapo", "ddp"), *((name, "fsdp2") for name in ALGORITHMS))
        ),
    ],
)
def test_two_ranks_train_the_same_twice_and_after_a_resume(
    trainings: Trainings, tmp_path: Path, algorithm: str, kind: str
) -> None:
    saving = {"save_interval": 2, "save": str(tmp_path / "saved"), "data_parallel": kind}
    straight = trainings.run("straight", algorithm, **saving)
    trainings.run("resumed", algorithm, load=str(tmp_path / "saved/step2"), data_parallel=kind)
    for rank in range(2):
        expected = _lines(tmp_path / "straight", rank, first=2)
        assert expected and _lines(tmp_path / "resumed", rank) == expected
    if kind == "ddp":
        assert _weights(straight, 0) == _weights(straight, 1), "one model"
    tags = {record.tag for record in straight.records[1]}
    assert {"prompts", "responses", "rewards", "old_log_prob", "loss", "grad_norm"} <= tags
    responses = [[r.digest for r in straight.records[rank] if r.tag == "responses"] for rank in range(2)]
    assert responses[0] != responses[1], "each rank samples for itself"


def test_what_two_ranks_cannot_share_is_said(trainings: Trainings) -> None:
    said = trainings.run("odd", "grpo", fails=True, global_batch_size=3)
    assert "rl_config.mini_batch_size is 2" in said
    said = trainings.run("one", "dapo", fails=True, global_batch_size=3)
    assert "3 prompts cannot be shared evenly by 2 ranks" in said
