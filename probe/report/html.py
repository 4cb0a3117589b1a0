"""``report.html``: the verdict for people, in one file that needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from probe.compare import Entry
from probe.language import language, said, status_word, tell, verdict_word
from probe.report.chart import MOST_LINES, Point, chart
from probe.report.culprit import culprit
from probe.report.environments import environments
from probe.report.grid import MOST_ROWS, Grid, grid, plain, shown
from probe.report.growth import JUMP_IN_WORDS, Jump, growth_of, jumps
from probe.report.picture import condensed, step_map
from probe.report.story import details, story
from probe.report.verdict import CheckResult, last_line
from probe.store.writer import write_atomic

ROWS = 200
"""Most rows of one table: what matters is at its top; ``verdict.json`` counts the rest."""
MAP_ROWS, MAP_COLUMNS = 200, 120
"""Most rows and columns of the map; of more steps several share a column."""
_LANGUAGE_TAGS = {"en": "en", "zh": "zh-CN"}
_SAID_BY_SCRIPT = re.compile(r'\bsay\("([^"]+)"')
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
        finalize=_shown,
    )
    environment.globals["t"] = _told
    environment.filters["status"] = status_word
    environment.filters["verdict"] = verdict_word
    environment.filters["json"] = lambda value: json.dumps(value, ensure_ascii=False)
    style, script = (_part(name) for name in ("report.css", "report.js"))
    page = environment.get_template("report.html.j2").render(
        title=folder.name,
        document=document,
        lang=_LANGUAGE_TAGS[language()],
        policy=f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none';"
        " form-action 'none'",
        style=style,
        script=script,
        headline=last_line(document, None),
        story=story(result, document),
        details=details(result, document),
        hints=document["hints"],
        map=None if result.checkpoints else condensed(step_map(result.key_data, result.traces), MAP_ROWS, MAP_COLUMNS),
        span=_span,
        later_jumps=_later_jumps,
        words=_words_of_script(),
        **culprit(result),
        entries=_entries(result),
        entries_left_out=max(0, result.key_data.differences - ROWS) if result.key_data else 0,
        all_entries=_all_entries(result),
        growth=_growth(result),
        layers=_layers(result, ROWS),
        layers_left_out=max(0, len(result.layers.differences) - ROWS) if result.layers else 0,
        all_layers=_all_layers(result),
        environment=_environment(result),
        log_tail=result.log_tail,
    )
    path = folder / "report.html"
    write_atomic(path, page.encode(errors="backslashreplace"))  # a path may hold what is not UTF-8
    return path


def _part(name: str) -> Markup:
    """A file of the page that is put in as it is."""
    return Markup(resources.files("probe.report").joinpath(name).read_text(encoding="utf-8"))  # noqa: S704


def _digest(text: str) -> Markup:
    """How the page's policy allows a style or script: by its digest, and nothing else."""
    return Markup(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")  # noqa: S704


def _shown(value: Any) -> Any:
    return value if isinstance(value, Markup) else plain(shown(value))


def _told(template: str, **values: Any) -> Markup:
    """A sentence of the template, which may hold markup; its values may not."""
    translated = Markup(said(tell(template)))  # noqa: S704
    return translated.format(**{name: _shown(value) for name, value in values.items()}) if values else translated


def _span(steps: tuple[int, int]) -> str:
    """The steps of one column of the map."""
    return str(steps[0]) if steps[0] == steps[1] else tell("{first} to {last}", first=steps[0], last=steps[1])


def _later_jumps(found: list[Jump]) -> Markup:
    """The jumps after the first."""
    named = [_told("<code>{tag}</code> (step {step})", tag=jump.tag, step=jump.step) for jump in found]
    return Markup(said(tell(", "))).join(named)  # noqa: S704


def _words_of_script() -> Markup | None:
    """What the page's script says in another language; None for its own."""
    if language() == "en":
        return None
    words = {one: said(tell(one)) for one in sorted(set(_SAID_BY_SCRIPT.findall(_part("report.js"))))}
    return Markup(json.dumps(words, ensure_ascii=True))  # noqa: S704


def _entries(result: CheckResult) -> list[dict[str, Any]]:
    if result.key_data is None:
        return []
    return [_entry(entry, result.checkpoints is not None) for entry in result.key_data.differing[:ROWS]]


def _entry(entry: Entry, checkpoint: bool = False) -> dict[str, Any]:
    record = entry.record
    name = f"{record.tag}.{record.path}" if record.path else record.tag
    name = record.path if checkpoint else name
    row = {"entry": entry, "record": record, "name": name, "detail": entry.problem or "", "difference": None}
    if entry.a is None or entry.b is None:
        row["detail"] = tell("only in run a") if entry.b is None else tell("only in run b")
    elif entry.difference is not None:
        row["difference"] = entry.difference
    return row


def _growth(result: CheckResult) -> dict[str, Any] | None:
    """The error by step: as lines of the largest relative error and of 1 - cosine, and as a table."""
    rows = growth_of(result.key_data) if result.key_data and not result.checkpoints else []
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
            (tell("Largest relative error"), chart(relative, jump.step if jump else None)),
            (tell("1 − cosine"), chart(angle, jump.step if jump else None)),
        ],
        "jump": jump,
        "later": found[1:MOST_LINES],
        "definition": JUMP_IN_WORDS,
        "rows": [row.as_dict() for row in rows[:GROWTH_ROWS]],
        "left_out": max(0, len(rows) - GROWTH_ROWS),
    }


