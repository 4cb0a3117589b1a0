"""``firstdiff compare``: two dump folders that exist already."""

from __future__ import annotations

import os
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
    worker_notes,
)
from probe.compare.entries import NOTHING_RECORDED
from probe.compare.rollouts import by_place, say_texts, text_note
from probe.errors import DumpError, UsageError
from probe.language import tell
from probe.locate import (
    Cause,
    Conclusion,
    SecondPair,
    cause_of_checkpoints,
    conclude,
    first_key_data,
    judge_samples,
    locate_trace,
)
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
from probe.store import layout
from probe.store.checkpoints import is_checkpoint
from probe.store.opened import Source, opened
from probe.store.reader import Dump, holds_records
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
        _claim(out, a, b)
    checkpoints = _are_checkpoints(a, b)
    with opened(a) as left, opened(b) as right:
        names = DumpNames({left.records: a, right.records: b, left.layers: a, right.layers: b})
        with names.in_errors():
            if checkpoints:
                result = _compare_checkpoints(left.layers, right.layers)
            else:
                result = _compare(left, right, allow_different, compare_records)
        result.runs, result.read_from = {"a": a, "b": b}, {"a": left.to_show, "b": right.to_show}
        if _real(a) == _real(b):
            result.notes.insert(0, tell("both dumps are the same folder"))
        if out is not None and not checkpoints:
            records = key_data_tables(left.records, right.records, out / "keydata")
            result.tables = [records, layer_tables(left.layers, right.layers, out / "layers")]
        names.put_into(result)
        if out is not None and result.key_data is not None and not checkpoints:
            result.summary = write_summary(result.key_data, out / "keydata")
        result.seconds = time.monotonic() - start
        document = verdict_document(result, None)
        if out is not None:
            write_verdict(document, out)
            write_report(result, document, out)
    return document


def _real(folder: Path) -> Path:
    """A folder's path without links; those that lead in a circle stay."""
    return Path(os.path.realpath(folder))


def _claim(out: Path, a: Path, b: Path) -> None:
    """Makes the folder for what is found.

    Raises:
        UsageError: It is not empty, lies inside a dump, or cannot be made.
    """
    if any(_real(out).is_relative_to(_real(dump)) for dump in (a, b)):
        raise UsageError(f"{out}: lies inside a dump that is to be compared; name another folder with --out")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"{out}: not an empty folder; name another with --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out}: the folder cannot be made ({error.strerror}); name another with --out") from error


def _are_checkpoints(a: Path, b: Path) -> bool:
    """Whether two checkpoints are to be compared, rather than two dumps.

    Raises:
        DumpError: One of them does not exist, or is a file of another kind.
        UsageError: One is a checkpoint, the other none.
    """
    for path in (a, b):
        if not path.exists():
            raise DumpError(f"{path}: no such dump folder or checkpoint")
    kinds = [not (holds_records(path) or window_folders(path)) and is_checkpoint(path) for path in (_real(a), _real(b))]
    if any(kinds) and not all(kinds):
        one, other = (a, b) if kinds[0] else (b, a)
        raise UsageError(f"{one}: is a checkpoint, and {other} is none; name two of a kind")
    for path in (a, b):
        if path.is_file() and not all(kinds) and path.suffix != ".jsonl":
            raise DumpError(f"{path}: is neither a dump folder nor a checkpoint")
    return all(kinds)


def _compare_checkpoints(a: Path, b: Path) -> CheckResult:
    """What two checkpoints hold."""
    found = compare_checkpoints(a, b)
    result = CheckResult(found.records.verdict, key_data=found.records, checkpoints=found)
    result.notes += [*found.a.notes, *found.b.notes]
    located = cause_of_checkpoints(found)
    result.conclude(
        Conclusion(*located) if located else Conclusion(None, Cause("none", None, tell("no difference was found")))
    )
    return result


