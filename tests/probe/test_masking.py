"""Secret values: they are found by name, in no part of a stream, and two runs with other ones are still told apart."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from probe.compare import compare_configurations
from probe.config import load_profile
from probe.errors import ConfigError
from probe.launch import dump_folder, launcher_for, run_spec
from probe.masking import KEY_FILE, MASK, Masker, is_masked, is_secret, masked_profile, secret_values

VALUE = "hunter2-hunter3"


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "PGPASSWORD", "aws_secret_access_key", "MY_CREDENTIALS"])
def test_a_secret_is_known_by_its_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "PATH", "OMP_NUM_THREADS", "KEYBOARD"])
def test_other_names_are_no_secrets(name: str) -> None:
    assert not is_secret(name)
    assert is_secret(name, [name])


@pytest.mark.parametrize("values", [["abcabd"], ["aba"], ["abc", "abcdef"], ["bc", "abcd"], ["aa", "aaaa"], ["x\ny"]])
def test_a_stream_in_parts_is_masked_as_a_whole(values: list[str]) -> None:
    text = "".join(f"{value}.a{value}b{value[:-1]}-" for value in values) + "aaaabcab\n"
    whole = Masker(values)
    expected = whole.feed(text.encode()) + whole.rest()
    assert not any(value.encode() in expected for value in values)
    for size in range(1, 8):
        masker = Masker(values)
        parts = [masker.feed(text[at : at + size].encode()) for at in range(0, len(text), size)]
        assert b"".join([*parts, masker.rest()]) == expected


def test_what_is_no_value_passes_unchanged_and_at_once() -> None:
    masker = Masker([VALUE])
    assert masker.feed(b"step 1\n") == b"step 1\n"
    assert masker.feed(b"hun") == b""
    assert masker.feed(b"dred\n") == b"hundred\n"
    assert Masker([]).feed(b"hun") == b"hun"


def test_short_and_common_values_are_not_looked_for() -> None:
    variables = {"A_TOKEN": "1", "B_TOKEN": "false", "C_TOKEN": "a-long-one", "D_TOKEN": "first line\nsecond line"}
    found = secret_values(variables)
    assert found == ["a-long-one", "first line\nsecond line", "first line", "second line"]


def mask(value: str, **more: object) -> object:
    return masked_profile({"trainer": {"env": {"A_TOKEN": value, "MODE": "x"}}, **more})["trainer"]["env"]["A_TOKEN"]


def test_equal_values_are_masked_alike_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "state" / "key"))
    assert mask("one") == mask("one") != mask("two")
    assert is_masked(mask("one"))
    assert (tmp_path / "state" / "key").stat().st_mode & 0o077 == 0
    first = mask("one")
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "other"))
    assert mask("one") != first, "another key"
    (tmp_path / "file").touch()
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "file" / "key"))
    assert mask("one") == MASK, "no key can be kept"


def test_what_run_b_has_is_masked_too() -> None:
    changes = {"trainer.env.A_TOKEN": VALUE, "trainer.env": {"A_TOKEN": VALUE}, "trainer": {"env": {"A_TOKEN": VALUE}}}
    masked = masked_profile({"trainer": {"env": {"X": VALUE}, "secrets": ["X"]}, "check": {"b": changes}})
    assert VALUE not in json.dumps(masked)


def dump(folder: Path, token: object) -> Path:
    folder.mkdir()
    profile = {"trainer": {"kind": "command", "env": {"A_TOKEN": token}}}
    (folder / "configurations.json").write_text(json.dumps(profile))
    (folder / "environment.json").write_text("{}")
    return folder


def test_masked_values_are_compared_where_that_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "key"))
    one, same, two = (dump(tmp_path / name, mask(value)) for name, value in (("a", "1"), ("b", "1"), ("c", "2")))
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "other"))
    elsewhere = dump(tmp_path / "d", mask("1"))
    assert compare_configurations(one, same).different == []
    assert [found.key for found in compare_configurations(one, two).different] == ["trainer.env.A_TOKEN"]
    unknown = compare_configurations(one, elsewhere)
    assert unknown.different == []
    assert any("trainer.env.A_TOKEN" in note for note in unknown.notes)


def test_a_run_leaves_no_secret_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_FILE, str(tmp_path / "state" / "key"))
    monkeypatch.setenv("INHERITED_TOKEN", "inherited-value")
    (tmp_path / "train.py").write_text(
        "import os, sys\n"
        "from probe import Probe\n"
        "probe = Probe.from_env()\n"
        "print('it is', os.environ['A_TOKEN'], os.environ['LICENCE'], os.environ['INHERITED_TOKEN'], flush=True)\n"
        "sys.stdout.write(os.environ['A_TOKEN'][:5]); sys.stdout.flush()\n"
        "print(os.environ['A_TOKEN'][5:])\n"
        "probe.save({'loss': 1.0}); probe.step(); probe.close()\n"
    )
    file = tmp_path / "tiny.yaml"
    file.write_text(
        f"trainer: {{kind: command, command: ['{sys.executable}', train.py], secrets: [LICENCE],"
        f" env: {{A_TOKEN: {VALUE}, LICENCE: licence-value}}}}\n"
    )
    profile = load_profile(str(file))
    folder = tmp_path / "check" / "a"
    folder.mkdir(parents=True)
    launcher_for(profile).run(folder, run_spec(profile, "a", dump_folder(tmp_path / "check", "a")))
    assert (folder / "trainer.log").read_text().splitlines() == ["it is *** *** ***", "***"]
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert not any(value in content for value in (VALUE.encode(), b"licence-value", b"inherited-value")), path


def test_a_masked_profile_asks_for_its_values(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text("trainer: {kind: command, command: [python, x.py], env: {A_TOKEN: '***'}}\n")
    with pytest.raises(ConfigError, match=r"env\.A_TOKEN: is masked in this file"):
        load_profile(str(file))
    assert load_profile(str(file), ["trainer.env.A_TOKEN=x"]).trainer.kind == "command"
