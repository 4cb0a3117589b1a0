"""What a page shows: complete, small, and no markup from names that others chose."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from probe.report import CheckResult, data_uri, difference_rows, log_block, markdown_summary, picture, report_address
from probe.report.hints import hints_of
from probe.report.page import code, escape
from probe.report.verdict import verdict_document

HOSTILE = "`](javascript:alert(1))<img src=x onerror=alert(1)>|**b**\n# h\x1b[2J"


@pytest.fixture
def document() -> Callable[..., dict[str, Any]]:
    def make(**changes: Any) -> dict[str, Any]:
        made = {**verdict_document(CheckResult("inconclusive", error="run a: it failed"), None), **changes}
        return {**made, "hints": hints_of(made)}

    return make


def test_the_summary_is_complete_by_itself(document: Callable[..., dict[str, Any]]) -> None:
    first = {"step": 2, "stage": "actor_update", "rank": [0, 1], "name": "actor.lm_head", "tag": None}
    cause = {"kind": "module_forward", "name": "actor.lm_head", "explanation": "same inputs, different output"}
    text = markdown_summary(
        document(verdict="divergent", error=None, first=first, cause=cause), "demo", "host:/checks/1"
    )
    for words in ("# Divergent: demo", "step 2, rank 0, 1", "`actor.lm_head`", "different output", "to do next"):
        assert words in text
    assert "deterministic form" in text and "The bill" in text and "`host:/checks/1`" in text


def test_names_and_errors_are_never_markup(document: Callable[..., dict[str, Any]]) -> None:
    first = {"step": 0, "stage": None, "rank": [0], "name": HOSTILE, "tag": None}
    cause = {"kind": "data", "name": HOSTILE, "explanation": HOSTILE}
    text = markdown_summary(document(error=HOSTILE, first=first, cause=cause, notes=[HOSTILE]), HOSTILE, HOSTILE)
    for line in text.splitlines():
        plain = line
        while "``" in plain:  # what stands in code is no markup
            before, _, rest = plain.partition("``")
            plain = before + rest.partition("``")[2]
        assert "<img" not in plain.replace(r"\<img", "") and "](" not in plain.replace(r"\]\(", "")
    assert "\x1b" not in text
    assert text.count("\n# ") == 0, "no line of another's makes a heading"


def test_code_and_escape() -> None:
    assert code("a`b") == "`` a`b ``"
    assert code("") == "`  `"
    assert escape("a_b <c>\nd") == r"a\_b \<c\> d"
    assert len(code("x" * 9999)) < 400


def test_a_log_ends_in_a_block_that_it_cannot_leave() -> None:
    assert log_block("") == ""
    block = log_block("x\n```\n<b>\n````")
    assert block.count("`````") == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, None, "x" * 9999])
def test_rows_are_small_and_strict_json(document: Callable[..., dict[str, Any]], value: Any) -> None:
    first = {"status": "different", "index": [0], "a": value, "b": value}
    counts = {"same": 1, "different": 1, "missing": 0, "extra": 0, "ranks": [0], "max_absolute": value, "max_ulp": None}
    row = {"step": 0, "tag": HOSTILE, "first": first, **counts}
    key_data = {**document()["key_data"], "summary": [row] * 1000}
    rows = difference_rows(document(key_data=key_data))
    assert len(rows) == 100
    json.dumps(rows, allow_nan=False)
    assert all(len(str(cell)) <= 80 for cell in rows[0].values())


def test_the_picture_is_small_and_shows_the_worst_of_what_shares_a_cell() -> None:
    steps = list(range(100_000))
    states = ["same"] * len(steps)
    states[70_000] = "different"
    rows = [(f"tag{number} · rank {number}", ["same"] * len(steps)) for number in range(60)]
    svg = picture({"steps": steps, "rows": [*rows, ("<bad>&\x1b", states)]})
    assert svg is not None and len(svg) < 400_000
    assert "&lt;bad&gt;&amp;" in svg and "\x1b" not in svg
    assert svg.count("#d6453d") == 1
    assert base64.b64decode(data_uri(svg).partition(",")[2]).decode() == svg
    assert picture(None) is None


def test_an_address_is_made_of_its_template() -> None:
    names = {"check": "a b/../c", "path": "/x y", "host": "h", "profile": "p"}
    assert (
        report_address("https://r.example/{host}{path}/{check}", **names) == "https://r.example/h/x%20y/a%20b%2F..%2Fc"
    )
