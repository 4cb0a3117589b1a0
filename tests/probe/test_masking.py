"""Which variables are secrets, and that a masked one is written nowhere, not even in pieces."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe.masking import STARS, Hidden, is_masked, is_secret, mask, mask_urls, unknown_whether_same


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "GITHUB_TOKEN_2", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "db_password"),
        *("MY_SECRET", "CREDENTIALS", "PGPASSWORD", "SSH_PRIVATE_KEY", "AZURE_STORAGE_CONNECTION_STRING", "SENTRY_DSN"),
    ],
)
def test_secrets_by_name(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "TOKENIZERS_PARALLELISM",
        "MAX_TOKENS",
        "PAD_TOKEN_ID",
        "PATH",
        "STEPS",
        "PWD",
        "KEYBOARD",
        "CUDA_VISIBLE_DEVICES",
    ],
)
def test_no_secrets_by_name(name: str) -> None:
    assert not is_secret(name)


def test_a_profile_may_name_more() -> None:
    assert is_secret("MINE", ["mine"]) and is_secret("MINE_2", ["MINE_*"]) and is_secret("PAD_TOKEN_ID", ["PAD_*"])


def test_the_same_secret_is_the_same_and_another_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mask("hunter2") == mask("hunter2") != mask("hunter3")
    assert is_masked(mask("hunter2"))
    assert "hunter2" not in mask("hunter2")


def _mask_elsewhere(value: str, config: Path) -> str:
    code = f"from probe.masking import mask; print(mask({value!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"XDG_CONFIG_HOME": str(config)},
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return done.stdout.strip()


def test_the_key_stays_on_the_machine_and_is_its_users_alone(tmp_path: Path) -> None:
    one, again, other = (_mask_elsewhere("hunter2", tmp_path / name) for name in ("x", "x", "y"))
    assert one == again != other
    (file,) = (tmp_path / "x/firstdiff").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert unknown_whether_same(one, other)
    assert not unknown_whether_same(one, again)
    assert not unknown_whether_same(one, _mask_elsewhere("hunter3", tmp_path / "x"))
    assert not unknown_whether_same(one, "hunter2")
    assert unknown_whether_same(f"a{one}", f"a{other}") and not unknown_whether_same(f"a{one}", f"b{other}")


def test_where_no_key_can_be_kept_a_process_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert _mask_elsewhere("hunter2", tmp_path / "file") != _mask_elsewhere("hunter2", tmp_path / "file")


def test_passwords_in_addresses() -> None:
    shown = mask_urls("http://me:pass%40word@host:80/x and ftp://:p@h, not http://host:80/a@b or a:b@c")
    assert "pass%40word" not in shown
    assert ":p@h" not in shown
    assert shown.endswith("not http://host:80/a@b or a:b@c")
    assert shown.startswith("http://me:<masked:")


SECRETS = ["hunter2!", "päss wörd", "two\nlines of it", 'quote"and\\slash', "hunter2!and more"]


@given(st.data())
def test_no_secret_survives_a_stream_however_it_is_cut(data: st.DataObject) -> None:
    parts = data.draw(
        st.lists(st.sampled_from([*SECRETS, " ", "text", "\n", "\r", "ünicode", "hunter", "x" * 30]), max_size=30)
    )
    whole = "".join(parts).encode()
    hidden = Hidden(SECRETS)
    seen = b""
    while whole:
        length = data.draw(st.integers(1, 40))
        seen += hidden.feed(whole[:length])
        whole = whole[length:]
    text = (seen + hidden.flush()).decode()
    for secret in SECRETS:
        if "\n" not in secret:
            assert secret not in text


def test_a_line_without_end_is_handed_on_and_masked() -> None:
    hidden = Hidden(["hunter2!"])
    line = b"y" * 7 + b"hunter2!" * 40_000
    seen = b"".join(hidden.feed(line[at : at + 1000]) for at in range(0, len(line), 1000))
    assert len(seen) > 50_000
    assert seen + hidden.flush() == b"y" * 7 + STARS.encode() * 40_000


def test_other_spellings_and_bytes_that_are_no_text() -> None:
    secret = 'a"b/c d'
    hidden = Hidden([secret])
    assert hidden.text(f"{quote(secret, safe='')} and {json.dumps(secret)}") == f'{STARS} and "{STARS}"'
    assert hidden.feed(b'\xff\xfe a"b/c d \x00\n') == b"\xff\xfe *** \x00\n"


def test_values_of_an_environment_that_are_no_words() -> None:
    hidden = Hidden.of({"HF_TOKEN": "hunter2", "MY_TOKEN": "1", "X_SECRET": "true", "PROXY": "http://u:pw@h", "A": "b"})
    assert hidden.text("hunter2 1 true http://u:pw@h b") == "*** 1 true http://u:***@h b"
