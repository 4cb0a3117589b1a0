"""What a page of an orchestrator shows of a check: a summary in markdown, and the rows of a table.

Names, values and logs come from trainers and from folders that anybody may have named: none of them makes markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from probe.language import recall, said, status_word, tell, verdict_word
from probe.report.advice import advice
from probe.report.story import differences

MOST_ROWS = 100
"""Most rows of the table; ``verdict.json`` has the rest."""
_IN_ADDRESS = "%/:?#[]@!$&'*+,;=~"
_LONGEST = 300
_LOG_LINES = 20
_MOST_NOTES = 10
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+|~!<>&$^:@.-])")


def markdown_summary(
    document: dict[str, Any], title: str, place: str, report_url: str | None = None, picture: str | None = None
) -> str:
    """The verdict, the first difference, its cause, what to do next and the bill: complete without any other file.

    Args:
        document: The content of ``verdict.json``.
        title: What was checked.
        place: Where the check's folder is: host and path.
        report_url: Where the report can be opened; None where nobody knows.
        picture: Address of a picture of the map; None without one.
    """
    verdict = said(verdict_word(document["verdict"]))
    lines = [said(tell("# {verdict}: {title}", verdict=escape(verdict[:1].upper() + verdict[1:]), title=escape(title)))]
    lines += ["", *(_point(term, text) for term, text in _points(document))]
    report = "report.html"
    lines.append(
        _point(tell("Report"), f"[{report}]({report_url})")
        if report_url
        else _point(tell("Report"), tell("{report} in {place}", report=report, place=code(place)))
    )
    if report_url:
        lines.append(_point(tell("Folder"), code(place)))
    lines += [_point(tell("Note"), escape(recall(note))) for note in document["notes"][:_MOST_NOTES]]
    if picture is not None:
        lines += ["", f"![{said(tell('Map of steps and tags'))}]({picture})"]
    return "\n".join(lines) + "\n"


def log_block(tail: str) -> str:
    """The end of a trainer's log as a block of code; nothing without one."""
    if not tail.strip():
        return ""
    lines = [_printable(line)[:_LONGEST] for line in tail.splitlines()[-_LOG_LINES:]]
    fence = "`" * max(3, 1 + _longest_run("\n".join(lines)))
    return "\n".join(["", said(tell("The end of the trainer's log:")), "", f"{fence}text", *lines, fence, ""])


def difference_rows(document: dict[str, Any]) -> list[dict[str, str | int]]:
    """The first differences by step and tag, for a table: text and whole numbers only.

    Args:
        document: The content of ``verdict.json``.
    """
    rows: list[dict[str, str | int]] = []
    for row in document["key_data"]["summary"][:MOST_ROWS]:
        first = row["first"]
        rows.append(
            {
                said(tell("step")): row["step"],
                said(tell("tag")): _cell(row["tag"]),
                said(tell("what")): _cell(status_word(first["status"])),
                said(tell("ranks")): ", ".join(str(rank) for rank in row["ranks"]),
                said(tell("same")): row["same"],
                said(tell("differ")): row["different"] + row["missing"] + row["extra"],
                said(tell("first index")): _cell(first["index"]),
                "a": _cell(first["a"]),
                "b": _cell(first["b"]),
                said(tell("largest absolute error")): _cell(row["max_absolute"]),
                "ULP": _cell(row["max_ulp"]),
            }
        )
    return rows


def report_address(template: str, **names: str) -> str:
    """The report's address by ``check.report_url``.

    Example:
        >>> report_address("https://reports.example.org/{check}/report.html", check="demo 1")
        'https://reports.example.org/demo%201/report.html'
    """
    for name, value in names.items():
        template = template.replace(f"{{{name}}}", quote(value, safe="/" if name == "path" else ""))
    return quote(template, safe=_IN_ADDRESS)


def code(text: str) -> str:
    """Text as markdown code: nothing in it is markup."""
    shown = _printable(text)
    shown = shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…"
    fence = "`" * (1 + _longest_run(shown))
    return f"{fence} {shown} {fence}" if "`" in shown or not shown.strip() else f"{fence}{shown}{fence}"


def escape(text: str) -> str:
    """Text as markdown text, in the language that is spoken here: nothing in it is markup."""
    shown = _printable(" ".join(said(text).split()))
    return _SPECIAL.sub(r"\\\1", shown if len(shown) <= 4 * _LONGEST else shown[: 4 * _LONGEST - 1] + "…")


def _point(term: str, text: str) -> str:
    """One line of the summary."""
    return said(tell("- **{term}:** {text}", term=term, text=text))


def _points(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    first, cause, cost = document["first"], document["cause"], document["cost"]
    if document["error"]:
        yield tell("Why"), escape(recall(document["error"]))
    if first is not None:
        name = code(str(cause["name"] or first["name"] or first["tag"]))
        place = {"step": first["step"], "ranks": ", ".join(str(rank) for rank in first["rank"]), "name": name}
        if first["step"] is None:
            yield tell("First difference"), name  # of a checkpoint
        elif first["stage"]:
            where = tell("step {step}, rank {ranks}, stage {stage}: {name}", **place, stage=code(first["stage"]))
            yield tell("First difference"), where
        else:
            yield tell("First difference"), tell("step {step}, rank {ranks}: {name}", **place)
        why = escape(recall(cause["explanation"]))
        yield tell("Cause"), tell("{kind}: {explanation}", kind=code(cause["kind"]), explanation=why)
    elif document["verdict"] == "divergent":
        yield tell("Cause"), escape(recall(cause["explanation"]))
    record = document["key_data"]["first"]
    if record is not None:
        yield tell("First record"), tell("{tag} at step {step}", tag=code(record["tag"]), step=record["step"])
    if document["layers"]["reproduced"] is not None:
        again = document["layers"]["reproduced"]
        yield tell("Second pair"), tell("the second pair of runs differed too") if again else tell("not reproduced")
    yield tell("What to do next"), escape(advice(document))
    for number, hint in enumerate(document["hints"]):
        text = escape(recall(hint["text"])) + " " if number else ""  # the first is what to do next
        yield tell("Or") if number else tell("Source"), f"{text}<{quote(hint['source'], safe=_IN_ADDRESS)}>"
    key_data = document["key_data"]
    yield tell("Records"), tell("{count} compared, {found}", count=key_data["compared"], found=differences(key_data))
    bill = {"steps": cost["trainer_steps"], "seconds": cost["seconds"], "recipe": cost["documented_recipe_steps"]}
    yield (
        tell("The bill"),
        tell("{steps} training steps, {seconds} s; the documented recipe runs {recipe}", **bill)
        if cost["documented_recipe_steps"]
        else tell("{steps} training steps, {seconds} s", **bill),
    )


def _cell(value: Any) -> str:
    return "" if value is None else _printable(said(str(value)))[:80]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in text)


def _longest_run(text: str) -> int:
    """The longest row of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
