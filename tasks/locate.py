"""Steps 3 and 6: find the first difference, then name the module and the cause."""

from __future__ import annotations

import logging

from prefect import task

from probe.compare import KeyDataComparison, LayerComparison, TraceComparison
from probe.compare.rollouts import beside
from probe.language import tell
from probe.locate import (
    Conclusion,
    FirstKeyData,
    SecondPair,
    TraceAnswer,
    conclude,
    conclude_of_last,
    first_key_data,
    judge_samples,
    locate_trace,
)
from probe.store.reader import Dump
from tasks import UNCACHED, Begun, begin

log = logging.getLogger("firstdiff")


@task(name="3 locate first divergence", **UNCACHED)
def locate_first_divergence(
    comparison: KeyDataComparison, traces: TraceComparison
) -> tuple[FirstKeyData | None, TraceAnswer | None]:
    """Finds the first record that differs, and the first event."""
    begin(Begun(3, tell("locating the first difference")))
    first = first_key_data(comparison)
    if first is not None:
        place = {"tag": first.entry.record.tag, "step": first.entry.step, "stage": first.stage or tell("no stage")}
        log.info("%s", tell("first difference: {tag} at step {step}, {stage}", **place))
    answer = locate_trace(traces)
    if answer is not None:
        event = {"event": answer.first.event, "name": answer.first.name, "step": answer.first.step}
        log.info("%s", tell("first event: {event} of {name} at step {step}", **event))
    return first, answer


@task(name="6 name first difference", **UNCACHED)
def name_first_difference(
    first: FirstKeyData | None,
    comparison: KeyDataComparison,
    a: Dump,
    b: Dump,
    second: SecondPair | None,
    answer: TraceAnswer | None,
    last: LayerComparison | None = None,
) -> Conclusion:
    """Names the first differing module, or what else the first difference means."""
    begin(Begun(6, tell("naming the cause")))
    if first is None and last is not None and last.differences:
        return conclude_of_last(last, second)
    return judge_samples(conclude(first, comparison, a, b, second, answer), first, *beside(a.folder, b.folder))
