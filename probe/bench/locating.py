"""``locate``: finding the first event that differs in two dumps, where everything behind it differs as well.

They are compared in a fresh process, whose memory is then the comparison's own.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from probe.bench.processes import run_child
from probe.bench.rounds import described, run_rounds
from probe.bench.sizes import LocateSize
from probe.errors import InternalError
from probe.store import layout
from probe.store.digest import ALGORITHM, hasher
from probe.store.writer import write_json
from probe.types import STAGES

OURS = "ours"
_FAULTY = 1
"""The rank that differs first, where there are several."""
_LATER = 500
"""Events by which the other ranks differ later."""
_MODULES = 60
_HEAD = (
    b'{"call":%d,"i":%d,"items":[["%s","float32",[8,512,896],"%032x"]],"kind":"%s","micro_step":0,"module":"Linear",'
)
_TAIL = b'"name":"actor.model.layers.%d.mlp.down_proj","stage":"%s","step":%d}\n'
_SIDES = ((b"args.0", b"forward_input"), (b"out", b"forward_output"))


def measure_locating(size: LocateSize, scratch: Path) -> dict[str, Any]:
    """Runs the benchmark.

    Args:
        size: How many ranks and events.
        scratch: An empty folder.

    Returns:
        ``contenders`` with seconds; ``seconds``, the median, and ``trace_memory_mb``, the largest of all rounds, in MB
        of 1,000,000 bytes.

    Raises:
        InconclusiveError: A process that measures failed.
        InternalError: The wrong event was found.
    """
    a, b = scratch / "a", scratch / "b"
    write_differing_traces(a, b, size)
    memory: list[float] = []

    def locate() -> float:
        measured = run_child("probe.bench.trace_comparison", [str(a), str(b), str(size.total)], scratch)
        rank, index = faulty_event(size)
        if (measured["found"]["rank"], measured["found"]["index"]) != ([rank], index):
            raise InternalError(f"event {index} of rank {rank} differs first; found was {measured['found']}")
        memory.append(measured["peak_memory_mb"])
        return float(measured["seconds"])

    found = described(run_rounds({OURS: locate}, size.rounds))
    return {
        "size": size.to_dict(),
        "contenders": found,
        "seconds": round(found[OURS]["median_seconds"], 3),
        "trace_memory_mb": max(memory),
    }


def faulty_event(size: LocateSize) -> tuple[int, int]:
    """The rank and the position of the first event that differs."""
    return min(_FAULTY, size.ranks - 1), size.events // 2


def write_differing_traces(a: Path, b: Path, size: LocateSize) -> None:
    """Writes two whole dumps of the same events, whose digests differ from the middle on."""
    source = random.Random(1)
    faulty, first = faulty_event(size)
    claims: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for folder in (a, b):
        layout.claim(folder)
        (folder / layout.TRACE).mkdir()
    for rank in range(size.ranks):
        begins = first if rank == faulty else first + _LATER
        taken = hasher(), hasher()
        name = f"{layout.TRACE}/rank{rank}.jsonl"
        with (a / name).open("wb") as left, (b / name).open("wb") as right:
            for number in range(size.events):
                step = number * size.steps // size.events
                path, kind = _SIDES[number % 2]
                module, call = number // 2 % _MODULES, number // 2 // _MODULES
                digest = source.getrandbits(128)
                tail = _TAIL % (module, STAGES[-2].encode(), step)
                for side, file in enumerate((left, right)):
                    held = digest ^ (side if number >= begins else 0)
                    line = _HEAD % (call, number, path, held, kind) + tail
                    file.write(line)
                    taken[side].update(line)
        for claim, hashed in zip(claims, taken, strict=True):
            claim[str(rank)] = {"digest": hashed.hexdigest(), "events": size.events, "algorithms": [ALGORITHM]}
    for folder, claim in zip((a, b), claims, strict=True):
        write_json(folder / layout.MANIFEST, _manifest(size, claim))


def _manifest(size: LocateSize, traces: dict[str, Any]) -> dict[str, Any]:
    nothing: dict[str, Any] = {"ranks": [], "records": {}, "index_digests": {}, "values": 0, "value_bytes": 0}
    run = {"format": layout.FORMAT, "digest": ALGORITHM, "run": "bench", "errors": [], "complete": True}
    return {**run, **nothing, "steps_finished": size.steps, "traces": traces}
