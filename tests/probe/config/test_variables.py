"""Variables whose value is not in the profile: read, handed on, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.config import filled_in, hand_on, has_sources, load_profile, plain, profile_of
from probe.config.profile import Profile
from probe.errors import ConfigError
from probe.launch import run_spec
from probe.masking import masked_profile

PROFILE = """
trainer:
  kind: command
  command: [python, train.py]
  env:
    STEPS: "3"
    LICENCE: {secret: the-licence}
    FROM: {variable: ELSEWHERE}
    PROXY: "http://me:pr0xy-pass@host"
check:
  b: {trainer.env.LICENCE: {secret: another}, trainer.env.STEPS: "4"}
"""
BLOCKS = {"the-licence": "licence-a", "another": "licence-b"}


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELSEWHERE", "from-the-shell")
    (tmp_path / "mine.yaml").write_text(PROFILE)
    return tmp_path / "mine.yaml"


def read(file: Path, *overrides: str) -> Profile:
    """A profile with everything filled in, as ``flows.secrets`` does it."""
    raw = plain(load_profile(str(file), list(overrides)))
    raw["trainer"]["secrets"] += filled_in(raw, BLOCKS.get)
    assert not has_sources(raw)
    return Profile.model_validate(raw)


def test_the_trainers_get_the_values(profile: Path) -> None:
    loaded = read(profile)
    values = {"STEPS": "3", "LICENCE": "licence-a", "FROM": "from-the-shell", "PROXY": "http://me:pr0xy-pass@host"}
    assert loaded.trainer.variables == values  # type: ignore[union-attr]
    b = profile_of(loaded, "b").trainer
    assert b.variables == {**values, "STEPS": "4", "LICENCE": "licence-b"}  # type: ignore[union-attr]


def test_a_trainer_is_not_started_with_what_was_not_read(profile: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.env\.LICENCE: its value was not read"):
        load_profile(str(profile)).trainer.variables  # type: ignore[union-attr] # noqa: B018


def test_what_is_written_says_where_values_come_from_and_has_none(profile: Path) -> None:
    written = masked_profile(load_profile(str(profile)).model_dump(mode="json"))
    assert written["trainer"]["env"]["LICENCE"] == {"secret": "the-licence"}
    assert written["trainer"]["env"]["FROM"] == {"variable": "ELSEWHERE"}
    assert written["check"]["b"]["trainer.env.LICENCE"] == {"secret": "another"}
    for run in "ab":
        spec = run_spec(profile_of(read(profile), run), run, Path("x")).to_json()
        for text in (spec, str(written)):
            assert [each for each in (*BLOCKS.values(), "from-the-shell", "pr0xy-pass") if each in text] == []


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.env.LICENCE={secret: none}", "trainer.env.LICENCE: the Prefect server has no Secret block 'none'"),
        ("trainer.env.FROM={variable: NOWHERE}", "trainer.env.FROM: the variable NOWHERE is not set"),
        ("check.b={trainer.env.FROM: {variable: NOWHERE}}", "check.b.trainer.env.FROM: the variable NOWHERE is not"),
    ],
)
def test_what_is_not_there_is_named(profile: Path, override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read(profile, override)
    assert sentence in str(raised.value)


def test_what_a_command_line_sets_is_handed_on_in_the_environment(
    profile: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_", "HF_TOKEN__", "MINE", "MY_PROXY"):
        monkeypatch.setenv(f"FIRSTDIFF_SECRET_{name}", "so that it is restored")
        monkeypatch.delenv(f"FIRSTDIFF_SECRET_{name}")
    overrides = [
        "check.steps=2",
        "trainer.env.HF_TOKEN=se=cret",
        "trainer.env={STEPS: '7', MINE: m-value, HF_TOKEN: second, MY_PROXY: 'ftp://me:pw-ftp@host'}",
        "check.b={trainer.env.HF_TOKEN: third, trainer.env.STEPS: '8'}",
        "check.allow_different=[trainer.env.MINE]",
    ]
    handed = hand_on(overrides, ["MINE"])
    assert (handed[0], handed[-1]) == (overrides[0], overrides[-1])
    values = ("se=cret", "m-value", "second", "third", "pw-ftp")
    assert [one for one in handed if any(value in one for value in values)] == []
    before, after = read(profile, *overrides), read(profile, *handed)
    for run in "ab":
        one, two = profile_of(before, run).trainer, profile_of(after, run).trainer
        assert one.variables == two.variables  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("trainer.env.HF_TOKEN=1234567", "trainer.env.HF_TOKEN: input should be a valid string"),
        ("trainer.env.HF_TOKEN=[1234567]", "trainer.env.HF_TOKEN: input should be a valid string"),
        ("trainer.env.HF_TOKEN={value: 1234567}", "trainer.env.HF_TOKEN.value: unknown key"),
        ("trainer.env.HF_TOKEN={secret: x, variable: ELSEWHERE}", "trainer.env.HF_TOKEN: give {secret: BLOCK} or"),
        ("trainer.env.HF_TOKEN={}", "trainer.env.HF_TOKEN: give {secret: BLOCK} or {variable: NAME}"),
        ("trainer.env.HF_TOKEN='1234567", "trainer.env.HF_TOKEN: what follows is not a YAML value"),
    ],
)
def test_mistakes_are_said_without_the_value(profile: Path, override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_profile(str(profile), [override])
    assert sentence in str(raised.value)
    assert "1234567" not in str(raised.value)
