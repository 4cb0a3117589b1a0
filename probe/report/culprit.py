"""What the report shows of the culprit: events around the first difference, modules of its stage, its values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.language import status_word, tell
from probe.report.grid import Grid, grid
from probe.report.sides import Sides, sides_of_layers, sides_of_record, sides_of_trace
from probe.report.stage import SeenEvent, StageEvents, events_of_layers, events_of_traces
from probe.report.stage_map import BETWEEN
from probe.report.tree import Node, tree_of
from probe.report.verdict import CheckResult

BEFORE, AFTER = 20, 50
"""Events before and after the first difference that a page without its script shows."""
BRANCH = 120
"""Modules that it shows."""
_EVENT_COLUMNS = [(tell("event"), "5rem"), (tell("kind"), "8rem"), (tell("name"), "minmax(14rem, 3fr)"),
                  (tell("call"), "3rem"), (tell("micro-step"), "5rem"), (tell("class"), "minmax(7rem, 1fr)"),
                  (tell("note"), "minmax(5rem, 1fr)"), (tell("status"), "7rem")]  # fmt: skip
_TREE_COLUMNS = [(tell("module"), "minmax(20rem, 3fr)"), (tell("class"), "1fr"), (tell("events"), "5rem"),
                 (tell("differ"), "2fr")]  # fmt: skip


def culprit(result: CheckResult) -> dict[str, Any]:
    """What the page's template draws of it.

    Args:
        result: What was found.
    """
    found = _stage_events(result)
    nodes = tree_of(found) if found is not None else []
    first_node = next((number for number, node in enumerate(nodes) if node.first), None)
    return {
        "events": _events(found) if found is not None and found.source == "trace" else None,
        "around": _around(found) if found is not None else [],
        "first_event": found.first if found is not None else None,
        "events_cut": found.cut if found is not None else False,
        "where": _where(found),
        "tree": _tree(nodes, first_node) if nodes else None,
        "branch": _branch(nodes, first_node),
        "tree_stage": tell(
            "{stage}, step {step}, rank {rank}",
            stage=found.stage or tell("no stage"),
            step=found.step,
            rank=found.rank,
        )
        if found
        else "",  # fmt: skip
        "sides": _sides(result, found),
    }


def _stage_events(result: CheckResult) -> StageEvents | None:
    answer, traces = result.trace_answer, result.traces
    if answer is not None and traces is not None and answer.rank in traces.ranks:
        return events_of_traces(traces.ranks[answer.rank])
    if result.layers is None:
        return None
    pair = _layer_runs(result)
    return None if pair is None else events_of_layers(result.layers, [folder for _, folder in pair])


def _layer_runs(result: CheckResult) -> tuple[tuple[str, Path], tuple[str, Path]] | None:
    """The runs whose layers were compared: ``c`` and ``d`` of a check, else the two dumps."""
    for one, two in (("c", "d"), ("a", "b")):
        if one in result.runs and two in result.runs:
            return (one, _folder(result, one)), (two, _folder(result, two))
    return None


def _folder(result: CheckResult, run: str) -> Path:
    return result.read_from[run] if run in result.read_from else result.runs[run]


def _sides(result: CheckResult, found: StageEvents | None) -> list[Sides]:
    of_trace = sides_of_trace(found, result.first) if found is not None and found.source == "trace" else None
    pair = _layer_runs(result)
    of_layers = sides_of_layers(result.layers, pair) if pair is not None else None
    of_record = None
    wanted = of_layers is None or result.first is None or result.first.event in ("data", "weights")
    if wanted and result.first_key_data is not None and {"a", "b"} <= set(result.runs):
        folders = _folder(result, "a"), _folder(result, "b")
        of_record = sides_of_record(result.first_key_data.entry, folders)
    return [sides for sides in (of_trace, of_layers, of_record) if sides is not None]


def _events(found: StageEvents) -> Grid:
    rows = [_event_row(event) for event in found.events]
    return grid("stage-events", _EVENT_COLUMNS, rows, [event.status for event in found.events], found.first)


def _event_row(event: SeenEvent) -> list[Any]:
    place = [event.index, event.kind, event.name, event.call, event.micro_step, event.module]
    return [*place, event.note, status_word(event.status)]


def _around(found: StageEvents) -> list[tuple[int, SeenEvent]]:
    at = found.first or 0
    return list(enumerate(found.events))[max(0, at - BEFORE) : at + AFTER + 1]


def _where(found: StageEvents | None) -> str:
    if found is None:
        return ""
    return tell(
        "Rank {rank}, step {step}, {stage}: {count} events of runs a and b",
        rank=found.rank, step=found.step, stage=found.stage or BETWEEN, count=len(found.events),
    )  # fmt: skip


def _tree(nodes: list[Node], first: int | None) -> Grid:
    rows = [["  " * node.depth + node.label, node.module, node.events, ", ".join(node.differing)] for node in nodes]
    return grid("modules-of-stage", _TREE_COLUMNS, rows, [node.status for node in nodes], first)


def _branch(nodes: list[Node], first: int | None) -> list[Node]:
    """The modules around the first difference, and all that lead to it."""
    if len(nodes) <= BRANCH:
        return nodes
    at = first or 0
    near = range(max(0, at - BRANCH // 2), at + BRANCH // 2)
    return [node for number, node in enumerate(nodes) if node.leads or number in near]
