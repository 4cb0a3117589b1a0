"""A secret of the trainer's is in nothing that a check leaves: neither in its folder nor in Prefect's database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAINER = """
import os
from probe import Probe
probe = Probe.from_env()
print("the token is", os.environ["API_TOKEN"], flush=True)
probe.save({"loss": 1.0 if os.environ["FIRSTDIFF_RUN"] == "a" else 2.0})
probe.step()
raise RuntimeError("cannot log in with " + os.environ["API_TOKEN"])
"""
VALUES = (b"hunter2-of-run-a", b"hunter3-of-run-b")


@pytest.mark.slow
def test_a_check_leaves_no_secret(firstdiff: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "tiny.yaml").write_text(
        "trainer: {kind: command, command: [python, train.py], env: {API_TOKEN: hunter2-of-run-a}}\n"
        "check: {b: {trainer.env.API_TOKEN: hunter3-of-run-b}}\n"
    )
    home = tmp_path / "prefect"
    done = firstdiff("check", "tiny.yaml", "--json", "--out", "out", PREFECT_HOME=str(home), PREFECT_API_URL="")
    assert done.document["verdict"] in ("divergent", "inconclusive"), done.stderr
    assert "the token is ***" in (tmp_path / "out" / "a" / "trainer.log").read_text()
    different = {found["key"]: found for found in done.document["configurations"]["different"]}
    token = different["trainer.env.API_TOKEN"]
    assert token["a"].startswith("*** ")
    assert token["a"] != token["b"], "two secrets are told apart"
    looked_at = [file for top in (tmp_path / "out", home) for file in top.rglob("*") if file.is_file()]
    assert {"profile.yaml", "configurations.json", "report.html", "prefect.db"} <= {file.name for file in looked_at}
    for file in looked_at:
        content = file.read_bytes()
        assert not any(value in content for value in VALUES), file
    for value in map(os.fsdecode, VALUES):
        assert value not in done.stdout + done.stderr


ALL_KINDS = """
import os, sys, time
import torch
from probe import Probe

torch.manual_seed(0)
names = ["HF_TOKEN", "WANDB_API_KEY", "LICENCE", "DB_PASSWORD", "PROXY"]
probe = Probe.from_env()
for name in names:
    print("using", name, os.environ[name], flush=True)
    sys.stdout.write(os.environ[name][:5])  # in two pieces
    sys.stdout.flush()
    time.sleep(0.05)
    print(os.environ[name][5:])
print("seen", sum(len(os.environ[name]) for name in names))
probe.save({"loss": 1.0})
probe.step()
"""
GIVEN = ("value-in-the-file", "value-on-the-line", "value-of-block", "value-inherited", "value-in-a-url")


async def _save_block(api: str) -> None:
    from prefect.blocks.system import Secret
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}):
        await Secret(value="value-of-block").save("firstdiff-test", overwrite=True)  # type: ignore[misc]


@pytest.fixture
def all_kinds(tmp_path: Path, prefect_api: str) -> Path:
    asyncio.run(_save_block(prefect_api))
    (tmp_path / "train.py").write_text(ALL_KINDS)
    (tmp_path / "mine.yaml").write_text(
        "trainer:\n  kind: command\n  command: [python, train.py]\n  env:\n    HF_TOKEN: value-in-the-file\n"
        "    LICENCE: {secret: firstdiff-test}\n    PROXY: 'http://me:value-in-a-url@127.0.0.1:9'\n"
    )
    return tmp_path / "mine.yaml"


def test_wherever_a_secret_comes_from_it_is_in_nothing_that_a_check_leaves(
    check: Callable[..., Any], all_kinds: Path, tmp_path: Path, prefect_home: Path
) -> None:
    given = ("--set", "trainer.env.WANDB_API_KEY=value-on-the-line")
    done = check(all_kinds, *given, "-v", "--out", tmp_path / "out", DB_PASSWORD="value-inherited")

    assert done.document["verdict"] == "identical", done.stderr
    log = (tmp_path / "out/a/trainer.log").read_text()
    assert f"seen {sum(map(len, GIVEN)) + len('http://me:@127.0.0.1:9')}" in log, "the trainer had all of them"
    assert "using LICENCE ***" in log
    assert "using PROXY http://me:***@127.0.0.1:9" in log
    written = (tmp_path / "out/profile.yaml").read_text()
    assert "secret: firstdiff-test" in written
    assert "variable: FIRSTDIFF_SECRET_WANDB_API_KEY" in written
    places = {
        str(file): file.read_bytes()
        for top in (tmp_path / "out", prefect_home)
        for file in top.rglob("*")
        if file.is_file()
    }
    places |= {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    assert [(value, place) for value in GIVEN for place, content in places.items() if value.encode() in content] == []


def test_a_block_that_is_not_there_is_said_in_one_sentence(check: Callable[..., Any], all_kinds: Path) -> None:
    done = check(all_kinds, "--set", "trainer.env.LICENCE={secret: no-such-block}")
    assert done.status == 64, done.stderr
    assert "trainer.env.LICENCE: the Prefect server has no Secret block 'no-such-block'" in done.last_line
