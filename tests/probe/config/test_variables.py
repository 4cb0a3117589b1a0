"""Secrets in a profile: given, handed on, never written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probe.compare import compare_configurations
from probe.config import hand_on, load_profile, profile_of, to_yaml
from probe.errors import ConfigError
from probe.launch import run_spec

PROFILE = """
trainer:
  kind: command
  command: [python, train.py, "--proxy=http://me:pr0xy-pass@host"]
  env:
    STEPS: "3"
    HF_TOKEN: in-the-file
    PLAIN: called-plain
    FROM: {variable: ELSEWHERE}
check:
  secrets: [PLAIN]
  b: {trainer.env.WANDB_API_KEY: of-run-b, trainer.env.STEPS: "4"}
"""
VALUES = ("in-the-file", "called-plain", "from-the-shell", "of-run-b", "pr0xy-pass")


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELSEWHERE", "from-the-shell")
    (tmp_path / "mine.yaml").write_text(PROFILE)
    return tmp_path / "mine.yaml"


def test_the_trainer_gets_the_values(profile: Path) -> None:
    loaded = load_profile(str(profile))
    assert loaded.trainer.variables == {
        "STEPS": "3",
        "HF_TOKEN": "in-the-file",
        "PLAIN": "called-plain",
        "FROM": "from-the-shell",
    }
    b = profile_of(loaded, "b").trainer
    assert b.variables == {**loaded.trainer.variables, "WANDB_API_KEY": "of-run-b", "STEPS": "4"}
    assert b.command[-1] == "--proxy=http://me:pr0xy-pass@host"


def test_nothing_that_is_written_has_them(profile: Path) -> None:
    loaded = load_profile(str(profile))
    for run in "ab":
        own = profile_of(loaded, run)
        written = [to_yaml(own), own.model_dump_json(), run_spec(own, run, Path("x")).to_json()]
        for text in written:
            assert [value for value in VALUES if value in text] == []
            assert "STEPS" in text
        assert "variable: ELSEWHERE" in written[0]
    assert not any(value in repr(loaded.model_dump()) for value in VALUES)


def test_a_written_profile_asks_for_what_it_has_not(profile: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(load_profile(str(profile))))
    with pytest.raises(ConfigError, match=r"trainer\.command\.2: this secret was masked .* --set trainer\.command\.2="):
        load_profile(str(again))
    given = [
        "trainer.command.2=--proxy=http://me:pr0xy-pass@host",
        "trainer.env.HF_TOKEN=in-the-file",
        "trainer.env.PLAIN=called-plain",
        "check.b.trainer.env.WANDB_API_KEY=of-run-b",
    ]
    for missing in given:
        with pytest.raises(ConfigError, match="masked"):
            load_profile(str(again), [one for one in given if one != missing])
    assert to_yaml(load_profile(str(again), given)) == again.read_text()


def test_masked_values_are_still_compared(profile: Path, tmp_path: Path) -> None:
    def dumped(name: str, *overrides: str) -> Path:
        (tmp_path / name).mkdir()
        spec = run_spec(load_profile(str(profile), list(overrides)), "a", tmp_path)
        (tmp_path / name / "configurations.json").write_text(json.dumps(spec.configuration))
        return tmp_path / name

    a, same, other = dumped("a"), dumped("same"), dumped("other", "trainer.env.HF_TOKEN=another")
    assert compare_configurations(a, same).unmeant == 0
    (found,) = compare_configurations(a, other).different
    assert found.key == "trainer.env.HF_TOKEN"
    assert "another" not in str(found) and "in-the-file" not in str(found)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    text = (a / "configurations.json").read_text()
    value = json.loads(text)["trainer"]["env"]["HF_TOKEN"]
    (elsewhere / "configurations.json").write_text(text.replace(value, f"<masked:00000000:{'0' * 32}>"))
    compared = compare_configurations(a, elsewhere)
    assert compared.unmeant == 0
    assert "masked on two machines, so not compared: trainer.env.HF_TOKEN" in compared.notes


def test_what_a_command_line_sets_is_handed_on_in_the_environment(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRSTDIFF_SECRET_HF_TOKEN", "FIRSTDIFF_SECRET_HF_TOKEN_", "FIRSTDIFF_SECRET_MINE"):
        monkeypatch.setenv(name, "other")  # so that it is restored, and taken already
        monkeypatch.delenv(name)
    overrides = [
        "check.steps=2",
        "trainer.env.HF_TOKEN=se=cret",
        "trainer.env={STEPS: '7', MINE: m-value, HF_TOKEN: second}",
        "check.b.trainer.env.HF_TOKEN=se=cret",
        "check.allow_different=[trainer.env.MINE]",
    ]
    handed = hand_on(overrides, ["MINE"])
    assert handed[0] == overrides[0] and handed[-1] == overrides[-1]
    assert [one for one in handed if any(value in one for value in ("se=cret", "m-value", "second"))] == []
    before, after = (load_profile(str(profile), each) for each in (overrides, handed))
    assert profile_of(before, "b").trainer.variables == profile_of(after, "b").trainer.variables
    assert (
        before.trainer.variables == after.trainer.variables == {"STEPS": "7", "MINE": "m-value", "HF_TOKEN": "second"}
    )


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.env.HF_TOKEN=1234567", "trainer.env: HF_TOKEN: must be text in quotes"),
        ("trainer.env.HF_TOKEN=[1234567]", "trainer.env: HF_TOKEN: must be text in quotes"),
        ("trainer.env.HF_TOKEN={value: 1234567}", "trainer.env"),
        ("trainer.env.HF_TOKEN={secret: x, variable: ELSEWHERE}", "not both"),
        ("trainer.env.HF_TOKEN={variable: NOWHERE}", "the variable NOWHERE is not set"),
        ("trainer.env.HF_TOKEN='1234567", "what follows is not a YAML value"),
    ],
)
def test_mistakes_are_said_without_the_value(profile: Path, override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_profile(str(profile), [override])
    assert sentence in str(raised.value)
    assert "1234567" not in str(raised.value)
