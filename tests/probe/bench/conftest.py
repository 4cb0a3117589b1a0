"""The benchmarks at sizes that take seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probe.bench.sizes import (
    BytesSize,
    DeviceDigestSize,
    DigestsSize,
    LocateSize,
    OverheadSize,
    RecordingSize,
    Sizes,
    TraceSize,
)

ROOT = Path(__file__).resolve().parents[3]

TINY = Sizes(
    RecordingSize(layers=1, hidden=32, prompts=2, samples=2, response_tokens=3, steps=1, rounds=2),
    BytesSize(files=3, file_bytes=10_000, rounds=2),
    DigestsSize(ranks=2, records=50, steps=2, rounds=2),
    DeviceDigestSize(tensor_bytes=4000, rounds=2),
    LocateSize(ranks=2, events=4000, steps=2, rounds=2),
    TraceSize(
        widths=(64,),
        dumps=("mix_md5",),
        layers=1,
        vocabulary=32,
        sequences=2,
        tokens=4,
        steps=1,
        rounds=2,
        whole=RecordingSize(layers=1, hidden=32, prompts=2, samples=2, response_tokens=3, steps=1),
    ),
    OverheadSize(rounds=1),
)

COMMAND = f"""
from probe.bench import sizes
from probe.bench.sizes import *

sizes.REFERENCE = {TINY!r}
from flows.cli import main
main()
"""


@dataclass(frozen=True)
class Bench:
    """What the command left."""

    status: int
    stdout: str
    stderr: str
    left_over: list[str]

    @property
    def document(self) -> dict[str, Any]:
        return json.loads(self.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture(scope="session")
def tiny() -> Sizes:
    return TINY


@pytest.fixture(scope="session")
def tiny_bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs ``firstdiff bench ARGUMENTS`` with tiny sizes, in a temporary folder of its own."""

    def run(*arguments: str) -> Bench:
        folder = tmp_path_factory.mktemp("scratch")
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, "bench", *arguments],
            env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        return Bench(done.returncode, done.stdout, done.stderr, sorted(path.name for path in folder.iterdir()))

    return run
