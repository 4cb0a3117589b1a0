"""``verdict.json``: what a check or a comparison found, for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from probe.compare import (
    CheckpointComparison,
    ConfigurationComparison,
    KeyDataComparison,
    LayerComparison,
    TraceComparison,
)
from probe.compare.trace_found import Status
from probe.locate import Cause, Conclusion, First, FirstKeyData, TraceAnswer, equivalent_entries
from probe.report.certainty import certainty
from probe.report.checkpoints import checkpoint_document
from probe.report.environments import environments
from probe.report.growth import growth_of, jumps
from probe.report.hints import hints_of
from probe.report.summary import summary_rows
from probe.report.tables import Tables
from probe.store.notes import notes_of
from probe.store.reader import Dump
from probe.store.writer import write_json
from probe.types import Verdict

FORMAT = 1
"""Version of ``verdict.json``."""
_RANKS_NAMED = 4
"""Most ranks that the last line names."""
LISTED = 1000
"""Most entries of one list; the rest is counted."""


@dataclass
class CheckResult:
    """Everything that a check found.

    Example:
        >>> CheckResult("inconclusive", error="run a: the trainer failed with exit status 3").first is None
        True
    """

    verdict: Verdict
    key_data: KeyDataComparison | None = None
    first_key_data: FirstKeyData | None = None
    first: First | None = None
    cause: Cause = field(default_factory=lambda: Cause("none", None, "the comparison did not get that far"))
    layers: LayerComparison | None = None
    checkpoints: CheckpointComparison | None = None
    """How two checkpoints compare; their values are the key data, too."""
    traces: TraceComparison | None = None
    """How the traces of ``a`` and ``b`` compare; None where neither has any."""
    trace_answer: TraceAnswer | None = None
    """The first difference of the traces."""
    equivalent: list[dict[str, Any]] = field(default_factory=list)
    """The differences from which nothing followed, when the verdict is ``equivalent``."""
    configurations: ConfigurationComparison | None = None
    """How the experiments of ``a`` and ``b`` differ; None where that was not compared."""
    reproduced: bool | None = None
    """Whether the second pair differed too; None when it was not run."""
    sides_with: str | None = None
    """When the second pair agrees: ``a`` or ``b``, whichever it equals at the first difference."""
    tables: list[Tables] = field(default_factory=list)
    summary: Path | None = None
    """Our own table of the key data."""
    runs: dict[str, Path] = field(default_factory=dict)
    """Dump folder of every run."""
    read_from: dict[str, Path] = field(default_factory=dict)
    """Where the dump of a run is read while it is unpacked; a run that is not named is read in ``runs``."""
    trainer_steps: int = 0
    """Training steps that were run and recorded."""
    recipe_steps: int = 0
    """Training steps that the documented recipe runs for the same answer: whole runs each time."""
    replay: dict[str, Any] | None = None
    """What running the captured module again, alone, says; None where it does not apply."""
    seconds: float = 0.0
    error: str | None = None
    """Why there is no verdict."""
    log_tail: str = ""
    """The end of a failed trainer's log."""
    notes: list[str] = field(default_factory=list)
    """What people should know beside the verdict."""

    def judge_traces(self, traces: TraceComparison) -> None:
        """Takes in how the traces compare: what they show counts beside the verdict that there is already.

        Args:
            traces: All ranks of ``a`` against those of ``b``.
        """
        if not traces.recorded:
            return
        self.traces = traces
        if traces.differences:
            self.verdict = "divergent"
        elif self.verdict == "identical" and not traces.whole:
            self.verdict = "inconclusive"
        for found in traces.ranks.values():
            if found.idle:
                states = f"rank {found.rank}: the random states of {', '.join(found.idle)} differ"
                self.notes.append(f"{states}, and nothing drew from them in either run: they do not count; seed them")
        unlike_layers = self.layers is not None and (self.layers.differences or self.layers.problems)
        if self.verdict == "divergent" and self.key_data is not None and not unlike_layers:
            self.equivalent = equivalent_entries(self.key_data, traces)
            if self.equivalent:
                self.verdict = "equivalent"

    def conclude(self, conclusion: Conclusion) -> None:
        """Takes in the first difference and its cause."""
        self.first, self.cause = conclusion.first, conclusion.cause
        self.reproduced, self.sides_with = conclusion.reproduced, conclusion.sides_with
        self.notes += conclusion.notes
        if self.trace_answer is None or self.first != self.trace_answer.first:
            return
        if self.equivalent:
            only = " and ".join(sorted({entry["only"] for entry in self.equivalent}))
            why = f"only {only} differ, and every later event and all weights are the same"
            self.cause = Cause("none", self.first.name, why)
        environment = [
            difference.key
            for difference in (self.configurations.different if self.configurations else ())
            if difference.key.startswith("environment.")
        ]
        if environment and not self.equivalent:
            more = f" and {len(environment) - 3} more" if len(environment) > 3 else ""
            self.notes.append(f"the environments differ, a likely reason: {', '.join(environment[:3])}{more}")

    def judge_experiments(self) -> None:
        """Takes in how the two experiments differ: two unlike ones, or ones not known, are never identical."""
        found = self.configurations
        if found is None:
            return
        self.notes += found.notes
        if found.error is not None:
            self.verdict, self.error = "inconclusive", found.error
            self.cause = Cause("none", None, "the two runs were not the same experiment")
        elif found.damaged and self.verdict in ("identical", "equivalent"):
            self.verdict = "inconclusive"


