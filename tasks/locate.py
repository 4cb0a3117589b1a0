"""Steps 3 and 6: find the first difference, then name the module and the cause."""

from __future__ import annotations

import logging

from prefect import task

from probe.compare import KeyDataComparison, TraceComparison
from probe.locate import Conclusion, FirstKeyData, SecondPair, TraceAnswer, conclude, first_key_data, locate_trace
from probe.store.reader import Dump
from tasks import UNCACHED, Begun, begin

log = logging.getLogger("firstdiff")


@task(name="3 locate first divergence", **UNCACHED)
def locate_first_divergence(
    comparison: KeyDataComparison, traces: TraceComparison
) -> tuple[FirstKeyData | None, TraceAnswer | None]:
    """Finds the first record that differs, and the first event."""
    begin(Begun(3, "locating the first difference"))
    first = first_key_data(comparison)
    if first is not None:
        place = f"step {first.entry.step}{f', {first.stage}' if first.stage else ''}"
        log.info("first difference: %s at %s", first.entry.record.tag, place)
    answer = locate_trace(traces)
    if answer is not None:
        log.info("first event: %s of %s at step %d", answer.first.event, answer.first.name, answer.first.step)
    return first, answer


@task(name="6 name first difference", **UNCACHED)
def name_first_difference(
    first: FirstKeyData | None,
    comparison: KeyDataComparison,
    a: Dump,
    b: Dump,
    second: SecondPair | None,
    answer: TraceAnswer | None,
) -> Conclusion:
    """Names the first differing module, or what else the first difference means."""
    begin(Begun(6, "naming the cause"))
    return conclude(first, comparison, a, b, second, answer)
