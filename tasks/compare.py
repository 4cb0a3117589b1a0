"""Steps 2 and 5: compare two dumps exactly, and have msprobe make its tables."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from prefect import task

from probe.compare import ConfigurationComparison, KeyDataComparison, LayerComparison, TraceComparison
from probe.compare import compare_configurations as compare_experiments
from probe.compare import compare_layers as compare_windows
from probe.compare import compare_traces as compare_events
from probe.compare.processes import compare_bytes
from probe.compare.rollouts import beside, say_texts
from probe.comparison import compare_dumps
from probe.language import tell
from probe.locate import SecondPair
from probe.report import Tables, key_data_tables, layer_tables
from probe.store.reader import Dump, read_dump
from tasks import UNCACHED, Begun, begin
from tasks.runners import compare_mapped

log = logging.getLogger("firstdiff")


@task(name="2 compare configurations", **UNCACHED)
def compare_configurations(a: Path, b: Path, allowed: list[str]) -> ConfigurationComparison:
    """Compares what two runs say of their experiments."""
    result = compare_experiments(a, b, allowed)
    counts = {"count": result.compared, "different": result.unmeant + result.meant}
    log.info("%s", tell("compared {count} keys of the experiment: {different} differ", **counts))
    return result


@task(name="compare some ranks", task_run_name="compare ranks {ranks}", **UNCACHED)
def compare_ranks(share: bytes, ranks: str) -> bytes:
    """Compares the records of some ranks, on a task runner."""
    return compare_bytes(share)


@task(name="2 compare key data", **UNCACHED)
def compare_key_data(a: Dump, b: Dump, last_step: int | None) -> KeyDataComparison:
    """Compares every record of two runs."""
    begin(Begun(2, tell("comparing key data")))
    result = compare_mapped(compare_ranks, a, b, last_step)
    say_texts(result, *beside(a.folder, b.folder))
    counts = {"count": result.compared, "different": result.differences}
    log.info("%s", tell("compared {count} records: {different} differ", **counts))
    return result


@task(name="2 compare traces", **UNCACHED)
def compare_traces(a: Path, b: Path, last_step: int | None) -> TraceComparison:
    """Compares every event of two runs, where they have traces."""
    result = compare_events(a, b, last_step)
    if result.recorded:
        counts = {"count": result.compared, "different": result.differences}
        log.info("%s", tell("compared {count} traced events: {different} differ", **counts))
    return result


@task(name="2 msprobe's key-data tables", **UNCACHED)
def make_key_data_tables(a: Path, b: Path, folder: Path) -> Tables:
    """Has SingleComparator make its tables."""
    begin(Begun(2, tell("making msprobe's tables of the key data")))
    return key_data_tables(a, b, folder)


@task(name="2 compare the last step's layers", **UNCACHED)
def compare_last_layers(a: Path, b: Path) -> LayerComparison:
    """Compares the layers that the first pair dumped."""
    return compare_windows(a, b)


@task(name="5 compare layers", **UNCACHED)
def compare_layers(c: Path, d: Path) -> SecondPair:
    """Compares key data and layers of the second pair."""
    begin(Begun(5, tell("comparing layers")))
    records = compare_mapped(compare_ranks, dump_c := read_dump(c), read_dump(d))
    layers = compare_windows(c, d)
    counts = {"count": layers.compared, "different": len(layers.differences)}
    log.info("%s", tell("compared {count} layer events: {different} differ", **counts))
    return SecondPair(records, layers, dump_c, compare_events(c, d))


@task(name="5 msprobe's layer tables", **UNCACHED)
def make_layer_tables(c: Path, d: Path, folder: Path) -> Tables:
    """Has compare_distributed make its tables."""
    begin(Begun(5, tell("making msprobe's tables of the layers")))
    return layer_tables(c, d, folder)


@task(name="compare two dumps", **UNCACHED)
def compare_two_dumps(a: Path, b: Path, out: Path | None, allowed: list[str]) -> dict[str, Any]:
    """Compares what two dump folders hold; returns the content of ``verdict.json``."""
    return compare_dumps(a, b, out, allowed, partial(compare_mapped, compare_ranks))