def verdict_document(result: CheckResult, base: Path | None) -> dict[str, Any]:
    """The content of ``verdict.json``. Keys that do not apply are null, never absent.

    Args:
        result: What was found.
        base: The check's folder, to which paths are relative; None makes them absolute.
    """
    key_data, layers = result.key_data, result.layers
    counts = key_data.counts if key_data else {}
    made = [path for tables in result.tables for path in tables.made]
    document = {
        "format": FORMAT,
        "verdict": result.verdict,
        "first": _first(result),
        "cause": result.cause.as_dict(),
        "certainty": certainty(key_data, layers, result.traces),
        "key_data": {
            "first": _first_key_data(result.first_key_data),
            "compared": key_data.compared if key_data else 0,
            "different": counts.get("different", 0),
            "missing": counts.get("missing", 0),
            "extra": counts.get("extra", 0),
            "unreadable": counts.get("unreadable", 0),
            "not_compared": counts.get("not_compared", 0),
            "compared_to_step": key_data.compared_to_step if key_data else None,
            "summary": _summary(key_data) if key_data and not result.checkpoints else [],
        },
        "configurations": _configurations(result.configurations),
        **_growth(None if result.checkpoints else key_data),
        "trace": _trace(result),
        "checkpoint": checkpoint_document(result.checkpoints),
        "layers": {
            "first": layers.first.full_name if layers and layers.first else None,
            "reproduced": result.reproduced,
            "sides_with": result.sides_with,
            "compared": layers.compared if layers else None,
            "different": len(layers.differences) if layers else None,
        },
        "replay": result.replay,
        "equivalent": result.equivalent[:LISTED],
        "not_compared": _not_compared(result),
        "tables": {
            "summary": _path(result.summary, base) if result.summary else None,
            "made": [_path(path, base) for path in made],
            "not_made": [sentence for tables in result.tables for sentence in tables.not_made],
        },
        "cost": {
            "trainer_steps": result.trainer_steps,
            "documented_recipe_steps": result.recipe_steps,
            "seconds": round(result.seconds, 1),
        },
        "runs": {name: _path(result.runs[name], base) if name in result.runs else None for name in "abcd"},
        "error": result.error,
        "notes": result.notes,
    }
    return {**document, "hints": hints_of(document, environments(result.runs).values())}


def reservations(a: Dump, b: Dump, key_data: KeyDataComparison) -> list[str]:
    """What limits the verdict: what the trainers noted, converted records, runs that ended early."""
    notes = [
        f"{dump.folder}: has no index, as what msprobe's SingleSave writes: that converts to float32 and keeps no"
        " digest, so integers above 2^24, float64 and the original dtypes may be lost; what is the same here is the"
        " same as stored"
        for dump in (a, b)
        if dump.ranks and dump.digest_algorithm is None
    ]
    if (step := key_data.compared_to_step) is not None:
        reach = f"up to the end of step {step}" if step >= 0 else "within step 0 only"
        notes.append(f"a dump is incomplete: both have whole data {reach}")
    return [*dict.fromkeys([*notes_of(a.folder), *notes_of(b.folder)]), *notes]


def write_verdict(document: dict[str, Any], folder: Path) -> None:
    """Writes ``verdict.json`` into a check's folder."""
    write_json(folder / "verdict.json", document)


