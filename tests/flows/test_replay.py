"""A check replays the module that its traces name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
