"""``firstdiff compare``: two dump folders that exist already."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.compare import (
    KeyDataComparison,
    LayerComparison,
    TraceComparison,
    compare_checkpoints,
    compare_configurations,
    compare_layers,
    compare_on_this_machine,
    compare_traces,
)
from probe.compare.entries import NOTHING_RECORDED
from probe.errors import DumpError, UsageError
from probe.locate import Cause, Conclusion, SecondPair, cause_of_checkpoints, conclude, first_key_data, locate_trace
from probe.locate.cause import cause_of_layers
from probe.report import (
    CheckResult,
    DumpNames,
    key_data_tables,
    layer_tables,
    reservations,
    verdict_document,
    write_report,
    write_summary,
    write_verdict,
)
from probe.store.checkpoints import is_checkpoint
from probe.store.packing import unpacked
from probe.store.reader import Dump, holds_records, read_dump
from probe.store.reduction import reductions
from probe.store.windows import Place, window_folders
from probe.types import Verdict

_RUNS = ("a", "b")

RecordComparer = Callable[[Dump, Dump], KeyDataComparison]
"""Compares the key data of two runs."""


def compare_dumps(
    a: Path,
    b: Path,
    out: Path | None,
    allow_different: Sequence[str] = (),
    compare_records: RecordComparer = compare_on_this_machine,
) -> dict[str, Any]:
    """Compares what two dump folders hold.

    Args:
        a: A dump folder.
        b: The other.
        out: Receives verdict, report and tables; must be empty or absent. None writes nothing.
        allow_different: Keys of the experiment, or sections of them, that are meant to differ.
        compare_records: Compares the key data.

    Returns:
        The content of ``verdict.json``; its paths are absolute.

    Raises:
        DumpError: A folder does not exist or cannot be read, or ``out`` is not empty.
    """
    start = time.monotonic()
    if out is not None:
        if any(out.resolve().is_relative_to(dump.resolve()) for dump in (a, b)):
            raise UsageError(f"{out}: lies inside a dump that is to be compared; name another folder with --out")
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{out}: not an empty folder; name another with --out")
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{out}: the folder cannot be made ({error.strerror}); name another with --out") from error
    for path in (a, b):
        if not path.exists():
            raise DumpError(f"{path}: no such dump folder or checkpoint")
    checkpoints = _are_checkpoints(a, b)
    with unpacked(a) as left, unpacked(b) as right:
        names = DumpNames({left: a, right: b})
        with names.in_errors():
            if checkpoints:
                result = _compare_checkpoints(left, right)
            else:
                result = _compare(left, right, allow_different, compare_records)
        result.runs, result.read_from = {"a": a, "b": b}, {"a": left, "b": right}
        if a.resolve() == b.resolve():
            result.notes.insert(0, "both dumps are the same folder")
        if out is not None and not checkpoints:
            result.tables = [key_data_tables(left, right, out / "keydata"), layer_tables(left, right, out / "layers")]
        names.put_into(result)
        if out is not None and result.key_data is not None and not checkpoints:
            result.summary = write_summary(result.key_data, out / "keydata")
        result.seconds = time.monotonic() - start
        document = verdict_document(result, None)
        if out is not None:
            write_verdict(document, out)
            write_report(result, document, out)
    return document


def _are_checkpoints(a: Path, b: Path) -> bool:
    """Whether two checkpoints are to be compared, rather than two dumps.

    Raises:
        UsageError: One is a checkpoint, the other none.
    """
    kinds = [not (holds_records(path) or window_folders(path)) and is_checkpoint(path) for path in (a, b)]
    if any(kinds) and not all(kinds):
        one, other = (a, b) if kinds[0] else (b, a)
        raise UsageError(f"{one}: is a checkpoint, and {other} is none; name two of a kind")
    return all(kinds)


def _compare_checkpoints(a: Path, b: Path) -> CheckResult:
    """What two checkpoints hold."""
    found = compare_checkpoints(a, b)
    result = CheckResult(found.records.verdict, key_data=found.records, checkpoints=found)
    result.notes += [*found.a.notes, *found.b.notes]
    located = cause_of_checkpoints(found)
    result.conclude(
        Conclusion(*located) if located else Conclusion(None, Cause("none", None, "no difference was found"))
    )
    return result


def _compare(a: Path, b: Path, allow_different: Sequence[str], compare_records: RecordComparer) -> CheckResult:
    """What two dump folders that can be read hold."""
    dump_a, dump_b = _read(a), _read(b)
    key_data = compare_records(dump_a, dump_b)
    layers = compare_layers(a, b)
    traces = compare_traces(a, b)
    has_layers = bool(layers.compared or layers.differences or layers.problems)
    if (has_layers or traces.compared or traces.problems) and NOTHING_RECORDED in key_data.problems:
        key_data.problems.remove(NOTHING_RECORDED)  # layers or traces alone are enough to compare
    first = first_key_data(key_data)
    result = CheckResult(
        _verdict(key_data, layers, traces),
        key_data=key_data,
        first_key_data=first,
        layers=layers if has_layers else None,
    )
    result.notes += [*reservations(dump_a, dump_b, key_data), *reductions(a, b)]
    if has_layers and (places := (Place.of_root(a), Place.of_root(b)))[0] != places[1]:
        result.notes.append(f"a is {places[0].words or 'a whole dump'}, b {places[1].words or 'a whole dump'}")
    result.judge_traces(traces)
    result.configurations = compare_configurations(a, b, allow_different)
    result.judge_experiments()
    if result.error is None:
        result.trace_answer = locate_trace(traces)
        second = SecondPair(key_data, layers, dump_a, traces, _RUNS) if has_layers else None
        conclusion = conclude(first, key_data, dump_a, dump_b, second, result.trace_answer)
        if conclusion.first is None and (located := cause_of_layers(None, layers, _RUNS)) is not None:
            conclusion = Conclusion(*located)
        result.conclude(replace(conclusion, reproduced=None, sides_with=None, notes=[]))  # there is no second pair
    return result


def _read(folder: Path) -> Dump:
    """A dump folder; of one that msprobe's PrecisionDebugger alone wrote, whatever part of it, there are no records."""
    if not holds_records(folder) and window_folders(folder):
        return Dump(folder, complete=True)
    return read_dump(folder)


def _verdict(key_data: KeyDataComparison, layers: LayerComparison, traces: TraceComparison) -> Verdict:
    """What key data and layers say, and that something was compared."""
    if key_data.differences or layers.differences:
        return "divergent"
    others = layers.compared > 0 or traces.compared > 0
    only_others = not key_data.counts and not key_data.problems and others
    if layers.problems or (key_data.verdict == "inconclusive" and not only_others):
        return "inconclusive"
    return "identical"
