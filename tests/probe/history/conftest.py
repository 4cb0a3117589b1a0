"""Folders of checks as the flow leaves them, at times of the test's own choosing."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from probe.config import load_profile, to_yaml
from probe.history import begin
from probe.store.writer import write_json

FIRST_NIGHT = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)
TRAIN = "from probe import Probe\n"
ENVIRONMENT = {
    "versions": {"torch": "2.13.0", "numpy": "2.3.1"},
    "world_size": 1,
    "determinism": {"in_effect": {"torch_seed": 1, "random_states": {"torch": "5a"}}},
}

MakeCheck = Callable[..., Path]


def document(verdict: str, name: str = "actor.model.norm", step: int = 2) -> dict[str, Any]:
    """What a check's ``verdict.json`` says, as far as the history reads it."""
    differs = verdict == "divergent"
    first = {"step": step, "stage": "actor_update", "rank": [0], "event": "forward_output", "name": name, "tag": None}
    return {
        "format": 1,
        "verdict": verdict,
        "first": first if differs else None,
        "cause": {"kind": "module_forward", "name": name, "explanation": f"at step {step}"}
        if differs
        else {"kind": "none", "name": None, "explanation": "no difference was found"},
        "key_data": {"first": {"step": step, "tag": "loss"} if differs else None},
        "cost": {"trainer_steps": 12, "documented_recipe_steps": 24, "seconds": 31.0 + step},
        "error": "run a: the trainer failed" if verdict == "inconclusive" else None,
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A profile and the trainer that it starts."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "mine.yaml").write_text("trainer: {kind: command, command: [python, train.py, --lr, '0.1']}\n")
    return folder


@pytest.fixture
def environment() -> dict[str, Any]:
    """What each check's ``environment.json`` says."""
    return ENVIRONMENT


@pytest.fixture
def checks(tmp_path: Path) -> Path:
    return tmp_path / "checks"


@pytest.fixture
def make_check(project: Path, checks: Path) -> MakeCheck:
    """Makes a check's folder as a night's check of ``mine.yaml`` leaves it: ``make_check(night, verdict)``."""

    def make(
        night: int,
        verdict: str = "identical",
        environment: dict[str, Any] | None = None,
        overrides: tuple[str, ...] = (),
        profile: str = "mine",
        **found: Any,
    ) -> Path:
        file = project / f"{profile}.yaml"
        resolved = load_profile(str(file), list(overrides))
        folder = checks / f"{profile}-night{night:02}-{len(overrides)}"
        dump = folder / "a/msprobe_dump"
        dump.mkdir(parents=True)
        (folder / "profile.yaml").write_text(to_yaml(resolved))
        begin(folder, str(file), resolved, overrides, FIRST_NIGHT + timedelta(days=night - 1))
        write_json(dump / "configurations.json", resolved.model_dump(mode="json"))
        write_json(dump / "environment.json", ENVIRONMENT if environment is None else environment)
        (folder / "verdict.json").write_text(json.dumps(document(verdict, **found)))
        return folder

    return make
