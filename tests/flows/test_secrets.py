"""A secret of the trainer's is in nothing that a check leaves: neither in its folder nor in Prefect's database."""

from __future__ import annotations

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
