"""Steps 3 and 6: find the first difference, then name the module and the cause."""

from __future__ import annotations

import logging

from prefect import task

from probe.compare import KeyDataComparison
from probe.locate import Conclusion, FirstKeyData, SecondPair, conclude, first_key_data
from probe.store.reader import Dump
from tasks import UNCACHED, Begun, begin

log = logging.getLogger("firstdiff")


@task(name="3 locate first divergence", **UNCACHED)
def locate_first_divergence(comparison: KeyDataComparison) -> FirstKeyData | None:
    """Finds the first record that differs."""
    begin(Begun(3, "locating the first difference"))
    first = first_key_data(comparison)
    if first is not None:
        log.info("first difference: %s at step %d, %s", first.entry.record.tag, first.entry.step, first.stage)
    return first


@task(name="6 name first difference", **UNCACHED)
def name_first_difference(
    first: FirstKeyData | None, comparison: KeyDataComparison, a: Dump, b: Dump, second: SecondPair | None
) -> Conclusion:
    """Names the first differing module, or what else the first difference means."""
    begin(Begun(6, "naming the cause"))
    return conclude(first, comparison, a, b, second)
