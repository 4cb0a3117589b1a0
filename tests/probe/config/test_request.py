"""What a form asks for becomes a profile, and a mistake names its field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.config import load_profile, override_lines, parse_request, profile_names, resolve
from probe.errors import ConfigError


@pytest.mark.parametrize(
    ("asked", "sets"),
    [
        ({}, []),
        ({"steps": 3, "seed": 0}, ["check.steps=3", "trainer.config.megatron_training.seed=0"]),
        ({"sampling_seed": 5}, ["trainer.config.generate_config.sampling_config.seed=5"]),
        ({"device": "cpu", "nproc_per_node": 2}, ["trainer.config.device=cpu", "trainer.nproc_per_node=2"]),
        ({"hccl_deterministic": "unset"}, ["determinism.hccl_deterministic=null"]),
        ({"lccl_deterministic": "0"}, ["determinism.lccl_deterministic='0'"]),
        ({"cublas_workspace_config": ":16:8"}, ["determinism.cublas_workspace_config=':16:8'"]),
        ({"deterministic_algorithms": "off"}, ["determinism.deterministic_algorithms=false"]),
        ({"python_hash_seed": 9, "num_threads": 2}, ["determinism.python_hash_seed=9", "determinism.num_threads=2"]),
        ({"key_data": "off", "on_error": "continue"}, ["record.key_data='off'", "record.on_error=continue"]),
        ({"trace": "off"}, ["record.trace=false"]),
        ({"time_limit": 2.5, "stall_seconds": 9}, ["trainer.time_limit=2.5", "trainer.stall_seconds=9"]),
        (
            {"algorithm": "ppo"},
            ["trainer.config.megatron_training.stage=ray_ppo", "trainer.config.rl_config.adv_estimator=gae"],
        ),
        ({"steps": 2, "overrides": "check.steps=4"}, ["check.steps=4"]),
    ],
)
def test_a_form_and_set_make_the_same_profile(asked: dict[str, Any], sets: list[str]) -> None:
    assert resolve(parse_request({"profile": "demo", **asked})) == load_profile("demo", sets)


def test_what_the_page_sends_for_an_untouched_form_is_the_profile() -> None:
    import inspect

    from flows.determinism import determinism_check

    defaults = {name: each.default for name, each in inspect.signature(determinism_check.fn).parameters.items()}
    fields = {name: value for name, value in defaults.items() if name not in ("out", "force", "lang")}
    assert resolve(parse_request({**fields, "profile": "ppo"})) == load_profile("ppo")


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        ({"steps": 0}, "steps", "1"),
        ({"steps": 1_000_001}, "steps", "1000000"),
        ({"steps": True}, "steps", "integer"),
        ({"steps": 1.5}, "steps", "integer"),
        ({"seed": 2**32}, "seed", "4294967295"),
        ({"device": "tpu"}, "device", "'cpu'"),
        ({"time_limit": float("nan")}, "time_limit", "finite"),
        ({"time_limit": 0}, "time_limit", "greater than 0"),
        ({"profile": 7}, "profile", "string"),
        ({"profile": "nope"}, "profile", "demo"),
        ({"overrides": "x"}, "overrides", "key=value"),
        ({"overrides": ["a=1", 2]}, "overrides", "key=value"),
        ({"overrides": "check.stepz=1"}, "overrides", "check.stepz"),
        ({"overrides": "check.steps=many"}, "overrides", "check.steps"),
        ({"profile": "ppo", "algorithm": "grpo"}, "algorithm", "gae"),
        ({"stepz": 1}, "stepz", "steps"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_field(asked: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        resolve(parse_request({"profile": "demo", **asked}))
    assert (error.value.source, error.value.key) == ("parameters", field)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("field", [{"device": "cpu"}, {"seed": 1}, {"algorithm": "dapo"}])
def test_a_command_takes_no_setting_of_the_integrated_trainer(tmp_path: Path, field: dict[str, Any]) -> None:
    (tmp_path / "mine.yaml").write_text("trainer:\n  kind: command\n  command: [python, x.py]\n")
    with pytest.raises(ConfigError, match="is a command") as error:
        resolve(parse_request({"profile": str(tmp_path / "mine.yaml"), **field}))
    assert error.value.key == next(iter(field))


def test_lines_may_have_notes_and_blanks() -> None:
    assert override_lines("# note\n\n  a.b=1 \nc==2\n") == ["a.b=1", "c==2"]
    assert override_lines(None) == override_lines("") == []


def test_profiles_here_come_before_those_that_ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/zz-mine.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert profile_names()[0] == "zz-mine"
    assert "demo" in profile_names()
