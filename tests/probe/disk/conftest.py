"""Folders of checks whose dumps are real: two runs each, written by our own writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import torch

from probe.collect.values import Snapshot
from probe.config import Profile, load_profile, to_yaml
from probe.history import begin
from probe.store.writer import DumpWriter, write_json

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)

MakeCheck = Callable[..., Path]


@pytest.fixture
def now() -> datetime:
    return NOW


@pytest.fixture
def checks(tmp_path: Path) -> Path:
    folder = tmp_path / "checks"
    folder.mkdir()
    return folder


def _run(folder: Path, profile: Profile, loss: float, size: int, complete: bool) -> None:
    folder.mkdir(parents=True)
    writer = DumpWriter(folder, folder.parent.name, keep_values=True)
    for step in range(2):
        for tag, value in (("prompts", torch.arange(float(size))), ("loss", torch.full((4,), loss + step))):
            shot = Snapshot.take(value)
            writer.add(tag, step, 0, 0, "", None, shot.numbers, shot.dtype, shot.shape, shot.digest)
        writer.finish_step(step)
    writer.close(complete)
    write_json(folder / "configurations.json", profile.model_dump(mode="json"))
    write_json(folder / "environment.json", {"world_size": 1})


@pytest.fixture
def make_check(tmp_path: Path, checks: Path) -> MakeCheck:
    """Makes a check with its dumps: ``make_check("one", days=3, verdict="divergent")`` began three days ago."""

    def make(
        name: str,
        days: float = 0,
        verdict: str | None = "identical",
        keep: str = "all",
        profile: str = "mine",
        size: int = 1000,
        complete: bool = True,
    ) -> Path:
        (tmp_path / "train.py").touch()
        file = tmp_path / f"{profile}.yaml"
        file.write_text(
            f"trainer: {{kind: command, command: [python, train.py]}}\ncheck: {{keep: {keep}, compress: false}}\n"
        )
        resolved = load_profile(str(file))
        folder = checks / name
        for run in "ab":
            differs = verdict == "divergent" and run == "b"
            _run(folder / run / "msprobe_dump", resolved, 0.75 if differs else 0.5, size, complete)
        (folder / "profile.yaml").write_text(to_yaml(resolved))
        begin(folder, str(file), resolved, (), NOW - timedelta(days=days))
        if verdict is not None:
            (folder / "verdict.json").write_text(json.dumps({"format": 1, "verdict": verdict}))
        return folder

    return make