def _layers(result: CheckResult, most: int) -> list[dict[str, Any]]:
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
        for difference in result.layers.differences[:most]
    ]


def _all_entries(result: CheckResult) -> Grid | None:
    """All records that differ, where the table does not have them."""
    if result.key_data is None or len(result.key_data.differing) <= ROWS:
        return None
    rows = [_entry(entry, result.checkpoints is not None) for entry in result.key_data.differing[:MOST_ROWS]]
    columns: list[tuple[str, str]]
    columns = [(tell("step"), "4rem"), (tell("record"), "2fr"), (tell("rank"), "4rem"), (tell("micro-step"), "6rem"),
               (tell("status"), "7rem"), (tell("first at"), "1fr"), ("a", "1fr"), ("b", "1fr"),
               (tell("elements"), "1fr"), ("ULP", "7rem")]  # fmt: skip
    cells = []
    for row in rows:
        entry, found = row["entry"], row["difference"]
        values: list[Any] = [row["detail"] or None, None, None, None, None]
        if found is not None:
            counted = tell("{count} of {size}", count=found.count, size=found.size)
            values = [str(list(found.first_index)), *map(str, found.values), counted, found.max_ulp]
        cells.append(
            [entry.step, row["name"], entry.rank, row["record"].micro_step, status_word(entry.status), *values]
        )
    statuses = [row["entry"].status for row in rows]
    return grid("all-records", columns, cells, statuses, 0, max(0, result.key_data.differences - len(rows)))


def _all_layers(result: CheckResult) -> Grid | None:
    """All layer events that differ, where the table does not have them."""
    if result.layers is None or len(result.layers.differences) <= ROWS:
        return None
    rows = _layers(result, MOST_ROWS)
    columns = [(tell("stage"), "14rem"), (tell("event"), "9rem"), (tell("module or parameter"), "1fr"),
               (tell("call"), "4rem"), (tell("rank"), "4rem"), (tell("status"), "7rem")]  # fmt: skip
    keys = ("stage", "kind", "name", "call", "rank")
    cells = [[*(row[key] for key in keys), status_word(row["status"])] for row in rows]
    left_out = len(result.layers.differences) - len(rows)
    return grid("all-layers", columns, cells, [row["status"] for row in rows], 0, left_out)


def _environment(result: CheckResult) -> list[tuple[str, str, bool]]:
    """Every value of the runs' environments, flat; one row where all runs agree, else one saying how they differ."""
    found: dict[str, dict[str, str]] = {}
    for run, environment in environments(result.runs).items():
        try:
            content = _flat(environment)
        except RecursionError:
            continue
        for key, value in content:
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
