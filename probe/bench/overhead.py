"""``overhead``: what a check without a server takes beside its trainer, on a machine's first use of it and later.

The command runs as people run it, as a process of its own, with a trainer that records a number and says how long it
ran.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from probe.bench.processes import TIME_LIMIT
from probe.bench.rounds import described
from probe.bench.sizes import OverheadSize
from probe.errors import InconclusiveError, TrainerError
from probe.launch import run_process

_ROOT = Path(__file__).resolve().parent.parent.parent
_SECONDS = "seconds.txt"

TRAINER = f"""
import time
start = time.perf_counter()
import torch
from probe import Probe
torch.manual_seed(0)
probe = Probe.from_env()
for step in range(3):
    probe.save({{"loss": float(step)}})
    probe.step()
with open("{_SECONDS}", "a") as file:
    file.write(f"{{time.perf_counter() - start}}\\n")
"""
PROFILE = "trainer: {kind: command, command: [python, train.py]}\n"


def measure_overhead(size: OverheadSize, scratch: Path) -> dict[str, Any]:
    """Runs the benchmark.

    Args:
        size: How many checks.
        scratch: An empty folder.

    Returns:
        ``first_outside_trainer_seconds`` of a check that finds no database of Prefect's, the median
        ``outside_trainer_seconds`` of those that follow, and as ``contenders`` the seconds of these in all and of both
        their trainers.

    Raises:
        InconclusiveError: A check failed.
    """
    (scratch / "train.py").write_text(TRAINER, encoding="utf-8")
    (scratch / "tiny.yaml").write_text(PROFILE, encoding="utf-8")
    first, *later = (_check(scratch, number) for number in range(1 + size.rounds))
    return {
        "size": size.to_dict(),
        "contenders": described({"check": [one[0] for one in later], "trainers": [one[1] for one in later]}),
        "first_outside_trainer_seconds": round(first[0] - first[1], 3),
        "outside_trainer_seconds": round(median(whole - trainers for whole, trainers in later), 3),
    }


def _check(scratch: Path, number: int) -> tuple[float, float]:
    """Runs one check; its seconds, and those of its two trainers."""
    out = scratch / f"check{number}"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"},
        "PREFECT_HOME": str(scratch / "prefect"),
        "PYTHONPATH": str(_ROOT),
    }
    (scratch / _SECONDS).unlink(missing_ok=True)
    start = time.perf_counter()
    try:
        run_process(
            [sys.executable, "-m", "flows.cli", "check", "tiny.yaml", "--out", str(out)],
            cwd=scratch,
            env=environment,
            log_file=scratch / "child.log",
            on_line=lambda line: None,
            time_limit=TIME_LIMIT,
        )
        seconds = time.perf_counter() - start
        verdict = json.loads((out / "verdict.json").read_bytes())["verdict"]
        trainers = [float(line) for line in (scratch / _SECONDS).read_text(encoding="utf-8").split()]
    except TrainerError as error:
        raise InconclusiveError(f"the benchmark's check failed: {error}") from error
    except (OSError, ValueError, KeyError) as error:
        raise InconclusiveError(f"the benchmark's check left no result ({error})") from error
    if verdict != "identical" or len(trainers) != 2:
        raise InconclusiveError(
            f"the benchmark's check is {verdict} with {len(trainers)} trainers, not identical with 2"
        )
    shutil.rmtree(out)
    return seconds, sum(trainers)
