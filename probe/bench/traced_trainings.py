"""``python -m probe.bench.traced_trainings SIZE WIDTH RECORDER RESULT``: one recorder of ``trace``, and none, in turns.

A contender's time goes from its first step until everything is written.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from probe import Probe
from probe.bench.child import leave_result
from probe.bench.recording import training
from probe.bench.rounds import ratio, run_rounds
from probe.bench.sizes import RecordingSize, TraceSize
from probe.bench.tracing import DUMPS, GENERATION, KEY_DATA, OFF, TRACE
from probe.bench.trainings import train
from probe.store import layout
from probe.store.digest import digest
from probe.trainer.device import pick_device
from probe.types import RunSpec

_BYTES = {"float32": 4, "int64": 8, "float64": 8, "bfloat16": 2, "float16": 2, "int32": 4}
"""Bytes of an element, by dtype; 1 for all others."""
_HASHED_AT_ONCE = 32 << 20
"""Bytes of the value by which the speed of hashing is measured: more than a cache holds, so that memory counts."""


def _updates(size: TraceSize, width: int, probe: Probe, dumping: Callable[[Any], Any]) -> float:
    """Takes optimizer steps on a fresh model of the same seed; seconds from the first until the probe is closed."""
    torch.manual_seed(0)
    device = pick_device(training(size.whole).device)
    model: Any = Qwen2ForCausalLM(Qwen2Config(**size.model(width))).to(device)
    tokens = torch.randint(size.vocabulary, (size.sequences, size.tokens), device=device)  # [sequences, tokens]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    probe.attach(actor=model)
    start = time.perf_counter()
    for _ in range(size.steps):
        with dumping(model), probe.stage("actor_update"):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        probe.save({"loss": loss})
        probe.step()
    probe.close()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - start


def _contenders(size: TraceSize, width: int, recorder: str, folder: Path) -> dict[str, Callable[[], float]]:
    def recorded(take: Callable[[Probe], float], what: str) -> float:
        dump = Path(tempfile.mkdtemp(dir=folder))
        spec = RunSpec(run="bench", dump_path=str(dump), key_data="full", trace=what == TRACE)
        seconds = take(Probe(spec))
        shutil.rmtree(folder / what, ignore_errors=True)
        dump.rename(folder / what)
        return seconds

    def update(probe: Probe) -> float:
        return _updates(size, width, probe, lambda model: nullcontext())

    def whole(probe: Probe) -> float:
        return train(size.whole, probe)

    if recorder in DUMPS:
        from probe.bench.msprobe_dump import StepDump

        dump = StepDump(folder, *DUMPS[recorder])
        return {OFF: lambda: update(Probe()), recorder: lambda: _updates(size, width, Probe(), dump.of)}
    if recorder == GENERATION:
        return {
            OFF: lambda: whole(Probe()),
            KEY_DATA: lambda: recorded(whole, KEY_DATA),
            GENERATION: lambda: recorded(whole, TRACE),
        }
    return {OFF: lambda: update(Probe()), recorder: lambda: recorded(update, TRACE)}


def _measure(size: TraceSize, width: int, recorder: str, folder: Path) -> dict[str, Any]:
    once = replace(size, steps=1, whole=replace(size.whole, steps=1))
    run_rounds(_contenders(once, width, recorder, folder), rounds=1)  # warms everything up
    seconds = run_rounds(_contenders(size, width, recorder, folder), size.rounds)
    device = pick_device(training(size.whole).device).type
    found = {"device": device, "threads": torch.get_num_threads(), "seconds": seconds}
    if recorder in DUMPS:
        return found
    steps = size.whole.steps if recorder == GENERATION else size.steps
    without = KEY_DATA if recorder == GENERATION else OFF
    more = ratio(seconds, recorder, without)
    assert more is not None
    step_seconds = sum(seconds[without]) / len(seconds[without]) / steps
    return {**found, "where": _where(folder / TRACE, steps, (more - 1) * step_seconds)}


def _where(dump: Path, steps: int, extra_seconds: float) -> dict[str, Any]:
    """What tracing does in a step: events, bytes that it hashes, seconds that hashing takes, and all extra ones."""
    events, hashed = 0, 0
    with (dump / layout.TRACE / "rank0.jsonl").open(encoding="utf-8") as lines:
        for line in lines:
            events += 1
            for _, dtype, shape, _ in json.loads(line)["items"]:
                hashed += math.prod(shape) * _BYTES.get(dtype, 1)
    value = torch.rand(_HASHED_AT_ONCE // 4).numpy()  # [elements], float32
    digest("float32", value.shape, value.data)
    start = time.perf_counter()
    repeats = 20
    for _ in range(repeats):
        digest("float32", value.shape, value.data)
    speed = repeats * _HASHED_AT_ONCE / (time.perf_counter() - start)
    return {
        "events": round(events / steps),
        "hashed_mb": round(hashed / steps / 1e6, 1),
        "hashing_seconds": round(hashed / steps / speed, 6),
        "extra_seconds": round(extra_seconds, 4),
    }


if __name__ == "__main__":
    given, width, recorder, result = sys.argv[1:5]
    document = json.loads(given)
    whole = RecordingSize(**document.pop("whole"))
    wanted = TraceSize(**document, whole=whole)
    leave_result(result, _measure(wanted, int(width), recorder, Path(result).parent))
