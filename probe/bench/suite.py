"""All benchmarks of ``firstdiff bench``, the targets that they have to meet, and one document of it all."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.bench import sizes
from probe.bench.byte_files import measure_bytes
from probe.bench.device_digest import measure_device_digest
from probe.bench.digests import measure_digests
from probe.bench.locating import measure_locating
from probe.bench.overhead import measure_overhead
from probe.bench.processes import require_room, scratch_folder
from probe.bench.recording import measure_recording
from probe.bench.tracing import measure_tracing
from probe.errors import UsageError

log = logging.getLogger("firstdiff")

NAMES = ("recording", "bytes", "digests", "device-digest", "trace", "locate", "overhead")
"""What ``firstdiff bench`` takes."""


@dataclass(frozen=True, slots=True)
class Number:
    """A measured number that people are told, and what it has to be at the reference sizes.

    Example:
        >>> Number("recording", "key_data_over_off", "{} times", at_most=1.05).met(1.02)
        True
    """

    benchmark: str
    key: str
    says: str
    """The number in words, with ``{}`` where it stands."""
    at_most: float | None = None
    at_least: float | None = None
    """Its target is one of the two, or it has none."""
    missing: str = "msprobe is not installed"
    """Why it may not have been measured."""

    @property
    def target(self) -> dict[str, float]:
        """The limit under its name; empty without one."""
        limits = {"at_most": self.at_most, "at_least": self.at_least}
        return {name: limit for name, limit in limits.items() if limit is not None}

    def met(self, measured: float) -> bool:
        """Whether a number is on the right side of the limits."""
        return (self.at_most is None or measured <= self.at_most) and (
            self.at_least is None or measured >= self.at_least
        )


NUMBERS = (
    Number("recording", "key_data_over_off", "a step with key data takes {} times one without", at_most=1.05),
    Number("recording", "single_save_over_off", "a step with SingleSave takes {} times one without"),
    Number(
        "bytes",
        "times_as_fast_as_single_comparator",
        "bytes compare {} times as fast as SingleComparator does",
        at_least=10,
    ),
    Number(
        "bytes",
        "times_as_fast_as_plain_reading",
        "bytes compare {} times as fast as plain reading and comparing",
        at_least=0.5,
    ),
    Number("digests", "records_per_second", "{} records a second compare by digest", at_least=1_000_000),
    Number("digests", "peak_memory_mb", "comparing by digest needs {} MB of memory", at_most=300),
    Number(
        "device-digest",
        "reference_over_xxh3",
        "the device digest's reference in NumPy takes {} times as long as xxh3",
        missing="xxhash is not installed",
    ),
    Number(
        "device-digest",
        "torch_on_host_over_xxh3",
        "the device digest on the host takes {} times as long as xxh3",
        missing="xxhash is not installed",
    ),
    Number(
        "device-digest",
        "on_device_over_copying",
        "the digest on the device takes {} times as long as copying to the host and digesting there",
        missing="there is no device",
    ),
    *(
        Number(
            "trace",
            f"trace_over_off_{width}",
            f"at hidden size {width}, a traced training step takes {{}} times an untraced one",
            at_most=limit,
        )
        for width, limit in ((64, 1.5), (512, 1.15), (1024, None))
    ),
    *(
        Number(
            "trace",
            f"{dump}_over_off_{width}",
            f"at hidden size {width}, one dumped by msprobe as {says} takes {{}} times",
        )
        for width in (64, 512, 1024)
        for dump, says in (("l0_statistics", "L0 statistics"), ("l0_md5", "L0 md5"), ("mix_md5", "mix md5"))
    ),
    *(
        Number(
            "trace",
            f"dump_extra_over_trace_extra_{width}",
            f"at hidden size {width}, the cheapest of these adds {{}} times what the trace adds",
            at_least=3,
        )
        for width in (64, 512, 1024)
    ),
    Number(
        "trace",
        "trace_over_key_data_generation",
        "a traced GRPO step at hidden size 512, generation included, takes {} times one with key data alone",
        at_most=1.2,
    ),
    Number("trace", "trace_over_off_generation", "and {} times one of which nothing is recorded"),
    Number("locate", "seconds", "the first traced event that differs is found in {} s", at_most=60),
    Number("locate", "trace_memory_mb", "finding it needs {} MB of memory", at_most=1000),
    Number(
        "overhead",
        "outside_trainer_seconds",
        "a check without a server takes {} s beside its trainer",
        at_most=15,
    ),
    Number("overhead", "first_outside_trainer_seconds", "the first one on a machine takes {} s beside its trainer"),
)


def run_benchmarks(name: str | None = None, wanted: sizes.Sizes | None = None) -> dict[str, Any]:
    """Runs one benchmark, or all of them one after the other.

    Args:
        name: One of ``NAMES``; None runs all.
        wanted: How much each does; None takes the reference sizes.

    Returns:
        ``environment``, ``benchmarks`` by name, and ``targets`` by the key of the measured number. A number that
        could not be had is None, and so is whether it met its target.

    Raises:
        UsageError: There is no such benchmark.
        DumpError: The disk of the temporary folder has too little room.
        InconclusiveError: A process that measures failed.
    """
    if name is not None and name not in NAMES:
        raise UsageError(f"{name}: no such benchmark; there are {', '.join(NAMES)}")
    chosen = sizes.REFERENCE if wanted is None else wanted
    measure: dict[str, tuple[int, Callable[[Path], dict[str, Any]]]] = {
        "recording": (chosen.recording.disk_bytes, lambda folder: measure_recording(chosen.recording, folder)),
        "bytes": (chosen.bytes.disk_bytes, lambda folder: measure_bytes(chosen.bytes, folder)),
        "digests": (chosen.digests.disk_bytes, lambda folder: measure_digests(chosen.digests, folder)),
        "device-digest": (
            chosen.device_digest.disk_bytes,
            lambda folder: measure_device_digest(chosen.device_digest, folder),
        ),
        "trace": (chosen.trace.disk_bytes, lambda folder: measure_tracing(chosen.trace, folder)),
        "locate": (chosen.locate.disk_bytes, lambda folder: measure_locating(chosen.locate, folder)),
        "overhead": (chosen.overhead.disk_bytes, lambda folder: measure_overhead(chosen.overhead, folder)),
    }
    names = NAMES if name is None else (name,)
    load = os.getloadavg()[0]
    require_room(max(measure[each][0] for each in names))  # one scratch folder at a time
    found = {}
    for each in names:
        log.info("%s: measuring", each)
        with scratch_folder() as folder:
            found[each] = measure[each][1](folder)
    return {"format": 1, "environment": _environment(load), "benchmarks": found, "targets": _targets(found)}


def summary(document: dict[str, Any]) -> list[str]:
    """The same for people: a line for each number, and a last one for all."""
    benchmarks = document["benchmarks"]
    lines = [
        _line(number, benchmarks[number.benchmark][number.key])
        for number in NUMBERS
        if number.key in benchmarks.get(number.benchmark, {})
    ]
    states = [entry["met"] for entry in document["targets"].values()]
    return [*lines, f"{states.count(True)} of {len(states)} targets met"]


def _line(number: Number, measured: float | None) -> str:
    if measured is None:
        return f"{number.says.format('?')} (not measured: {number.missing})"
    said = number.says.format(_digits(measured))
    for name, limit in number.target.items():
        said += f" (target: {name.replace('_', ' ')} {_digits(limit)}{'' if number.met(measured) else '; missed'})"
    return said


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _targets(found: dict[str, Any]) -> dict[str, Any]:
    result = {}
    for number in NUMBERS:
        if number.target and number.key in found.get(number.benchmark, {}):
            measured = found[number.benchmark][number.key]
            met = None if measured is None else number.met(measured)
            result[number.key] = {
                "benchmark": number.benchmark,
                **number.target,
                "measured": measured,
                "met": met,
            }
    return result


def _environment(load: float) -> dict[str, Any]:
    """What was measured on, and the load average of the minute before: what else ran makes the numbers noisy."""
    from probe.collect import environment

    described = environment.describe({})
    shown = {key: described[key] for key in ("versions", "platform", "devices")}
    return {**shown, "processor": _processor(), "load_average_before": round(load, 2)}


def _processor() -> str | None:
    """The processor's name, where the system says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
