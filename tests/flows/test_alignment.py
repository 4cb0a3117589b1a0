"""Checks whose two runs are not the same experiment: by accident, and on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest

Check = Callable[..., Any]

SEEDED_BY_RUN = """
import os
import torch
from probe import Probe

torch.manual_seed(1 if os.environ["FIRSTDIFF_RUN"] in "bd" else 0)
probe = Probe.from_env()
actor = torch.nn.Linear(4, 1)
probe.attach(actor=actor)
for step in range(2):
    batch = torch.randn(8, 4)
    probe.save({"prompts": batch})
    with probe.stage("actor_compute_log_prob"):
        probe.save({"old_log_prob": actor(batch)})
    probe.step()
"""


@pytest.fixture
def seeded(tmp_path: Path) -> Path:
    """A profile of a script that seeds run b unlike run a."""
    (tmp_path / "train.py").write_text(SEEDED_BY_RUN)
    profile = tmp_path / "seeded.yaml"
    profile.write_text("trainer: {kind: command, command: [python, train.py]}\n")
    return profile


def test_another_seed_is_inconclusive_and_named(check: Check, seeded: Path, tmp_path: Path) -> None:
    done = check(seeded, "--out", tmp_path / "out")
    document = done.document
    assert (done.status, document["verdict"]) == (2, "inconclusive")
    assert "environment.determinism.in_effect.torch_seed (0 against 1)" in document["error"]
    assert "not the same experiment" in done.last_line
    (found,) = document["configurations"]["different"]
    assert (found["key"], found["meant"]) == ("environment.determinism.in_effect.torch_seed", False)
    assert document["key_data"]["different"] > 0, "what differs is said all the same"
    assert document["runs"]["c"] is None, "no layers are dumped of two experiments"
    assert document["first"] is None and document["cause"]["kind"] == "none"
    assert "torch_seed" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


def test_the_same_allowed_is_divergent(check: Check, seeded: Path) -> None:
    allowed = "check.allow_different=[environment.determinism.in_effect.torch_seed]"
    done = check(seeded, "--set", allowed)
    document = done.document
    assert (done.status, document["verdict"], document["error"]) == (1, "divergent", None)
    assert document["key_data"]["first"]["tag"] == "prompts"
    assert any("meant to differ" in note for note in document["notes"])


@pytest.mark.slow
def test_bfloat16_in_b_is_divergent_with_growth_and_a_plot(check: Check, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bf16 = "check.b.trainer.config.megatron_training.bf16=true"
    done = check("deterministic", "--set", "check.steps=2", "--set", bf16, "--out", out)
    document = done.document
    assert (done.status, document["verdict"]) == (1, "divergent")
    (found,) = document["configurations"]["different"]
    key = "trainer.config.megatron_training.bf16"
    assert found == {"key": key, "a": False, "b": True, "only": None, "meant": True}
    for run, bf16_of_run in {"a": False, "b": True, "c": False, "d": True}.items():
        written = json.loads((out / run / "msprobe_dump/configurations.json").read_text())
        assert written["trainer"]["config"]["megatron_training"]["bf16"] is bf16_of_run
    rows = {(row["tag"], row["step"]): row for row in document["growth"]}
    error = rows["old_log_prob", 0]
    assert 1e-6 < error["max_relative"] < 1e-1
    assert 0.999 < error["cosine"] < 1
    assert ("prompts", 0) not in rows, "the prompts are the same"
    assert document["growth_jump"]["step"] == 1
    assert "<polyline" in (out / "report.html").read_text(encoding="utf-8")
    header, *cells = openpyxl.load_workbook(out / "keydata/summary.xlsx").active.iter_rows(values_only=True)
    assert any(row[header.index("cosine")] is not None for row in cells)
    assert document["first"]["event"] == "forward_output"
    assert document["layers"]["reproduced"] is True
    assert document["replay"]["result"] == "not replayed", "one run computes otherwise on purpose"
    assert document["replay"]["why"] == "check.b makes the runs differ on purpose"


@pytest.mark.slow
def test_two_checks_with_two_seeds_do_not_compare(check: Check, firstdiff: Check, tmp_path: Path) -> None:
    """What follows from the seed need not be allowed beside it."""
    done = check(
        *("deterministic", "--set", "check.steps=1", "--set", "check.b.trainer.config.megatron_training.seed=2"),
        *("--out", tmp_path / "out"),
    )
    assert (done.status, done.document["verdict"]) == (1, "divergent")
    keys = {found["key"] for found in done.document["configurations"]["different"]}
    assert "environment.determinism.in_effect.torch_seed" in keys
    dumps = [tmp_path / "out" / run / "msprobe_dump" for run in "ab"]
    plain = firstdiff("compare", *dumps, "--json")
    assert (plain.status, plain.document["verdict"]) == (2, "inconclusive")
    assert "trainer.config.megatron_training.seed (1 against 2)" in plain.document["error"]
    seed = ("--allow-different", "trainer.config.megatron_training.seed")
    meant = firstdiff("compare", *dumps, *seed, "--allow-different", "environment.torch", "--json")
    assert (meant.status, meant.document["verdict"]) == (1, "divergent")
    assert any("environment.torch may differ, but neither dump" in note for note in meant.document["notes"])
    assert any("environment.versions.torch" in note for note in meant.document["notes"])


@pytest.mark.slow
def test_the_profile_alignment_shows_where_the_responses_part(check: Check) -> None:
    document = check("alignment").document
    assert document["verdict"] == "divergent"
    largest = {row["step"]: row["max_relative"] for row in document["growth"] if row["tag"] == "responses"}
    assert sorted(largest) == list(range(12))
    assert largest[0] < 0.05 < max(largest.values()), "rounding first, other tokens later"


@pytest.mark.slow
def test_more_threads_in_b_leave_the_verdict_to_the_records(check: Check) -> None:
    done = check("deterministic", "--set", "check.steps=2", "--set", "check.b.determinism.num_threads=2")
    document = done.document
    assert document["verdict"] in ("identical", "divergent")
    assert document["error"] is None
    assert {found["key"] for found in document["configurations"]["different"]} >= {
        "determinism.num_threads",
        "environment.determinism.in_effect.num_threads",
        "environment.determinism.in_effect.variables.OMP_NUM_THREADS",
    }