def _compare(a: Source, b: Source, allow_different: Sequence[str], compare_records: RecordComparer) -> CheckResult:
    """What two dump folders that can be read hold."""
    dump_a, dump_b = a.read(), b.read()
    key_data = _compare_records(a, b, dump_a, dump_b, compare_records)
    layers = compare_layers(a.layers, b.layers)
    traces = compare_traces(a.records, b.records)
    has_layers = bool(layers.compared or layers.differences or layers.problems)
    if (has_layers or traces.compared or traces.problems) and NOTHING_RECORDED in key_data.problems:
        key_data.problems.remove(NOTHING_RECORDED)  # layers or traces alone are enough to compare
    files_a, files_b = by_place(a.rollouts), by_place(b.rollouts)
    say_texts(key_data, files_a, files_b)
    first = first_key_data(key_data)
    result = CheckResult(
        _verdict(key_data, layers, traces),
        key_data=key_data,
        first_key_data=first,
        layers=layers if has_layers else None,
    )
    result.notes += [*reservations(dump_a, dump_b, key_data), *reductions(a.records, b.records)]
    result.notes += worker_notes(a.records)
    result.notes += dict.fromkeys([*a.notes, *b.notes])
    if first is not None and a.rollouts and first.entry.record.path and first.entry.problem:
        result.notes.insert(0, text_note(first.entry))
    if has_layers and (places := (Place.of_root(a.layers), Place.of_root(b.layers)))[0] != places[1]:
        whole = tell("a whole dump")
        result.notes.append(tell("a is {a}, b {b}", a=places[0].words or whole, b=places[1].words or whole))
    result.judge_traces(traces)
    result.configurations = compare_configurations(a.records, b.records, allow_different)
    result.judge_experiments()
    if result.error is None:
        result.trace_answer = locate_trace(traces)
        earlier = first is not None and layers.first is not None and first.entry.step < layers.first.window.step
        second = SecondPair(key_data, layers, dump_a, traces, _RUNS) if has_layers and not earlier else None
        conclusion = conclude(first, key_data, dump_a, dump_b, second, result.trace_answer)
        if conclusion.first is None and (located := cause_of_layers(None, layers, _RUNS)) is not None:
            conclusion = Conclusion(*located)
        conclusion = judge_samples(conclusion, first, files_a, files_b)
        result.conclude(replace(conclusion, reproduced=None, sides_with=None, notes=[]))  # there is no second pair
    return result


def _compare_records(
    a: Source, b: Source, dump_a: Dump, dump_b: Dump, compare_records: RecordComparer
) -> KeyDataComparison:
    """How the records of two dumps compare; of a dump of layers alone nobody knows what its run saved."""
    for one, other in ((dump_a, dump_b), (dump_b, dump_a)):
        unknown = not one.ranks and one.steps_finished is None and not (one.folder / layout.DATA).exists()
        if unknown and other.ranks:
            return KeyDataComparison(
                problems=[tell("{folder}: holds no key data, {other} does", folder=one.folder, other=other.folder)]
            )
    if bool(a.rollouts) != bool(b.rollouts) and (dump_a.ranks or dump_b.ranks):
        one, other = (dump_a, dump_b) if a.rollouts else (dump_b, dump_a)
        return KeyDataComparison(
            problems=[
                tell(
                    "{folder}: holds samples of verl, {other} records of another kind",
                    folder=one.folder,
                    other=other.folder,
                )
            ]
        )
    return compare_records(dump_a, dump_b)


def _verdict(key_data: KeyDataComparison, layers: LayerComparison, traces: TraceComparison) -> Verdict:
    """What key data and layers say, and that something was compared."""
    if key_data.differences or layers.differences:
        return "divergent"
    others = layers.compared > 0 or traces.compared > 0
    only_others = not key_data.counts and not key_data.problems and others
    if layers.problems or (key_data.verdict == "inconclusive" and not only_others):
        return "inconclusive"
    return "identical"
