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
from probe.language import join, recall, said, tell, verdict_word
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
    cause: Cause = field(default_factory=lambda: Cause("none", None, tell("the comparison did not get that far")))
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
                note = tell(
                    "rank {rank}: the random states of {names} differ, and nothing drew from them in either run: they"
                    " do not count; seed them",
                    rank=found.rank,
                    names=", ".join(found.idle),
                )
                self.notes.append(note)
        unlike_layers = self.layers is not None and (self.layers.differences or self.layers.problems)
        if self.verdict == "divergent" and self.key_data is not None and not unlike_layers:
            self.equivalent = equivalent_entries(self.key_data, traces)
            if self.equivalent:
                self.verdict = "equivalent"

    def judge_last_layers(self, last: LayerComparison) -> None:
        """Takes in how the layers of the first pair's last step compare: without them, weights are not known.

        Args:
            last: The windows of ``a`` against those of ``b``.
        """
        self.layers = last if last.compared else None
        if last.differences:
            self.verdict = "divergent"
        elif self.key_data is not None and (last.problems or not last.compared):
            lacking = tell("no layers of a last step were dumped in both runs: equal samples are not equal weights")
            self.key_data.problems += last.problems or [lacking]
            self.verdict = self.key_data.verdict

    def conclude(self, conclusion: Conclusion) -> None:
        """Takes in the first difference and its cause."""
        self.first, self.cause = conclusion.first, conclusion.cause
        self.reproduced, self.sides_with = conclusion.reproduced, conclusion.sides_with
        self.notes += conclusion.notes
        if self.trace_answer is None or self.first != self.trace_answer.first:
            return
        if self.equivalent:
            only = join(" and ", sorted({entry["only"] for entry in self.equivalent}))
            why = tell("only {only} differ, and every later event and all weights are the same", only=only)
            self.cause = Cause("none", self.first.name, why)
        environment = [
            difference.key
            for difference in (self.configurations.different if self.configurations else ())
            if difference.key.startswith("environment.")
        ]
        if environment and not self.equivalent:
            keys = join(", ", environment[:3])
            keys += tell(" and {more} more", more=len(environment) - 3) if len(environment) > 3 else ""
            self.notes.append(tell("the environments differ, a likely reason: {keys}", keys=keys))

    def judge_experiments(self) -> None:
        """Takes in how the two experiments differ: two unlike ones, or ones not known, are never identical."""
        found = self.configurations
        if found is None:
            return
        self.notes += found.notes
        if found.error is not None:
            self.verdict, self.error = "inconclusive", found.error
            self.cause = Cause("none", None, tell("the two runs were not the same experiment"))
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
    notes: list[str] = [
        tell(
            "{folder}: has no index, as what msprobe's SingleSave writes: that converts to float32 and keeps no"
            " digest, so integers above 2^24, float64 and the original dtypes may be lost; what is the same here is the"
            " same as stored",
            folder=dump.folder,
        )
        for dump in (a, b)
        if dump.ranks and dump.digest_algorithm is None
    ]
    if (step := key_data.compared_to_step) is not None:
        notes.append(
            tell("a dump is incomplete: both have whole data up to the end of step {step}", step=step)
            if step >= 0
            else tell("a dump is incomplete: both have whole data within step 0 only")
        )
    return [*dict.fromkeys(recall(note) for note in [*notes_of(a.folder), *notes_of(b.folder)]), *notes]


def write_verdict(document: dict[str, Any], folder: Path) -> None:
    """Writes ``verdict.json`` into a check's folder."""
    write_json(folder / "verdict.json", document)


def last_line(document: dict[str, Any], report: Path | None) -> str:
    """The last line that a person sees, in the language that is spoken here: verdict, first cause, report."""
    parts = [verdict_word(document["verdict"])]
    first, cause = document["first"], document["cause"]
    if document["error"]:
        parts.append(recall(document["error"]))
    elif first is not None and document["checkpoint"] is not None:
        found = document["checkpoint"]["parameters"][0]
        counts = document["key_data"]
        differing = counts["different"] + counts["missing"] + counts["extra"]
        how = recall(found["how"])
        parts.append(
            tell("{name}: {how}; first of {differing} that differ", name=found["name"], how=how, differing=differing)
        )
    elif first is not None:
        what = cause["name"] or first["name"]
        stages = [str(first["stage"] or tell("no stage"))]
        if first["stage"] is None and document["layers"]["first"] == first["name"]:
            stages = []  # a dump of msprobe's own knows none
        place = tell("step {step}", step=first["step"])
        for part in [*_ranks(first["rank"]), *stages]:
            place = tell("{place}, {part}", place=place, part=part)
        parts.append(tell("{place}, {name} ({kind})", place=place, name=what, kind=cause["kind"]))
    elif document["verdict"] == "identical":
        layers = document["layers"]["compared"]
        records, events = document["key_data"]["compared"], document["trace"]["compared"]
        of_checkpoint = document["checkpoint"] is not None
        many = tell("{count} records", count=records)
        many = tell("{count} parameters and values", count=records) if of_checkpoint else many
        counted = [many] * bool(records) + [tell("{count} layer events", count=layers)] * bool(layers)
        counted += [tell("{count} traced events", count=events)] * bool(events)
        exact = document["certainty"]["level"] == "exact"
        how = tell("bit for bit") if exact else tell("by their checksums")
        parts.append(tell("all {counted} are the same {how}", counted=join(" and ", counted), how=how))
    elif document["not_compared"]:
        parts.append(recall(str(document["not_compared"][0])))
    if report is not None:
        parts.append(tell("report {report}", report=report))
    return " ".join(said(join("; ", parts)).split())


def _ranks(ranks: list[int]) -> list[str]:
    """Which ranks a person is told of: none where there is but the first."""
    if ranks == [0]:
        return []
    named = ", ".join(map(str, ranks[:_RANKS_NAMED])) + ("…" if len(ranks) > _RANKS_NAMED else "")
    return [tell("rank {ranks}", ranks=named) if len(ranks) == 1 else tell("ranks {ranks}", ranks=named)]


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
            tell(
                "{tag}, step {step}, rank {rank}, micro-step {micro_step}: {problem}",
                tag=entry.record.tag,
                step=entry.step,
                rank=entry.rank,
                micro_step=entry.record.micro_step,
                problem=entry.problem or tell("absent from the other run, which is incomplete"),
            )
            for entry in result.key_data.entries
            if entry.status in ("unreadable", "not_compared")
        ][:LISTED]
        more = result.key_data.counts["unreadable"] + result.key_data.counts["not_compared"] - len(listed)
        found += [*result.key_data.problems, *listed, *([tell("{more} more records", more=more)] if more > 0 else [])]
    if result.layers is not None:
        found += result.layers.problems
    if result.traces is not None:
        found += [problem for problem in result.traces.problems[:LISTED] if problem not in found]
        if (more := result.traces.total("not_compared")) > 0:
            found.append(
                tell("{count} events: absent from the trace of the other run, which is incomplete", count=more)
            )
    if result.configurations is not None and result.configurations.damaged:
        found += result.configurations.not_compared
    return found


def _path(path: Path, base: Path | None) -> str:
    return str(path.absolute()) if base is None else path.absolute().relative_to(base.absolute()).as_posix()
