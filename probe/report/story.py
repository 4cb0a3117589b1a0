"""The story of a check in five lines: what was run, what differs first, why, whether that holds, and what to do."""

from __future__ import annotations

from typing import Any

from probe.report.advice import advice
from probe.report.verdict import CheckResult

Lines = list[tuple[str, str]]


def story(result: CheckResult, document: dict[str, Any]) -> Lines:
    """The five lines; each says something, whatever the verdict.

    Args:
        result: What was found.
        document: The content of ``verdict.json``.
    """
    return [
        ("What was run", _run(document)),
        ("First difference", _first(result, document)),
        ("Cause", _cause(result, document)),
        ("Confirmed", _confirmed(result, document)),
        ("What to do", advice(document)),
    ]


def details(result: CheckResult, document: dict[str, Any]) -> Lines:
    """What else is known, one line each."""
    key_data, trace = document["key_data"], document["trace"]
    what = "Key data", "records"
    if document["checkpoint"] is not None:
        what = f"Checkpoints, {document['checkpoint']['order']}", "parameters and values"
    lines = [(what[0], f"{key_data['compared']} {what[1]} compared, {_differences(key_data)}")]
    if not key_data["compared"] and (trace["compared"] or document["layers"]["compared"]):
        lines = []  # the traces or layers are all there is
    if trace["compared"] is not None:
        lines.append(("Traces", f"{trace['compared']} events compared, {_differences({**trace, 'unreadable': 0})}"))
    if key_data["first"] is not None and not _is_record(result):
        lines.append(("First record", _record(result, key_data["first"])))
    if document["certainty"]["level"] not in ("exact", None):
        lines.append(("Certainty", f"{document['certainty']['level']}: {document['certainty']['text']}"))
    if result.error:
        lines.append(("No verdict", result.error))
    return lines + [("Note", note) for note in result.notes]


def _run(document: dict[str, Any]) -> str:
    runs = [run for run, path in document["runs"].items() if path]
    cost, compared = document["cost"], document["key_data"]["compared"]
    events = document["trace"]["compared"]
    what = f"runs {', '.join(runs)}: " if runs else ""
    if document["checkpoint"] is not None:
        formats = document["checkpoint"]["formats"]
        return f"two checkpoints ({formats['a']}, {formats['b']}): {compared} compared, {cost['seconds']} s"
    trained = f"{cost['trainer_steps']} training steps in {len(runs)} runs" if cost["trainer_steps"] else "compared"
    layers = document["layers"]["compared"] if not compared and not events else None
    seen = " and ".join(
        [
            *[f"{compared} records"] * bool(compared or not (events or layers)),
            *[f"{events} traced events"] * bool(events),
            *[f"{layers} layer events"] * bool(layers),
        ]
    )
    return f"{what}{trained}, {seen}, {cost['seconds']} s"


def _first(result: CheckResult, document: dict[str, Any]) -> str:
    record, place = document["key_data"]["first"], result.first
    if document["checkpoint"] is not None and place is not None:
        found = document["checkpoint"]["parameters"][0]
        return f"{found['name']}: {found['how']}"
    if place is None or _is_record(result):
        return "none was found" if record is None else _record(result, record)
    ranks = _ranks(list(place.rank))
    where = f"{place.name} ({place.event}) at step {place.step}, rank {ranks}, micro-step {place.micro_step}"
    return f"{where}, in {place.stage or 'no stage'}"


def _is_record(result: CheckResult) -> bool:
    """Whether the first difference is a record of the key data."""
    return result.first is None or (result.first.tag is not None and result.trace_answer is None)


def _record(result: CheckResult, first: dict[str, Any]) -> str:
    where = f"{first['tag']} at step {first['step']}, rank {_ranks(first['rank'])}, micro-step {first['micro_step']}"
    stage = result.first_key_data.stage if result.first_key_data else None
    return f"{where}, computed in {stage}" if stage else f"{where}; no model computes it"


def _cause(result: CheckResult, document: dict[str, Any]) -> str:
    if result.first is None:
        same = document["verdict"] == "identical"
        return "everything that was recorded is the same" if same else result.error or result.cause.explanation
    name = f"{result.cause.name}: " if result.cause.name else ""
    return f"{name}{result.cause.explanation}"


def _confirmed(result: CheckResult, document: dict[str, Any]) -> str:
    if result.reproduced is None and document["verdict"] != "divergent":
        return "nothing to confirm"
    if result.reproduced is None:
        said = f"two {'runs' if document['checkpoint'] is None else 'checkpoints'} were compared, no second pair"
    elif result.reproduced:
        said = "yes: runs c and d differed too"
    else:
        side = f"; they side with {result.sides_with}" if result.sides_with else ""
        said = f"not reproduced: runs c and d agree with each other{side}"
    if document["replay"] is None:
        return said
    why = document["replay"].get("why")
    return f"{said}; not replayed alone: {why}" if why else f"{said}; replay: {document['replay']['result']}"


def _differences(counts: dict[str, Any]) -> str:
    counted = [f"{counts[what]} {what}" for what in ("different", "missing", "extra", "unreadable") if counts[what]]
    return ", ".join(counted) or "all the same"


def _ranks(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
