"""``python -m probe.bench.trainings SIZE RESULT``: the contenders of ``recording``, in turns in one process.

A contender's time goes from its first step to the end of ``close``, so that what is written behind the training's back
counts too; making the models does not.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from probe import Probe
from probe.bench.child import leave_result
from probe.bench.recording import KEY_DATA, OFF, SINGLE_SAVE, training
from probe.bench.rounds import run_rounds
from probe.bench.sizes import RecordingSize
from probe.store.layers import msprobe_missing
from probe.trainer.device import pick_device
from probe.trainer.loop import Trainer
from probe.trainer.parallel import Ranks
from probe.types import RunSpec


def train(size: RecordingSize, probe: Probe) -> float:
    """Trains a fresh trainer of the same seed.

    Args:
        size: How much is trained.
        probe: Records it, or is inert.

    Returns:
        Seconds from its first step until the probe is closed.
    """
    trainer = Trainer(training(size), probe, Ranks(pick_device(training(size).device)))
    start = time.perf_counter()
    trainer.train()
    probe.close()
    return time.perf_counter() - start


def _contenders(size: RecordingSize, folder: Path) -> dict[str, Callable[[], float]]:
    def off() -> float:
        return train(size, Probe())

    def key_data() -> float:
        dump = Path(tempfile.mkdtemp(dir=folder))
        seconds = train(size, Probe(RunSpec(run="bench", dump_path=str(dump), key_data="full")))
        shutil.rmtree(dump)
        return seconds

    def single_save() -> float:
        from probe.bench.single_save import SingleSaveProbe

        return train(size, SingleSaveProbe(folder / SINGLE_SAVE))

    contenders = {OFF: off, KEY_DATA: key_data}
    return contenders if msprobe_missing() else {**contenders, SINGLE_SAVE: single_save}


def _measure(size: RecordingSize, folder: Path) -> dict[str, Any]:
    run_rounds(_contenders(replace(size, steps=1), folder), rounds=1)  # warms everything up
    seconds = run_rounds(_contenders(size, folder), size.rounds)
    device = pick_device(training(size).device).type
    return {"device": device, "threads": torch.get_num_threads(), "seconds": seconds}


if __name__ == "__main__":
    given, result = sys.argv[1:3]
    leave_result(result, _measure(RecordingSize(**json.loads(given)), Path(result).parent))
