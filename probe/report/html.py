"""``report.html``: the verdict for people, in one file that needs no network."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from probe.compare import Entry
from probe.report.chart import MOST_LINES, Point, chart
from probe.report.environments import environments
from probe.report.growth import JUMP_IN_WORDS, growth_of, jumps
from probe.report.picture import step_map
from probe.report.verdict import CheckResult, last_line
from probe.store.writer import write_atomic

ROWS = 200
"""Most rows of one table: what matters is at its top; ``verdict.json`` counts the rest."""
GROWTH_ROWS = 100
"""Most rows of the table of errors; the charts show all steps."""


def write_report(result: CheckResult, document: dict[str, Any], folder: Path) -> Path:
    """Writes ``report.html`` and returns its path.

    Args:
        result: What was found.
        document: The content of ``verdict.json``.
        folder: The check's folder.
    """
    environment = Environment(
        loader=PackageLoader("probe.report", "."),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    page = environment.get_template("report.html.j2").render(
        title=folder.name,
        document=document,
        headline=last_line(document, None),
        story=_story(result, document),
        map=step_map(result.key_data),
        entries=_entries(result),
        entries_left_out=max(0, result.key_data.differences - ROWS) if result.key_data else 0,
        growth=_growth(result),
        layers=_layers(result),
        layers_left_out=max(0, len(result.layers.differences) - ROWS) if result.layers else 0,
        environment=_environment(result),
        log_tail=result.log_tail,
    )
    path = folder / "report.html"
    write_atomic(path, page.encode(errors="backslashreplace"))  # a path may hold what is not UTF-8
    return path


def _story(result: CheckResult, document: dict[str, Any]) -> list[tuple[str, str]]:
    """What was run, what was found, why, and what to do, one line each."""
    cost, key_data = document["cost"], document["key_data"]
    lines = [
        ("What was run", f"{cost['trainer_steps']} training steps in {len(result.runs)} runs, {cost['seconds']} s")
    ]
    lines.append(("Key data", f"{key_data['compared']} records compared, {_differences(key_data)}"))
    trace = document["trace"]
    if trace["compared"] is not None:
        lines.append(("Traces", f"{trace['compared']} events compared, {_differences({**trace, 'unreadable': 0})}"))
    first = document["key_data"]["first"]
    if first is not None:
        where = (
            f"{first['tag']} at step {first['step']}, rank {_ranks(first['rank'])}, micro-step {first['micro_step']}"
        )
        stage = result.first_key_data.stage if result.first_key_data else None
        lines.append(
            ("First difference", f"{where}, computed in {stage}" if stage else f"{where}; no model computes it")
        )
    elif result.first is not None:
        place = result.first
        where = f"{place.name} ({place.event}) at step {place.step}, rank {_ranks(list(place.rank))}"
        lines.append(("First difference", f"{where}, in {place.stage or 'no stage'}"))
    if result.first is not None:
        name = f"{result.cause.name}: " if result.cause.name else ""
        lines.append(("Cause", f"{name}{result.cause.explanation}"))
    if result.reproduced is not None:
        lines.append(("Second pair", _reproduction(result)))
    if result.error:
        lines.append(("No verdict", result.error))
    lines += [("Note", note) for note in result.notes]
    return lines


def _differences(key_data: dict[str, Any]) -> str:
    counted = [f"{key_data[what]} {what}" for what in ("different", "missing", "extra", "unreadable") if key_data[what]]
    return ", ".join(counted) or "all the same"


def _ranks(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)


def _reproduction(result: CheckResult) -> str:
    if result.reproduced:
        return "runs c and d differed too"
    side = f"; they side with {result.sides_with}" if result.sides_with else ""
    return f"not reproduced: runs c and d agree with each other{side}"


def _entries(result: CheckResult) -> list[dict[str, Any]]:
    if result.key_data is None:
        return []
    return [_entry(entry) for entry in result.key_data.differing[:ROWS]]


def _entry(entry: Entry) -> dict[str, Any]:
    record = entry.record
    name = f"{record.tag}.{record.path}" if record.path else record.tag
    row = {"entry": entry, "record": record, "name": name, "detail": entry.problem or "", "difference": None}
    if entry.a is None or entry.b is None:
        row["detail"] = "only in run a" if entry.b is None else "only in run b"
    elif entry.difference is not None:
        row["difference"] = entry.difference
    return row


def _growth(result: CheckResult) -> dict[str, Any] | None:
    """The error by step: as lines of the largest relative error and of 1 - cosine, and as a table."""
    rows = growth_of(result.key_data) if result.key_data else []
    if not rows:
        return None
    found = jumps(rows)
    jump = found[0] if found else None
    relative: dict[str, list[Point]] = {}
    angle: dict[str, list[Point]] = {}
    for row in rows:
        known = row.cosine is not None and not math.isnan(row.cosine)
        relative.setdefault(row.tag, []).append((row.step, row.max_relative))
        angle.setdefault(row.tag, []).append((row.step, 1 - row.cosine if known and row.cosine is not None else None))
    return {
        "charts": [
            ("Largest relative error", chart(relative, jump.step if jump else None)),
            ("1 − cosine", chart(angle, jump.step if jump else None)),
        ],
        "jump": jump,
        "later": found[1:MOST_LINES],
        "definition": JUMP_IN_WORDS,
        "rows": [row.as_dict() for row in rows[:GROWTH_ROWS]],
        "left_out": max(0, len(rows) - GROWTH_ROWS),
    }


def _layers(result: CheckResult) -> list[dict[str, Any]]:
    if result.layers is None:
        return []
    return [
        {
            "stage": difference.window.stage,
            "rank": difference.window.rank,
            "kind": difference.event.kind,
            "name": difference.full_name,
            "call": difference.event.call,
            "status": difference.status,
        }
        for difference in result.layers.differences[:ROWS]
    ]


def _environment(result: CheckResult) -> list[tuple[str, str, bool]]:
    """Every value of the runs' environments, flat; one row where all runs agree, else one saying how they differ."""
    found: dict[str, dict[str, str]] = {}
    for run, environment in environments(result.runs).items():
        for key, value in _flat(environment):
            found.setdefault(key, {})[run] = value
    rows = []
    for key, values in found.items():
        agree = len(set(values.values())) == 1
        text = next(iter(values.values())) if agree else "; ".join(f"{run}: {value}" for run, value in values.items())
        rows.append((key, text, agree))
    return rows


def _flat(value: Any, path: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for key, child in value.items() for row in _flat(child, f"{path}.{key}" if path else str(key))]
    return [(path, json.dumps(value, ensure_ascii=False))]
