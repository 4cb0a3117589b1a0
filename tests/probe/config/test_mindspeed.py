"""The ``mindspeed_rl`` trainer in a profile, and keys set in a YAML file of somebody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.config import MindSpeedRLTrainer, load_profile, with_values
from probe.errors import ConfigError

PROFILE = "trainer: {kind: mindspeed_rl, repo: checkout, config: train_grpo}\n"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "checkout").mkdir()
    (tmp_path / "profile.yaml").write_text(PROFILE)
    return tmp_path / "profile.yaml"


def test_the_configuration_is_a_name_of_hydras_and_the_checkout_lies_beside_the_profile(profile: Path) -> None:
    trainer = load_profile(str(profile)).trainer
    assert isinstance(trainer, MindSpeedRLTrainer)
    assert (trainer.config, trainer.depth, trainer.python) == ("train_grpo", "trace", "python")
    assert trainer.repo == trainer.cwd == str(profile.parent / "checkout")


@pytest.mark.parametrize(
    ("override", "key", "words"),
    [
        ("trainer.repo=elsewhere", "trainer.repo", "no such folder"),
        ("trainer.config=train_grpo.yaml", "trainer", "without .yaml"),
        ("trainer.config=", "trainer.config", "string"),
        ("trainer.depth=deep", "trainer.depth", "'dumps' or 'trace'"),
        ("trainer.nproc_per_node=8", "trainer", "Ray places"),
        ("trainer.local_dump=/tmp/x", "trainer", "which all hosts must share"),
        ('trainer.overrides=["msprobe_config.dump_path=x"]', "trainer", "a check sets msprobe_config.dump_path"),
        ('trainer.overrides=["++msprobe_config={}"]', "trainer", "a check sets msprobe_config"),
        ("trainer.config.rl_config.gamma=1", "trainer.config", ""),
    ],
)
def test_what_cannot_be_is_refused_by_key(profile: Path, override: str, key: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_profile(str(profile), [override])
    assert str(caught.value.key).startswith(key)
    assert words in str(caught.value)


def test_enforce_is_a_word_that_other_settings_can_stand_beside(profile: Path) -> None:
    asked = load_profile(str(profile), ["determinism=enforce", "determinism.num_threads=1"]).determinism
    assert (asked.enforce, asked.num_threads, asked.hccl_deterministic) == (True, 1, "true")


TEXT = """# kept
defaults:
  - model:
      - tiny   # a list

rl_config:   # comment
    guarantee_order: false
    lr: 1e-6

empty:
flow: {a: 1, b: "x"}
msprobe_config:
  msprobe: false
  dump_path: './x'  # of a run by hand"""


@pytest.mark.parametrize(
    ("values", "changed"),
    [
        ({"rl_config.guarantee_order": True}, {"    guarantee_order: true"}),
        ({"msprobe_config.dump_path": "/a b/c'd"}, {'  dump_path: "/a b/c\'d"  # of a run by hand'}),
        ({"rl_config.seed": 3}, {"    seed: 3"}),
        ({"flow.c.d": None}, {'flow: {c: {"d": null}, a: 1, b: "x"}'}),
        ({"new.section": [1, 2]}, {"new:", "  section: [1, 2]"}),
    ],
)
def test_only_the_lines_of_what_is_set_change(values: dict[str, Any], changed: set[str]) -> None:
    text = with_values("x.yaml", TEXT, values)
    assert set(text.splitlines()) - set(TEXT.splitlines()) == changed
    assert len(set(TEXT.splitlines()) - set(text.splitlines())) <= 1


@pytest.mark.parametrize("text", ["", "a: &x {b: 1}\nc: *x\n", "empty:\n", "a: 1\n...\n", "x: |\n  text\n  more\n"])
def test_what_cannot_be_put_into_the_text_is_written_anew(text: str) -> None:
    values = {"c.b": 2, "empty.key": "y", "x": "short", "z.y.x": True}
    loaded = yaml.safe_load(with_values("x.yaml", text, values))
    expected = yaml.safe_load(text) or {}
    assert loaded["c"]["b"] == 2 and loaded["z"]["y"]["x"] is True and loaded["x"] == "short"
    assert loaded.get("a") == expected.get("a")


def test_what_is_no_mapping_is_refused() -> None:
    for text in ("[1]", "a: [", "- b"):
        with pytest.raises(ConfigError, match=r"^x\.yaml"):
            with_values("x.yaml", text, {"a": 1})
