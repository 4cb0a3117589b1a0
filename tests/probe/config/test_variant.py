"""``check.b`` and ``check.allow_different``: what run b trains on purpose, and which keys may differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.determinism import profile_yaml
from probe.config import Profile, load_profile, profile_of
from probe.errors import ConfigError
from probe.launch import run_spec

Load = Callable[..., Profile]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Reads a profile of the integrated trainer with a check section and overrides."""

    def read(check: str = "{}", *overrides: str, config: str = "{}") -> Profile:
        (tmp_path / "p.yaml").write_text(f"trainer: {{kind: integrated, config: {config}}}\ncheck: {check}\n")
        return load_profile(str(tmp_path / "p.yaml"), list(overrides))

    return read


def _bf16(profile: Profile) -> Any:
    assert profile.trainer.kind == "integrated"
    return profile.trainer.config.megatron_training.bf16


@pytest.mark.parametrize("text", ["{b: {trainer.config.megatron_training.bf16: true}}"])
def test_only_b_and_its_rerun_are_changed(load: Load, text: str) -> None:
    profile = load(text)
    assert [_bf16(profile_of(profile, run)) for run in "abcd"] == [False, True, False, True]
    specs = {run: run_spec(profile_of(profile, run), run, Path("d")) for run in "ab"}
    bf16 = [specs[run].configuration["trainer"]["config"]["megatron_training"]["bf16"] for run in "ab"]  # type: ignore[index]
    assert bf16 == [False, True]
    assert profile.check.meant_to_differ == ["trainer.config.megatron_training.bf16"]


def test_without_it_all_runs_are_the_same(load: Load) -> None:
    profile = load()
    assert all(profile_of(profile, run) is profile for run in "abcd")


def test_it_can_be_set_from_the_command_line(load: Load) -> None:
    profile = load("{}", "check.b.trainer.config.megatron_training.bf16=true", "check.b.determinism.num_threads=2")
    assert _bf16(profile_of(profile, "b")) is True
    assert profile_of(profile, "b").determinism.num_threads == 2
    assert profile.determinism.num_threads is None


def test_a_section_of_b_replaces_that_of_a(load: Load) -> None:
    profile = load("{b: {trainer.config.model.config: {hidden_size: 32}, faults: [{role: actor, module: lm_head}]}}")
    other = profile_of(profile, "d")
    assert other.trainer.kind == "integrated" and other.trainer.config.model.config == {"hidden_size": 32}
    assert (len(profile.faults), len(other.faults)) == (0, 1)


def test_paths_of_b_are_relative_to_the_profile(load: Load, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    profile = load("{b: {trainer.config.model.path: model}}")
    assert profile.check.b == {"trainer.config.model.path": str(tmp_path / "model")}
    with pytest.raises(ConfigError, match=r"check\.b: trainer\.config\.model\.path: no such folder"):
        load("{b: {trainer.config.model.path: nowhere}}")


def test_a_command_trainer_has_a_b_too(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "trainer: {kind: command, command: [python, train.py]}\n"
        "check:\n  b: {trainer.env.DTYPE: bfloat16, trainer.command: [python, other.py]}\n"
        "  allow_different: [trainer.env.X]\n"
    )
    profile = load_profile(str(tmp_path / "p.yaml"))
    other = profile_of(profile, "b").trainer
    assert other.kind == "command"
    assert (other.env, other.command) == ({"DTYPE": "bfloat16"}, ["python", "other.py"])


def test_a_resolved_profile_reads_back(load: Load, tmp_path: Path) -> None:
    check = "{steps: 3, b: {trainer.config.megatron_training.seed: 5}, allow_different: [environment.versions]}"
    profile = load(check)
    (tmp_path / "again").mkdir()
    (tmp_path / "again/p.yaml").write_text(profile_yaml(profile))
    assert load_profile(str(tmp_path / "again/p.yaml")) == profile


@pytest.mark.parametrize(
    ("b", "words"),
    [
        ("trainer.config.megatron_training.bf17: true", ["check.b", "megatron_training.bf17", "did you mean 'bf16'?"]),
        ("trainer.config.megatron_training.bf16: 1", ["check.b", "megatron_training.bf16", "boolean"]),
        ("check.steps: 3", ["check.b.check.steps", "trainer, determinism, faults"]),
        ("record.key_data: off", ["check.b.record.key_data", "trainer, determinism, faults"]),
        ("bf16: true", ["check.b.bf16"]),
        ("trainer.config.msprobe_config.reference_dump: true", ["check.b", "msprobe_config", "a check sets"]),
        ("trainer.config.device.x: true", ["check.b", "trainer.config.device.x", "single value"]),
        ("faults.0.step: 2", ["check.b", "faults.0.step", "not an index"]),
    ],
)
def test_mistakes_name_the_key(load: Load, b: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{{b: {{{b}}}}}")
    for word in ("p.yaml", *words):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "trainer.config.actor_config.lr",
        "configurations.trainer.config",
        "trainer",
        "determinism.num_threads",
        "environment",
        "environment.versions.torch",
        "environment.models.actor.dtypes",
        "environment.determinism.requested.num_threads",
        "environment.determinism.in_effect.variables.OMP_NUM_THREADS",
    ],
)
def test_keys_that_may_be_allowed(load: Load, key: str) -> None:
    assert load(f"{{allow_different: [{key}]}}").check.meant_to_differ == [key]


@pytest.mark.parametrize(
    ("key", "close"),
    [
        ("trainer.config.megatron_training.sed", "did you mean trainer.config.megatron_training.seed"),
        ("environment.torch", "did you mean environment.versions.torch"),
        ("environment.versions.troch", "did you mean environment.versions.torch"),
        ("lr", "did you mean trainer.config.actor_config.lr"),
        ("check.steps", "no key"),
        ("configurations", "no key"),
        ("''", "no key"),
    ],
)
def test_keys_that_do_not_exist_are_named_with_close_ones(load: Load, key: str, close: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(f"{{allow_different: [environment, {key}]}}")
    assert "p.yaml: check.allow_different.1: " in str(caught.value)
    assert close in str(caught.value)


def test_a_key_that_only_b_has_may_be_allowed(load: Load) -> None:
    b = "{trainer.config.model.config: {rope_theta: 1.0}}"
    assert load(f"{{b: {b}, allow_different: [trainer.config.model.config.rope_theta]}}")
