"""``trace``: a training step that is traced against the same step untraced, beside msprobe's layer dumps of the same.

Each recorder has a process of its own, in which it takes turns with the untraced step: msprobe's debugger is a
singleton, and a ratio is then always of one process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.bench.processes import run_child
from probe.bench.recording import PASSIVE, training
from probe.bench.rounds import described, ratio
from probe.bench.sizes import TraceSize
from probe.store.layers import msprobe_missing

OFF, KEY_DATA, TRACE, GENERATION = "off", "key_data", "trace", "generation"
DUMPS = {
    "l0_statistics": ("L0", "statistics"),
    "l0_md5": ("L0", "md5"),
    "mix_md5": ("mix", "md5"),
}
"""msprobe's dumps of statistics: level and ``summary_mode``."""
NOISE = 0.01
"""Smallest extra time that is told from none, as a part of a step."""


def measure_tracing(size: TraceSize, scratch: Path) -> dict[str, Any]:
    """Runs the benchmark.

    Args:
        size: How much is trained.
        scratch: An empty folder.

    Returns:
        ``contenders`` with seconds for all steps of a round, each as ``WIDTH/RECORDER`` beside the untraced steps of
        the same process, ``WIDTH/RECORDER/off``; for each width ``trace_over_off_WIDTH``, the same for each
        of msprobe's dumps (None without msprobe), and ``dump_extra_over_trace_extra_WIDTH``: what the cheapest of them
        adds to a step by what tracing adds; of a whole GRPO step, ``trace_over_key_data_generation``, against the same
        step of which key data alone are recorded, and ``trace_over_off_generation``, against one of which nothing is;
        ``where``: what tracing does in a step, and how much of its extra time is hashing.

    Raises:
        InconclusiveError: A process that measures failed.
    """
    variables = {**training(size.whole).determinism.environment, **PASSIVE}
    contenders: dict[str, Any] = {}
    found: dict[str, Any] = {}
    where: dict[str, Any] = {}
    environment: dict[str, Any] = {}

    def measure(name: str, width: int, recorder: str, others: tuple[str, ...] = (OFF,)) -> list[float | None]:
        arguments = [size.to_json(), str(width), recorder]
        measured = run_child("probe.bench.traced_trainings", arguments, scratch, variables)
        seconds = measured.pop("seconds")
        if "where" in measured:
            where[name] = measured.pop("where")
        environment.update(measured)
        both = described(seconds)
        contenders[f"{name}/{recorder}"] = both[recorder]
        contenders.update({f"{name}/{recorder}/{other}": both[other] for other in others})
        return [ratio(seconds, recorder, other) for other in others]

    for width in size.widths:
        (traced,) = measure(str(width), width, TRACE)
        dumped = {name: None if msprobe_missing() else measure(str(width), width, name)[0] for name in size.dumps}
        found |= {f"{TRACE}_over_{OFF}_{width}": traced}
        found |= {f"{name}_over_{OFF}_{width}": value for name, value in dumped.items()}
        found[f"dump_extra_over_trace_extra_{width}"] = extra_over_extra(traced, dumped)
    others = KEY_DATA, OFF
    ratios = measure(GENERATION, size.whole.hidden, GENERATION, others)
    found |= {f"{TRACE}_over_{other}_{GENERATION}": value for other, value in zip(others, ratios, strict=True)}
    return {
        "size": size.to_dict(),
        **environment,
        "variables": variables,
        "contenders": contenders,
        **found,
        "where": where,
    }


def extra_over_extra(traced: float | None, dumped: dict[str, float | None]) -> float | None:
    """What the cheapest dump adds to a step, by what tracing adds, which counts as ``NOISE`` at least.

    Args:
        traced: Time of a traced step by that of an untraced one.
        dumped: The same of each dump.

    Returns:
        None when tracing or every dump was not measured.

    Example:
        >>> extra_over_extra(1.25, {"l0_statistics": 2.0, "mix_md5": 9.0, "l0_md5": None})
        4.0
    """
    measured = [value for value in dumped.values() if value is not None]
    if traced is None or not measured:
        return None
    return round((min(measured) - 1) / max(traced - 1, NOISE), 2)
