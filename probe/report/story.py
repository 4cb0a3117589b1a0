"""The story of a check in five lines: what was run, what differs first, why, whether that holds, and what to do."""

from __future__ import annotations

from typing import Any

from probe.language import Text, counted, join, tell
from probe.report.advice import advice
from probe.report.certainty import level_word
from probe.report.verdict import CheckResult

Lines = list[tuple[str, str]]


def story(result: CheckResult, document: dict[str, Any]) -> Lines:
    """The five lines; each says something, whatever the verdict.

    Args:
        result: What was found.
        document: The content of ``verdict.json``.
    """
    return [
        (tell("What was run"), _run(document)),
        (tell("First difference"), _first(result, document)),
        (tell("Cause"), _cause(result, document)),
        (tell("Confirmed"), _confirmed(result, document)),
        (tell("What to do"), advice(document)),
    ]


def details(result: CheckResult, document: dict[str, Any]) -> Lines:
    """What else is known, one line each."""
    key_data, trace = document["key_data"], document["trace"]
    compared = {"count": key_data["compared"], "found": differences(key_data)}
    lines: Lines = [(tell("Key data"), tell("{count} records compared, {found}", **compared))]
    if document["checkpoint"] is not None:
        term = tell("Checkpoints, {order}", order=document["checkpoint"]["order"])
        lines = [(term, tell("{count} parameters and values compared, {found}", **compared))]
    if not key_data["compared"] and (trace["compared"] or document["layers"]["compared"]):
        lines = []  # the traces or layers are all there is
    if trace["compared"] is not None:
        found = differences({**trace, "unreadable": 0})
        lines.append((tell("Traces"), tell("{count} events compared, {found}", count=trace["compared"], found=found)))
    if key_data["first"] is not None and not _is_record(result):
        lines.append((tell("First record"), _record(result, key_data["first"])))
    if document["certainty"]["level"] not in ("exact", None):
        sure = document["certainty"]
        lines.append((tell("Certainty"), tell("{level}: {text}", level=level_word(sure["level"]), text=sure["text"])))
    if result.error:
        lines.append((tell("No verdict"), result.error))
    return lines + [(tell("Note"), note) for note in result.notes]


def _run(document: dict[str, Any]) -> str:
    runs = [run for run, path in document["runs"].items() if path]
    cost, compared = document["cost"], document["key_data"]["compared"]
    events = document["trace"]["compared"]
    if document["checkpoint"] is not None:
        formats = document["checkpoint"]["formats"]
        return tell(
            "two checkpoints ({a}, {b}): {compared} compared, {seconds} s",
            a=formats["a"], b=formats["b"], compared=compared, seconds=cost["seconds"],
        )  # fmt: skip
    trained = tell("compared")
    if cost["trainer_steps"]:
        trained = tell("{steps} training steps in {runs} runs", steps=cost["trainer_steps"], runs=len(runs))
    layers = document["layers"]["compared"] if not compared and not events else None
    seen = join(
        " and ",
        [
            *[tell("{count} records", count=compared)] * bool(compared or not (events or layers)),
            *[tell("{count} traced events", count=events)] * bool(events),
            *[tell("{count} layer events", count=layers)] * bool(layers),
        ],
    )
    said = tell("{trained}, {seen}, {seconds} s", trained=trained, seen=seen, seconds=cost["seconds"])
    return tell("runs {runs}: {said}", runs=join(", ", runs), said=said) if runs else said


def _first(result: CheckResult, document: dict[str, Any]) -> str:
    record, place = document["key_data"]["first"], result.first
    if document["checkpoint"] is not None and place is not None:
        found = document["checkpoint"]["parameters"][0]
        return tell("{name}: {how}", name=found["name"], how=found["how"])
    if place is None or _is_record(result):
        return tell("none was found") if record is None else _record(result, record)
    return tell(
        "{name} ({event}) at step {step}, rank {ranks}, micro-step {micro_step}, in {stage}",
        name=place.name,
        event=place.event,
        step=place.step,
        ranks=_ranks(list(place.rank)),
        micro_step=place.micro_step,
        stage=place.stage or tell("no stage"),
    )


def _is_record(result: CheckResult) -> bool:
    """Whether the first difference is a record of the key data."""
    return result.first is None or (result.first.tag is not None and result.trace_answer is None)


def _record(result: CheckResult, first: dict[str, Any]) -> str:
    where = tell(
        "{tag} at step {step}, rank {ranks}, micro-step {micro_step}",
        tag=first["tag"],
        step=first["step"],
        ranks=_ranks(first["rank"]),
        micro_step=first["micro_step"],
    )
    stage = result.first_key_data.stage if result.first_key_data else None
    if stage:
        return tell("{where}, computed in {stage}", where=where, stage=stage)
    return tell("{where}; no model computes it", where=where)


def _cause(result: CheckResult, document: dict[str, Any]) -> str:
    if result.first is None:
        same = document["verdict"] == "identical"
        alike = tell("everything that was recorded is the same")
        return alike if same else result.error or result.cause.explanation
    if not result.cause.name:
        return result.cause.explanation
    return tell("{name}: {explanation}", name=result.cause.name, explanation=result.cause.explanation)


def _confirmed(result: CheckResult, document: dict[str, Any]) -> str:
    if result.reproduced is None and document["verdict"] != "divergent":
        return tell("nothing to confirm")
    if result.reproduced is None and document["checkpoint"] is None:
        said = tell("two runs were compared, no second pair")
    elif result.reproduced is None:
        said = tell("two checkpoints were compared, no second pair")
    elif result.reproduced:
        said = tell("yes: runs c and d differed too")
    else:
        said = tell("not reproduced: runs c and d agree with each other")
        said += tell("; they side with {run}", run=result.sides_with) if result.sides_with else ""
    if document["replay"] is None:
        return said
    if why := document["replay"].get("why"):
        return tell("{said}; not replayed alone: {why}", said=said, why=why)
    return tell("{said}; replay: {result}", said=said, result=document["replay"]["result"])


def differences(counts: dict[str, Any]) -> Text:
    """How many differ in which way, for people."""
    found = [counted(counts[what], what) for what in ("different", "missing", "extra", "unreadable") if counts[what]]
    return join(", ", found) if found else tell("all the same")


def _ranks(ranks: list[int]) -> str:
    return ", ".join(str(rank) for rank in ranks)
