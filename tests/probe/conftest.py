"""Dump folders to test on: written by our own writer, by real msprobe, and on purpose badly."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe.collect.values import Snapshot, leaves
from probe.compare import KeyDataComparison, compare_key_data
from probe.store.reader import read_dump
from probe.store.writer import DumpWriter

ROOT = Path(__file__).resolve().parents[2]

MakeDump = Callable[..., Path]


@pytest.fixture
def torch_state() -> Iterator[None]:
    """Restores random states, threads and determinism settings; one thread in the test."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.set_num_threads(1)  # faster for models as small as these
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


@pytest.fixture
def make_dump(tmp_path: Path) -> MakeDump:
    """Writes a dump folder: ``make_dump("a", [("loss", value, {"step": 1}), …])``.

    Each save takes ``step``, ``rank``, ``micro_step``, ``stage`` and ``mask``; ``weights`` holds digests only, as in a
    real run. The steps up to the last one are finished.
    """

    def make(
        name: str, saves: list[tuple[Any, ...]], complete: bool = True, keep_values: bool = True, finish: bool = True
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        writer = DumpWriter(folder, name, keep_values)
        step = 0
        for tag, value, *rest in saves:
            where: dict[str, Any] = rest[0] if rest else {}
            step, rank, micro_step = (where.get(key, 0) for key in ("step", "rank", "micro_step"))
            for path, leaf in leaves(value):
                shot = Snapshot.take(leaf, where.get("mask"))
                if tag == "weights":
                    writer.add_digests(tag, step, rank, [(path, shot.dtype, shot.shape, shot.digest)])
                    continue
                place = (tag, step, rank, micro_step, path, where.get("stage"))
                writer.add(*place, shot.numbers, shot.dtype, shot.shape, shot.digest, shot.masked)
        if finish:
            writer.finish_step(step)
        writer.close(complete)
        return folder

    return make


@pytest.fixture
def compared(make_dump: MakeDump) -> Callable[..., KeyDataComparison]:
    """Writes two dumps and compares them."""

    def compare(a: list[tuple[Any, ...]], b: list[tuple[Any, ...]], **options: Any) -> KeyDataComparison:
        return compare_key_data(read_dump(make_dump("a", a)), read_dump(make_dump("b", b)), **options)

    return compare


@pytest.fixture
def edit_json() -> Callable[..., None]:
    """Changes keys of a JSON file in place."""

    def edit(path: Path, **changes: Any) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return edit


@pytest.fixture(scope="session")
def run_python() -> Callable[..., str]:
    """Runs Python code, or a script, in a process of its own, as msprobe's singletons need it; returns its output."""

    def run(code: str | Path, *arguments: object) -> str:
        program = [str(code)] if isinstance(code, Path) else ["-c", code]
        done = subprocess.run(
            [sys.executable, *program, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="session")
def layer_runs(tmp_path_factory: pytest.TempPathFactory, run_python: Callable[..., str]) -> Path:
    """A folder with one dump for every fault of ``layer_runs.py``, recorded by real msprobe."""
    folder = tmp_path_factory.mktemp("layers")
    run_python(Path(__file__).with_name("layer_runs.py"), folder)
    return folder


SINGLE_SAVE = """
import sys
import torch
from msprobe.core import SingleSave

SingleSave(sys.argv[1])
for step in range(2):
    SingleSave.save({"prompts": torch.arange(6).reshape(2, 3)})
    SingleSave.save({"loss": torch.tensor(0.5 + step)})
    SingleSave.save({"loss": torch.tensor(0.25 + step)})
    SingleSave.save({"responses": {"tokens": torch.ones(2, 2), "log_probs": torch.zeros(2, 2)}})
    SingleSave.save_ex({"advantages": [torch.ones(3), torch.zeros(3)]})
    SingleSave.step()
"""


@pytest.fixture(scope="session")
def single_save_tree(tmp_path_factory: pytest.TempPathFactory, run_python: Callable[..., str]) -> Path:
    """Key data that real SingleSave wrote: no index, no manifest. Copy it before changing it."""
    folder = tmp_path_factory.mktemp("single_save") / "msprobe_dump"
    run_python(SINGLE_SAVE, folder)
    return folder


MsprobeRuns = Callable[[str, str], Path]


@pytest.fixture(scope="session")
def msprobe_runs(tmp_path_factory: pytest.TempPathFactory, run_python: Callable[..., str]) -> MsprobeRuns:
    """Dumps that msprobe itself wrote: ``msprobe_runs(mode, fault)``; see ``msprobe_runs.py``. Each is made once."""
    folder = tmp_path_factory.mktemp("msprobe")
    common = ("statistics-L0-statistics", "statistics-L0-md5", "statistics-mix-xor", "tensor-mix-statistics")

    def of(mode: str, fault: str) -> Path:
        if not (folder / mode).exists():
            modes = common if mode in common else (mode,)
            run_python(Path(__file__).with_name("msprobe_runs.py"), folder, *modes)
        return folder / mode / fault

    return of
