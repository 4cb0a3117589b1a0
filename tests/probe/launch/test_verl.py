"""How verl is started: its overrides, what is refused beforehand, and what a run of it becomes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from probe.config import VerlTrainer, load_profile
from probe.errors import ConfigError, InconclusiveError
from probe.launch import launcher_for, run_spec
from probe.launch.requirements import unmet, value_at
from probe.launch.verl import VerlLauncher, dumped_steps
from probe.launch.verl_compose import composed
from probe.launch.verl_requirements import cannot_dump, follows_the_end, not_enforced, requirements
from probe.store.reader import read_dump
from probe.store.windows import find_windows
from probe.types import Target

STAND_IN = Path(__file__).resolve().parents[2] / "verl_stand_in"
REAL = "FIRSTDIFF_TEST_VERL"
"""Variable with what to put in front of PYTHONPATH so that a real verl, of version 0.9.1 or newer, can be imported."""


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{STAND_IN}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def profile(folder: Path, **more: Any) -> Any:
    trainer = {"kind": "verl", **more.pop("trainer", {})}
    (folder / "verl.yaml").write_text(json.dumps({"trainer": trainer, **more}))
    return load_profile(str(folder / "verl.yaml"))


def configuration(**changes: Any) -> Mapping[str, Any]:
    """The part of verl's configuration that counts, of version 0.9.1, with everything as it should be."""
    engine = {"seed": 42, "full_determinism": True}
    found: dict[str, Any] = {
        "actor_rollout_ref": {
            "actor": {"strategy": "fsdp", "use_kl_loss": True, "shuffle": False, "fsdp_config": dict(engine)},
            "ref": {"strategy": "fsdp", "fsdp_config": dict(engine)},
            "rollout": {"name": "vllm", "full_determinism": True, "seed": 42},
        },
        "critic": {"enable": None, "fsdp": {"seed": 42, "full_determinism": False}},
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "data": {"shuffle": True, "seed": 1, "validation_shuffle": False},
        "trainer": {"save_freq": -1, "resume_mode": "auto", "use_v1": True, "v1": {"trainer_mode": "sync"}},
    }
    for key, value in changes.items():
        *parents, last = key.split("__")
        section = found
        for part in parents:
            section = section[part]
        section[last] = value
    return found


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, []),
        ({"actor_rollout_ref__ref__fsdp_config": {"full_determinism": False}},
         ["actor_rollout_ref.ref.fsdp_config.full_determinism"]),
        ({"actor_rollout_ref__ref__fsdp_config": {"full_determinism": False},
          "actor_rollout_ref__actor__use_kl_loss": False}, []),
        ({"algorithm__adv_estimator": "gae"}, ["critic.fsdp.full_determinism"]),
        ({"algorithm__adv_estimator": "gae", "critic__enable": False}, []),
        ({"actor_rollout_ref__rollout__full_determinism": False}, ["actor_rollout_ref.rollout.full_determinism"]),
        ({"actor_rollout_ref__rollout__seed": None}, ["actor_rollout_ref.rollout.seed"]),
        ({"actor_rollout_ref__actor__shuffle": True}, ["actor_rollout_ref.actor.data_loader_seed"]),
        ({"data__validation_shuffle": True}, ["data.validation_shuffle"]),
        ({"trainer__v1": {"trainer_mode": "colocate_async"}}, ["trainer.v1.trainer_mode"]),
        ({"trainer__save_freq": 2}, ["trainer.resume_mode"]),
        ({"data__seed": None}, []),  # verl's sampler has a generator of its own with torch's default seed
    ],
)  # fmt: skip
def test_what_two_runs_need(changes: dict[str, Any], keys: list[str]) -> None:
    found = configuration(**changes)
    assert [one.key for one in unmet(found, requirements(found))] == keys


def test_what_is_asked_for_and_not_enforced_is_said() -> None:
    said = not_enforced(configuration())
    assert len(said) == 1
    assert "warn_only=True" in said[0]
    without = {"name": "sglang", "full_determinism": True, "seed": 1}
    assert any("for vLLM alone" in line for line in not_enforced(configuration(actor_rollout_ref__rollout=without)))
    older = not_enforced(configuration(actor_rollout_ref__rollout={"name": "vllm"}))
    assert any("has no actor_rollout_ref.rollout.full_determinism" in line for line in older)
    megatron = not_enforced(configuration(actor_rollout_ref__actor={"strategy": "megatron", "megatron": {"seed": 1}}))
    assert any("engine (megatron) has no full_determinism" in line for line in megatron)
    assert "no precision_debugger" in str(cannot_dump(configuration()))


def test_a_schedule_that_knows_the_last_step_is_noticed() -> None:
    assert not follows_the_end(configuration())
    actor = {"optim": {"lr_scheduler_type": "cosine"}}
    assert follows_the_end(configuration(actor_rollout_ref__actor=actor))
    assert follows_the_end(configuration(actor_rollout_ref__actor={"optim": {"lr_warmup_steps_ratio": 0.1}}))
    assert follows_the_end(configuration(trainer__test_freq=5))


