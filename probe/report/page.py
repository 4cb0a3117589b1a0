"""What a page of an orchestrator shows of a check: a summary in markdown, and the rows of a table.

Names, values and logs come from trainers and from folders that anybody may have named: none of them makes markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from probe.report.advice import advice

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
    lines = [f"# {escape(str(document['verdict']).capitalize())}: {escape(title)}", ""]
    lines += [f"- **{term}:** {text}" for term, text in _points(document)]
    report = "report.html"
    lines.append(
        f"- **Report:** [{report}]({report_url})" if report_url else f"- **Report:** {report} in {code(place)}"
    )
    if report_url:
        lines.append(f"- **Folder:** {code(place)}")
    lines += [f"- **Note:** {escape(note)}" for note in document["notes"][:_MOST_NOTES]]
    if picture is not None:
        lines += ["", f"![Map of steps and tags]({picture})"]
    return "\n".join(lines) + "\n"


def log_block(tail: str) -> str:
    """The end of a trainer's log as a block of code; nothing without one."""
    if not tail.strip():
        return ""
    lines = [_printable(line)[:_LONGEST] for line in tail.splitlines()[-_LOG_LINES:]]
    fence = "`" * max(3, 1 + _longest_run("\n".join(lines)))
    return "\n".join(["", "The end of the trainer's log:", "", f"{fence}text", *lines, fence, ""])


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
                "step": row["step"],
                "tag": _cell(row["tag"]),
                "what": _cell(first["status"]),
                "ranks": ", ".join(str(rank) for rank in row["ranks"]),
                "same": row["same"],
                "differ": row["different"] + row["missing"] + row["extra"],
                "first index": _cell(first["index"]),
                "a": _cell(first["a"]),
                "b": _cell(first["b"]),
                "largest absolute error": _cell(row["max_absolute"]),
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
    """Text as markdown text: nothing in it is markup."""
    shown = _printable(" ".join(text.split()))
    return _SPECIAL.sub(r"\\\1", shown if len(shown) <= 4 * _LONGEST else shown[: 4 * _LONGEST - 1] + "…")


def _points(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    first, cause, cost = document["first"], document["cause"], document["cost"]
    if document["error"]:
        yield "Why", escape(document["error"])
    if first is not None:
        stage = f", stage {code(first['stage'])}" if first["stage"] else ""
        ranks = ", ".join(str(rank) for rank in first["rank"])
        name = cause["name"] or first["name"] or first["tag"]
        where = (
            f"step {first['step']}, rank {ranks}{stage}: " if first["step"] is not None else ""
        )  # a checkpoint has none
        yield "First difference", f"{where}{code(str(name))}"
        yield "Cause", f"{code(cause['kind'])}: {escape(cause['explanation'])}"
    elif document["verdict"] == "divergent":
        yield "Cause", escape(cause["explanation"])
    record = document["key_data"]["first"]
    if record is not None:
        yield "First record", f"{code(record['tag'])} at step {record['step']}"
    if document["layers"]["reproduced"] is not None:
        again = "the second pair of runs differed too" if document["layers"]["reproduced"] else "not reproduced"
        yield "Second pair", again
    yield "What to do next", escape(advice(document))
    for number, hint in enumerate(document["hints"]):
        text = escape(hint["text"]) + " " if number else ""  # the first is what to do next
        yield ("Or" if number else "Source"), f"{text}<{quote(hint['source'], safe=_IN_ADDRESS)}>"
    key_data = document["key_data"]
    counted = [f"{key_data[what]} {what}" for what in ("different", "missing", "extra", "unreadable") if key_data[what]]
    yield "Records", f"{key_data['compared']} compared, {', '.join(counted) or 'all the same'}"
    recipe = f"; the documented recipe runs {cost['documented_recipe_steps']}" * bool(cost["documented_recipe_steps"])
    yield "The bill", f"{cost['trainer_steps']} training steps, {cost['seconds']} s{recipe}"


def _cell(value: Any) -> str:
    return "" if value is None else _printable(str(value))[:80]


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "�" for c in text)


def _longest_run(text: str) -> int:
    """The longest row of backticks."""
    return max((len(run) for run in re.findall("`+", text)), default=0)
