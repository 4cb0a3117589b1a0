"""No secret is written or shown: not in the check's folder, on the terminal, in Prefect's database or its logs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRAINER = """
import os, sys, time
import torch
from probe import Probe

torch.manual_seed(0)
names = ["HF_TOKEN", "WANDB_API_KEY", "MINE", "FROM_BLOCK", "DB_PASSWORD", "PROXY"]
probe = Probe.from_env()
for name in names:
    print("using", name, os.environ[name], flush=True)
    sys.stdout.write(os.environ[name][:5])
    sys.stdout.flush()
    time.sleep(0.05)
    print(os.environ[name][5:])
print("seen", sum(len(os.environ[name]) for name in names))
probe.save({"loss": 1.0})
probe.step()
if os.environ.get("FAILS"):
    raise RuntimeError("cannot log in with " + os.environ["FROM_BLOCK"] + " at " + os.environ["PROXY"])
"""
PROFILE = """
trainer:
  kind: command
  command: [python, train.py]
  env:
    HF_TOKEN: value-in-the-file
    MINE: value-of-mine
    FROM_BLOCK: {secret: firstdiff-test}
    PROXY: "http://me:value-in-a-url@127.0.0.1:9"
check: {secrets: [MINE]}
"""
VALUES = {
    "value-in-the-file", "value-on-the-line", "value-of-mine", "value-of-block", "value-inherited", "value-in-a-url"
}  # fmt: skip


async def _save_block(api: str) -> None:
    from prefect.blocks.system import Secret
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}):
        await Secret(value="value-of-block").save("firstdiff-test", overwrite=True)  # type: ignore[misc]


@pytest.fixture
def profile(tmp_path: Path, prefect_api: str) -> Path:
    asyncio.run(_save_block(prefect_api))
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "mine.yaml").write_text(PROFILE)
    return tmp_path / "mine.yaml"


def leaks(*texts: str, folder: Path | None = None, home: Path | None = None) -> list[tuple[str, str]]:
    """Where a secret stands that should not."""
    places = {f"text {index}": text.encode() for index, text in enumerate(texts)}
    for root in filter(None, (folder, home)):
        places |= {str(file): file.read_bytes() for file in root.rglob("*") if file.is_file()}
    return [
        (value, place) for value in sorted(VALUES) for place, content in places.items() if value.encode() in content
    ]


@pytest.mark.parametrize("fails", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_secret_is_written_or_shown(
    check: Callable[..., Any], profile: Path, tmp_path: Path, prefect_home: Path, fails: bool
) -> None:
    arguments = [profile, "--set", "trainer.env.WANDB_API_KEY=value-on-the-line", "--out", tmp_path / "out"]
    variables = {"DB_PASSWORD": "value-inherited", **({"FAILS": "1"} if fails else {})}
    done = check(*arguments, *([] if fails else ["-v"]), **variables)  # -v would show the trainer's traceback

    assert done.document["verdict"] == ("inconclusive" if fails else "identical")
    log = (tmp_path / "out/a/trainer.log").read_text()
    assert f"seen {sum(map(len, VALUES)) + len('http://me:@127.0.0.1:9')}" in log, "the trainer had all of them"
    assert log.count("using ") == 6
    assert "using HF_TOKEN ***" in log
    assert "using PROXY http://me:***@127.0.0.1:9" in log
    assert leaks(done.stdout, done.stderr, folder=tmp_path / "out", home=prefect_home) == []
    if fails:
        assert "cannot log in with *** at http://me:***@" in done.document["error"]
    written = (tmp_path / "out/profile.yaml").read_text()
    assert "secret: firstdiff-test" in written
    assert "variable: FIRSTDIFF_SECRET_WANDB_API_KEY" in written


def test_a_block_that_is_not_there_is_said_in_one_sentence(check: Callable[..., Any], profile: Path) -> None:
    done = check(profile, "--set", "trainer.env.FROM_BLOCK={secret: no-such-block}")
    assert done.status == 64
    assert "trainer.env.FROM_BLOCK: the Prefect server has no Secret block 'no-such-block'" in done.last_line


@pytest.mark.slow
def test_a_rank_that_dies_does_not_tell_either(check: Callable[..., Any], profile: Path, tmp_path: Path) -> None:
    done = check(
        *(profile, "--set", "trainer.env.WANDB_API_KEY=value-on-the-line", "--set", "trainer.nproc_per_node=1"),
        *("--out", tmp_path / "out"),
        DB_PASSWORD="value-inherited",
        FAILS="1",
    )
    assert done.status == 2
    assert "cannot log in with ***" in done.document["error"]
    assert leaks(done.stdout, done.stderr, folder=tmp_path / "out") == []
