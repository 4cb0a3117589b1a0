"""Scripts that know nothing of the probe, run once as a check runs them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from probe.config import load_profile
from probe.errors import TrainerError
from probe.launch import launcher_for, run_spec
from probe.store.reader import Dump, read_dump

SCRIPTS = Path(__file__).resolve().parents[2] / "flows/scripts"


@dataclass
class Observed:
    """A run of a script that was observed."""

    folder: Path
    error: TrainerError | None

    @property
    def log(self) -> str:
        return (self.folder / "trainer.log").read_text()

    @property
    def dump(self) -> Dump:
        return read_dump(self.folder / "msprobe_dump")

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        file = self.folder / f"msprobe_dump/trace/rank{rank}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()]

    def stages(self, rank: int = 0) -> list[tuple[int, str, int]]:
        """Step, name and micro-step of each stage, in the order in which they were entered."""
        starts = [event for event in self.events(rank) if event["kind"] == "stage_start"]
        return [(event["step"], event["name"], event["micro_step"]) for event in starts]

    def names(self, kind: str) -> set[str]:
        return {event["name"] for event in self.events() if event["kind"] == kind}


@dataclass
class Observing:
    """A folder for scripts, and what runs them."""

    folder: Path
    keys: dict[str, Any] = field(default_factory=dict)
    runs: int = 0

    def __call__(self, *command: str, **files: str) -> Observed:
        """Runs ``python COMMAND`` (or another program); keyword arguments are files to write, ``__`` for a folder."""
        for name, text in files.items():
            path = self.folder / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        if not command:
            command = ("train.py",)
        program = [] if command[0] in ("torchrun", "sh") else ["python"]
        trainer = {"kind": "script", "command": [*program, *command], "time_limit": 120, **self.keys}
        profile_file = self.folder.parent / "profile.yaml"
        profile_file.write_text(json.dumps({"trainer": {**trainer, "cwd": str(self.folder)}}))
        profile = load_profile(str(profile_file))
        run = self.folder.parent / f"run{self.runs}"
        self.runs += 1
        run.mkdir()
        error = None
        try:
            launcher_for(profile).run(run, run_spec(profile, "a", run / "msprobe_dump"))
        except TrainerError as failed:
            error = failed
        return Observed(run, error)

    def copy(self, name: str) -> None:
        shutil.copy2(SCRIPTS / name, self.folder)


@pytest.fixture
def observe(tmp_path: Path) -> Observing:
    (tmp_path / "project").mkdir()
    return Observing(tmp_path / "project")


@pytest.fixture
def scripts() -> Path:
    return SCRIPTS


Observe = Callable[..., Observed]
