"""Probes that write below tmp_path, and scripts that use a probe in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe import Probe
from probe.store.reader import read_dump, read_values
from probe.types import Record, RunSpec


@dataclass
class Recording:
    """A probe and the folder that it fills."""

    probe: Probe
    folder: Path

    def records(self, rank: int = 0) -> list[Record]:
        self.probe.close()  # which waits until everything is written
        return read_dump(self.folder).records.get(rank, [])

    def values(self, record: Record) -> np.ndarray:
        return np.array(read_values(self.folder, record))

    def files(self) -> set[str]:
        return {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Recording]]:
    """Opens active probes; closes them and restores the interpreter's hook afterwards."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    opened: list[Recording] = []

    def start(**spec: Any) -> Recording:
        folder = tmp_path / f"dump{len(opened)}"
        opened.append(Recording(Probe(RunSpec(run="a", dump_path=str(folder), **spec)), folder))
        return opened[-1]

    yield start
    for recording in opened:
        recording.probe.close()


@pytest.fixture
def saved(record: Callable[..., Recording]) -> Callable[..., tuple[Record, np.ndarray]]:
    """Saves one leaf and reads back its record and its stored values."""

    def save(value: Any, mask: torch.Tensor | None = None) -> tuple[Record, np.ndarray]:
        recording = record()
        recording.probe.save({"x": value}, mask=mask)
        (only,) = recording.records()
        return only, recording.values(only)

    return save


@pytest.fixture(scope="module")
def start_script(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts Python code as a script whose FIRSTDIFF_SPEC asks for a dump below the given folder."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, code: str, **spec: Any) -> subprocess.Popen[str]:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "script.py").write_text(code, encoding="utf-8")
        run = RunSpec(run="a", dump_path=str(folder / "dump"), **spec)
        (folder / "spec.json").write_text(run.to_json(), encoding="utf-8")
        started.append(
            subprocess.Popen(
                [sys.executable, "script.py"],
                cwd=folder,
                env={**os.environ, "FIRSTDIFF_SPEC": str(folder / "spec.json"), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()
