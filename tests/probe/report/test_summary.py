"""The key data by tag and step: in ``verdict.json``, on the terminal, and as a sheet that runs nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import torch

from probe.compare import KeyDataComparison
from probe.report import CheckResult, summary_lines, summary_rows, verdict_document, write_summary

Compared = Callable[..., KeyDataComparison]

LEFT: list[tuple[Any, ...]] = [
    ("prompts", torch.arange(4)),
    ("loss", torch.tensor([1.0, 2.0, 4.0])),
    ("loss", torch.tensor([1.0]), {"rank": 1}),
    ("rewards", torch.tensor([float("inf")]), {"step": 1}),
    ("only_a", 1, {"step": 1}),
]
RIGHT: list[tuple[Any, ...]] = [
    ("prompts", torch.arange(4)),
    ("loss", torch.tensor([1.0, 2.5, 4.5])),
    ("loss", torch.tensor([1.0]), {"rank": 1}),
    ("rewards", torch.tensor([1.0]), {"step": 1}),
]


def test_every_step_and_tag_has_a_row(compared: Compared) -> None:
    rows = list(summary_rows(compared(LEFT, RIGHT)))
    assert [(row["step"], row["tag"]) for row in rows] == [
        (0, "prompts"),
        (0, "loss"),
        (1, "rewards"),
        (1, "only_a"),
    ]
    assert [(row["same"], row["different"], row["missing"]) for row in rows] == [
        (1, 0, 0),
        (1, 1, 0),
        (0, 1, 0),
        (0, 0, 1),
    ]
    loss = rows[1]
    assert (loss["ranks"], loss["elements_differing"], loss["max_absolute"]) == ([0], 2, 0.5)
    assert (loss["max_relative"], loss["max_ulp"]) == (0.2, 2**21)
    assert (loss["first"]["index"], loss["first"]["a"], loss["first"]["b"]) == ([1], 2.0, 2.5)


def test_a_row_adds_up_ranks_and_micro_steps(compared: Compared) -> None:
    places = [{"rank": rank, "micro_step": micro_step} for rank in (0, 1) for micro_step in (0, 1)]
    left = [("loss", torch.zeros(2), place) for place in places]
    right = [("loss", torch.tensor([0.0, float(place["rank"])]), place) for place in places]
    (row,) = summary_rows(compared(left, right))
    assert (row["same"], row["different"], row["ranks"], row["elements_differing"]) == (2, 2, [1], 2)
    assert (row["first"]["rank"], row["first"]["micro_step"]) == (1, 0)


def test_the_verdict_holds_the_rows_that_differ_as_strict_json(compared: Compared, tmp_path: Path) -> None:
    document = verdict_document(CheckResult("divergent", compared(LEFT, RIGHT)), tmp_path)
    text = json.dumps(document, allow_nan=False)
    rows = json.loads(text)["key_data"]["summary"]
    assert [row["tag"] for row in rows] == ["loss", "rewards", "only_a"]
    assert (rows[1]["first"]["a"], rows[1]["max_absolute"], rows[1]["max_relative"]) == ("inf", "inf", "inf")


def test_lines_for_people(compared: Compared, tmp_path: Path) -> None:
    document = verdict_document(CheckResult("divergent", compared(LEFT, RIGHT)), tmp_path)
    rows = document["key_data"]["summary"]
    assert summary_lines(rows) == [
        "step 0, loss: 1 same, 1 different; first at [1]: 2.0 against 2.5; 2 elements, by 0.5 or 2097152 ULP at most",
        "step 1, rewards: 1 different; first at [0]: inf against 1.0; 1 elements, by inf or 1073741824 ULP at most",
        "step 1, only_a: 1 missing",
    ]
    assert summary_lines(rows, most=1)[1:] == ["2 more steps and tags"]


def test_the_sheet_has_the_same_numbers(compared: Compared, tmp_path: Path) -> None:
    sheet = openpyxl.load_workbook(write_summary(compared(LEFT, RIGHT), tmp_path / "keydata")).active
    header, *rows = sheet.iter_rows(values_only=True)
    loss = dict(zip(header, rows[1], strict=True))
    assert (loss["step"], loss["tag"], loss["same"], loss["different"]) == (0, "loss", 1, 1)
    assert (loss["first_index"], loss["first_a"], loss["first_b"]) == ("[1]", "2.0", "2.5")
    assert (loss["elements_differing"], loss["max_absolute"], loss["max_ulp"]) == (2, "0.5", 2**21)
    assert len(rows) == 4


@pytest.mark.parametrize("name", ['=HYPERLINK("http://x")', "+1+1", "-1", "@SUM(A1)", "a\x07b", "x" * 40_000])
def test_no_text_of_the_sheet_runs_or_breaks_it(compared: Compared, tmp_path: Path, name: str) -> None:
    comparison = compared([("loss", {name: "=1+1"})], [("loss", {name: "=1+2"})])
    sheet = openpyxl.load_workbook(write_summary(comparison, tmp_path / "keydata")).active
    cells = [cell for row in sheet.iter_rows() for cell in row if cell.value is not None]
    assert "f" not in {cell.data_type for cell in cells}
    assert any(str(cell.value).startswith(name[:2].replace("\x07", "")[:1]) for cell in cells)