@pytest.mark.parametrize(
    ("trainer", "key", "word"),
    [
        ({"nproc_per_node": 2}, "trainer", "torchrun's"),
        ({"local_dump": "/tmp"}, "trainer", "local_dump"),
        ({"overrides": ["global_profiler.tool=npu"]}, "trainer", "a check sets global_profiler.tool itself"),
        ({"overrides": ["+trainer.rollout_data_dir=x"]}, "trainer", "a check sets trainer.rollout_data_dir itself"),
        ({"overrides": ["trainer.nnodes"]}, "trainer", "must be key=value"),
        ({"entry": "train.py;"}, "trainer.entry", "pattern"),
        ({"look_back": 0}, "trainer.look_back", "greater than or equal to 1"),
    ],
)
def test_a_profile_that_cannot_be(tmp_path: Path, trainer: dict[str, Any], key: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        profile(tmp_path, trainer=trainer)
    assert caught.value.key.startswith(key)
    assert word in caught.value.problem


def test_a_configuration_that_two_runs_cannot_share_is_refused_by_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        launcher_for(profile(tmp_path)).preflight()
    said = str(caught.value)
    assert said.startswith(
        "verl's configuration: actor_rollout_ref.actor.fsdp_config.full_determinism: is false, must be true"
    )
    assert "actor_rollout_ref.rollout.full_determinism (false, must be true)" in said


@pytest.mark.slow
def test_what_verl_itself_refuses_is_told_before_anything_starts(tmp_path: Path) -> None:
    cases = (
        ({"overrides": ["data.foo=1"]}, "Could not override 'data.foo'"),
        ({"entry": "verl.trainer.nothing"}, "No module named verl.trainer.nothing"),
        ({"python": str(tmp_path / "python")}, "cannot be started"),
    )
    for trainer, word in cases:
        with pytest.raises(ConfigError) as caught:
            launcher_for(profile(tmp_path, trainer=trainer)).preflight()
        assert word in str(caught.value)


@pytest.mark.slow
def test_a_cluster_that_runs_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.7:6379")
    said = launcher_for(profile(tmp_path, determinism="enforce")).preflight()
    assert any("the Ray cluster at 192.0.2.7:6379, which was there before" in line for line in said)


def test_the_steps_before_the_samples_are_dumped(tmp_path: Path) -> None:
    for look_back, steps in ((1, [3]), (2, [2, 3]), (9, [1, 2, 3])):
        own = profile(tmp_path, trainer={"look_back": look_back})
        spec = run_spec(own, "c", tmp_path / "d", Target(4, "actor_generate_sequences"))
        assert dumped_steps(own, own.trainer, spec) == steps
    spec = run_spec(own, "c", tmp_path / "d", Target(1, "actor_generate_sequences"))
    with pytest.raises(InconclusiveError, match="before anything was trained"):
        dumped_steps(own, own.trainer, spec)


def test_a_run_becomes_a_dump_with_samples_and_layers(tmp_path: Path) -> None:
    own = profile(tmp_path, determinism="enforce", check={"steps": 3})
    run = tmp_path / "check/c"
    run.mkdir(parents=True)
    spec = run_spec(own, "c", run / "msprobe_dump", Target(2, "actor_generate_sequences"))
    launcher_for(own).run(run, spec)
    dump = read_dump(run / "msprobe_dump")
    assert (dump.complete, dump.problems, dump.steps_finished) == (True, [], 3)
    tags = {record.tag for record in dump.records[0]}
    assert {"prompts", "responses", "rewards", "validation.responses"} <= tags
    assert "uid" not in tags
    windows = find_windows(run / "msprobe_dump")
    assert [(window.stage, window.step, window.rank, window.role) for window in windows] == [
        ("actor_compute_log_prob", 1, 0, "actor"),
        ("reference_compute_log_prob", 1, 0, "reference"),
        ("actor_update", 1, 0, "actor"),
    ]
    assert all(window.complete for window in windows)
    content = json.loads((windows[0].folder / "dump.json").read_text())
    assert Path(content["dump_data_dir"]).is_dir()


@pytest.mark.slow
def test_with_the_real_verl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if REAL not in os.environ:
        pytest.skip(f"no real verl here: {REAL} names the folders of one")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ[REAL]}{os.pathsep}{os.environ['PYTHONPATH']}")
    overrides = ["actor_rollout_ref.rollout.name=vllm", "algorithm.adv_estimator=grpo", "trainer.n_gpus_per_node=2"]
    own = profile(tmp_path, trainer={"overrides": overrides}, determinism="enforce")
    assert isinstance(own.trainer, VerlTrainer)
    launcher = VerlLauncher(own, own.trainer)
    assert any("actor_rollout_ref.rollout.full_determinism=true is added" in line for line in launcher.preflight())
    assert launcher.cannot_dump_layers() is None
    spec = run_spec(own, "c", tmp_path / "d", Target(3, "actor_generate_sequences"))
    command = launcher.start(tmp_path, spec).command
    assert command[:3] == [sys.executable, "-m", "verl.trainer.main_ppo"]
    found = composed(own, own.trainer.model_copy(update={"overrides": command[3:]}), dict(os.environ))
    tool = value_at(found, "actor_rollout_ref.actor.profiler.tool_config.precision_debugger")
    assert (tool["config_path"], tool["strict"]) == (str(tmp_path / "verl/msprobe.json"), True)
    assert tool["stages"] == ["actor_compute_log_prob", "actor_update"]
    assert value_at(found, "global_profiler.steps") == [2]
    assert value_at(found, "actor_rollout_ref.actor.fsdp_config.full_determinism") is True
    assert unmet(found, requirements(found)) == []