def last_line(document: dict[str, Any], report: Path | None) -> str:
    """The last line that a person sees: verdict, first cause, report."""
    parts = [str(document["verdict"])]
    first, cause = document["first"], document["cause"]
    if document["error"]:
        parts.append(document["error"])
    elif first is not None and document["checkpoint"] is not None:
        found = document["checkpoint"]["parameters"][0]
        counts = document["key_data"]
        differing = counts["different"] + counts["missing"] + counts["extra"]
        parts.append(f"{found['name']}: {found['how']}; first of {differing} that differ")
    elif first is not None:
        what = cause["name"] or first["name"]
        stages = [str(first["stage"] or "no stage")]
        if first["stage"] is None and document["layers"]["first"] == first["name"]:
            stages = []  # a dump of msprobe's own knows none
        place = [f"step {first['step']}", *_ranks(first["rank"]), *stages]
        parts.append(f"{', '.join(place)}, {what} ({cause['kind']})")
    elif document["verdict"] == "identical":
        layers = document["layers"]["compared"]
        records, events = document["key_data"]["compared"], document["trace"]["compared"]
        what = "records" if document["checkpoint"] is None else "parameters and values"
        counted = [f"{records} {what}"] * bool(records) + [f"{layers} layer events"] * bool(layers)
        counted += [f"{events} traced events"] * bool(events)
        how = "bit for bit" if document["certainty"]["level"] == "exact" else "by their checksums"
        parts.append(f"all {' and '.join(counted)} are the same {how}")
    elif document["not_compared"]:
        parts.append(str(document["not_compared"][0]))
    if report is not None:
        parts.append(f"report {report}")
    return " ".join("; ".join(parts).split())


def _ranks(ranks: list[int]) -> list[str]:
    """Which ranks a person is told of: none where there is but the first."""
    if ranks == [0]:
        return []
    named = ", ".join(map(str, ranks[:_RANKS_NAMED])) + ("…" if len(ranks) > _RANKS_NAMED else "")
    return [f"{'rank' if len(ranks) == 1 else 'ranks'} {named}"]


def _first(result: CheckResult) -> dict[str, Any] | None:
    """The first difference; a checkpoint has no step, rank or call."""
    if result.first is None:
        return None
    found = result.first.as_dict()
    return {**found, "step": None, "micro_step": None, "call": None} if result.checkpoints else found


def _first_key_data(first: FirstKeyData | None) -> dict[str, Any] | None:
    if first is None:
        return None
    record = first.entry.record
    return {
        "step": first.entry.step,
        "tag": record.tag,
        "rank": list(first.ranks),
        "micro_step": record.micro_step,
        "path": record.path or None,
        "status": first.entry.status,
    }


def _summary(key_data: KeyDataComparison) -> list[dict[str, Any]]:
    """Rows of the summary in which something is not the same."""
    return list(islice((row for row in summary_rows(key_data) if row["first"] is not None), LISTED))


def _configurations(found: ConfigurationComparison | None) -> dict[str, Any]:
    found = found or ConfigurationComparison()
    return {
        "compared": found.compared,
        "different": [asdict(difference) for difference in found.different],
        "different_left_out": found.unmeant + found.meant - len(found.different),
        "not_compared": found.not_compared,
    }


def _growth(key_data: KeyDataComparison | None) -> dict[str, Any]:
    """How the error grows: the first ``LISTED`` rows, and where it first jumps."""
    rows = growth_of(key_data) if key_data else []
    jump = next(iter(jumps(rows)), None)
    return {
        "growth": [row.as_dict() for row in rows[:LISTED]],
        "growth_left_out": max(0, len(rows) - LISTED),
        "growth_jump": jump.as_dict() if jump else None,
    }


def _trace(result: CheckResult) -> dict[str, Any]:
    """Events counted, and the first difference with what lies around it."""
    traces, answer = result.traces, result.trace_answer
    counted: tuple[Status, ...] = ("different", "missing", "extra", "not_compared", "not_observed")
    return {
        "compared": traces.compared if traces else None,
        "first_index": answer.index if answer else None,
        **{status: traces.total(status) if traces else None for status in counted},
        **(answer.as_dict() if answer else dict.fromkeys(("rank", "event", "before", "after", "hidden"))),
    }


def _not_compared(result: CheckResult) -> list[str]:
    found: list[str] = []
    if result.key_data is not None:
        listed = [
            f"{entry.record.tag}, step {entry.step}, rank {entry.rank}, micro-step {entry.record.micro_step}: "
            + (entry.problem or "absent from the other run, which is incomplete")
            for entry in result.key_data.entries
            if entry.status in ("unreadable", "not_compared")
        ][:LISTED]
        more = result.key_data.counts["unreadable"] + result.key_data.counts["not_compared"] - len(listed)
        found += [*result.key_data.problems, *listed, *([f"{more} more records"] if more > 0 else [])]
    if result.layers is not None:
        found += result.layers.problems
    if result.traces is not None:
        found += [problem for problem in result.traces.problems[:LISTED] if problem not in found]
        if (more := result.traces.total("not_compared")) > 0:
            found.append(f"{more} events: absent from the trace of the other run, which is incomplete")
    if result.configurations is not None and result.configurations.damaged:
        found += result.configurations.not_compared
    return found


def _path(path: Path, base: Path | None) -> str:
    return str(path.absolute()) if base is None else path.absolute().relative_to(base.absolute()).as_posix()
