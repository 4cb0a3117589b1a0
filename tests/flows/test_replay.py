"""A check replays the module that its traces name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

RANKS = Path(__file__).resolve().parents[1] / "probe/replay/replayed_ranks.py"
FAULTY = Path(__file__).resolve().parents[1] / "probe/locate/faulty"
FAULT = "{{kind: {kind}, role: actor, module: model.layers.1.mlp.down_proj, step: 1, stage: actor_update}}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sum_order", "gradient_order"])
def test_a_planted_fault_is_confirmed_alone(
    check: Callable[..., Any], firstdiff: Callable[..., Any], tmp_path: Path, kind: str
) -> None:
    fault = f"faults=[{FAULT.format(kind=kind)}]"
    options = ("--set", "record.trace=true", "--set", "check.steps=2", "--set", fault)
    done = check("grpo", *options, "--out", tmp_path / "check")
    replay = done.document["replay"]
    direction = "forward" if kind == "sum_order" else "backward"
    assert (replay["result"], replay["direction"], replay["operation"]) == ("confirmed alone", direction, None)
    assert replay["module"] == "actor.model.layers.1.mlp.down_proj"
    assert replay["distinct"] > 1
    assert replay["instead"]
    assert any(note.startswith("replay: confirmed alone") for note in done.document["notes"])
    assert "confirmed alone" in (tmp_path / "check/report.html").read_text(encoding="utf-8")
    again = firstdiff("replay", tmp_path / "check", "--times", "3", "--json")  # from the packed dump
    assert (again.status, again.document["result"]) == (0, "confirmed alone")
    assert again.document["times"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "direction", "cause"),
    [
        ("ddp", "forward", "module_input"),
        ("fsdp2", "forward", "module_input"),
        ("fsdp2", "backward", "module_backward"),
    ],
)
def test_a_fault_of_rank_1_alone_is_confirmed_alone(
    check: Callable[..., Any], tmp_path: Path, kind: str, direction: str, cause: str
) -> None:
    profile = tmp_path / "ranks.yaml"
    command = f"[python, {RANKS}, {kind}, {direction}]"
    profile.write_text(f"trainer: {{kind: command, command: {command}, nproc_per_node: 2}}\nrecord: {{trace: true}}\n")
    done = check(profile, "--set", "check.steps=2", "--out", tmp_path / "check")
    found = done.document
    assert (found["first"]["rank"], found["cause"]["kind"], found["cause"]["name"]) == ([1], cause, "actor.layers.1")
    replay = found["replay"]
    assert (replay["module"], replay["direction"], replay["result"]) == ("actor.layers.1", direction, "confirmed alone")
    assert replay["instead"] == "aten::add.Tensor gets other inputs"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("a_moment", "an optimizer's step is no module's call"),
        ("an_augmentation_draws", "a random state differs before any module runs"),
    ],
)
def test_where_nothing_can_be_replayed_the_verdict_says_why(
    check: Callable[..., Any], firstdiff: Callable[..., Any], tmp_path: Path, fault: str, why: str
) -> None:
    profile = tmp_path / "faulty.yaml"
    profile.write_text(f"trainer: {{kind: command, command: [python, {FAULTY}, {fault}]}}\nrecord: {{trace: true}}\n")
    done = check(profile, "--set", "check.steps=3", "--out", tmp_path / "check")
    assert (done.document["replay"]["result"], done.document["replay"]["why"]) == ("not replayed", why)
    assert f"not replayed alone: {why.partition(chr(39))[0]}" in (tmp_path / "check/report.html").read_text("utf-8")
    again = firstdiff("replay", tmp_path / "check", "--json")
    assert (again.status, again.document["verdict"]) == (2, "inconclusive")
    assert why in again.document["error"]
