"""The growth of the error, the place where it jumps, and the chart that shows both."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openpyxl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.compare import KeyDataComparison
from probe.report import CheckResult, summary_rows, verdict_document, write_report, write_summary
from probe.report.chart import COLOURS, HEIGHT, MOST_LINES, MOST_POINTS, WIDTH, chart
from probe.report.growth import FACTOR, FLOOR, Growth, Jump, growth_of, jumps
from probe.report.verdict import LISTED

Compared = Callable[..., KeyDataComparison]


def _rows(*errors: float | None, tag: str = "loss") -> list[Growth]:
    return [Growth(tag, step, error, error, None, None) for step, error in enumerate(errors)]


class TestGrowth:
    def test_every_step_of_a_tag_that_differs_has_a_row(self, compared: Compared) -> None:
        left = [("loss", torch.tensor([1.0, 1.0]), {"step": step}) for step in range(3)] + [("x", 1.0, {"step": 2})]
        right = [
            ("loss", torch.tensor([1.0, 1.0 + bump]), {"step": step}) for step, bump in enumerate((0.0, 0.5, 1.0))
        ] + [("x", 1.0, {"step": 2})]
        rows = growth_of(compared(left, right))
        assert [(row.tag, row.step, row.max_absolute) for row in rows] == [
            ("loss", 0, 0.0),
            ("loss", 1, 0.5),
            ("loss", 2, 1.0),
        ]
        assert rows[0] == Growth("loss", 0, 0.0, 0.0, 0, 1.0)
        assert rows[1].max_relative == pytest.approx(1 / 3)
        assert rows[2].cosine == pytest.approx(3 / math.sqrt(10))
        assert rows[1].max_ulp == 2**22

    def test_ranks_and_micro_steps_are_one_row(self, compared: Compared) -> None:
        places = [{"rank": rank, "micro_step": micro} for rank in (0, 1) for micro in (0, 1)]
        left = [("loss", torch.tensor([3.0]), place) for place in places]
        right = [("loss", torch.tensor([3.0 + place["rank"]]), place) for place in places]
        (row,) = growth_of(compared(left, right))
        assert (row.max_absolute, row.cosine) == (1.0, pytest.approx(1.0))

    def test_nothing_grows_where_nothing_differs(self, compared: Compared) -> None:
        document = verdict_document(CheckResult("identical", compared([("loss", 1.0)], [("loss", 1.0)])), None)
        assert (document["growth"], document["growth_jump"], document["growth_left_out"]) == ([], None, 0)

    def test_values_that_were_not_kept_have_no_error(self, make_dump: Any, compared: Compared) -> None:
        assert growth_of(compared([("weights", {"w": 1.0})], [("weights", {"w": 2.0})])) == []

    def test_another_dtype_has_an_error_and_no_ulp(self, compared: Compared) -> None:
        left = [("loss", torch.tensor([1.0, 1.01]))]
        right = [("loss", torch.tensor([1.0, 1.01]).bfloat16())]
        comparison = compared(left, right)
        (row,) = growth_of(comparison)
        assert comparison.differing[0].problem == "float32[2] against bfloat16[2]"
        assert 0 < (row.max_relative or 0) < 2**-8
        assert (row.max_ulp, row.cosine) == (None, pytest.approx(1, abs=1e-4))

    def test_the_sign_of_a_zero_in_another_dtype_is_not_harmless(self, compared: Compared) -> None:
        (entry,) = compared(
            [("loss", torch.tensor([0.0]))], [("loss", torch.tensor([-0.0], dtype=torch.float64))]
        ).differing
        assert entry.harmless is None

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300])
    def test_strict_json_whatever_the_numbers(self, compared: Compared, value: float) -> None:
        left = [("loss", torch.tensor([1.0, 2.0], dtype=torch.float64))]
        right = [("loss", torch.tensor([value, 2.0], dtype=torch.float64))]
        document = verdict_document(CheckResult("divergent", compared(left, right)), None)
        (row,) = json.loads(json.dumps(document, allow_nan=False))["growth"]
        assert set(row) == {"tag", "step", "max_absolute", "max_relative", "max_ulp", "cosine"}
        assert (row["cosine"] == "nan") is not math.isfinite(value)

    def test_the_list_is_bounded(self, compared: Compared) -> None:
        left, right = ([("loss", value, {"step": step}) for step in range(LISTED + 7)] for value in (1.0, 2.0))
        document = verdict_document(CheckResult("divergent", compared(left, right)), None)
        assert (len(document["growth"]), document["growth_left_out"]) == (LISTED, 7)

    def test_the_sheet_has_the_cosine(self, compared: Compared, tmp_path: Path) -> None:
        comparison = compared([("loss", torch.tensor([1.0, 0.0]))], [("loss", torch.tensor([1.0, 1.0]))])
        header, row = openpyxl.load_workbook(write_summary(comparison, tmp_path)).active.iter_rows(values_only=True)
        cosine = dict(zip(header, row, strict=True))["cosine"]
        assert float(cosine) == pytest.approx(math.sqrt(0.5))
        assert next(iter(summary_rows(comparison)))["cosine"] == float(cosine)


class TestJump:
    @pytest.mark.parametrize(
        ("errors", "step"),
        [
            ([0.0, 0.5], 1),
            ([0.5, 0.9], None),  # it was never below
            ([1e-5, 1e-4, 2e-4], None),  # all below the floor
            ([1e-5, 1e-4, 2e-3], 2),
            ([0.01, 0.02, 0.3], 2),
            ([0.01, 0.02, 0.2], None),  # ten times, not more
            ([0.0, None, 0.5], 2),
            ([None, 0.5], None),
            ([0.01, math.inf, 1.0], 1),
            ([0.5, 0.0, 0.6], None),  # it had been as large before
            ([], None),
        ],
    )
    def test_is_where_the_definition_says(self, errors: list[float | None], step: int | None) -> None:
        found = jumps(_rows(*errors))
        assert [jump.step for jump in found] == ([] if step is None else [step])

    def test_only_the_first_of_a_tag_counts_and_the_first_tag_comes_first(self) -> None:
        rows = [*_rows(0.0, 0.0, 0.5, 50.0), *_rows(0.0, 0.2, 0.2, tag="x")]
        rows.sort(key=lambda row: (row.step, row.tag))
        assert [(jump.tag, jump.step) for jump in jumps(rows)] == [("x", 1), ("loss", 2)]

    @given(st.lists(st.floats(0, 10), max_size=12))
    def test_before_it_all_is_below(self, errors: list[float]) -> None:
        for jump in jumps(_rows(*errors)):
            earlier = errors[: jump.step]
            assert jump.before == max(earlier)
            assert jump.max_relative == errors[jump.step] > max(FLOOR, FACTOR * jump.before)
            assert not jumps(_rows(*earlier))

    def test_is_strict_json(self) -> None:
        assert Jump("loss", 3, math.inf, 0.0).as_dict() == {
            "step": 3,
            "tag": "loss",
            "max_relative": "inf",
            "before": 0.0,
        }


ERRORS = st.none() | st.floats(0, allow_nan=False)


class TestChart:
    @given(st.dictionaries(st.text(max_size=5), st.lists(ERRORS, min_size=1, max_size=30), max_size=30), st.integers(0))
    def test_every_point_lies_inside(self, series: dict[str, list[float | None]], first: int) -> None:
        first %= 10**9
        drawn = chart(
            {tag: [(first + step, error) for step, error in enumerate(errors)] for tag, errors in series.items()}
        )
        shown = list(series.values())[:MOST_LINES]
        if not any(error for errors in shown for error in errors):
            assert drawn is None
            return
        assert drawn is not None
        for line, errors in zip(drawn["lines"], shown, strict=True):
            assert len(line.dots) == sum(error is not None for error in errors)
            assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y, _ in line.dots)
            assert line.colour < COLOURS
        assert 1 <= len(drawn["steps"]) <= 14
        assert len(drawn["levels"]) <= 10
        assert drawn["left_out"] == max(0, len(series) - MOST_LINES)

    def test_larger_is_higher_and_zero_is_lowest(self) -> None:
        drawn = chart({"x": [(0, 0.0), (1, 1e-6), (2, 1.0), (3, math.inf)]}, jump=2)
        assert drawn is not None
        heights = [y for _, y, _ in drawn["lines"][0].dots]
        assert heights == sorted(heights, reverse=True) and len(set(heights)) == 4
        assert drawn["jump"] == drawn["lines"][0].dots[2][0]
        assert drawn["infinite"]

    def test_an_unknown_error_breaks_the_line(self) -> None:
        drawn = chart({"x": [(0, 1.0), (1, None), (2, 1.0), (3, 2.0)]})
        assert drawn is not None
        assert [len(part.split()) for part in drawn["lines"][0].parts] == [1, 2]

    def test_many_steps_keep_their_peaks(self) -> None:
        points: list[tuple[int, float | None]] = [(step, 1e-6) for step in range(100_000)]
        points[54_321] = (54_321, 1.0)
        drawn = chart({"x": points})
        assert drawn is not None
        dots = drawn["lines"][0].dots
        assert len(dots) <= MOST_POINTS
        assert any("step 54321: 1" in text for _, _, text in dots)


def test_the_report_plots_it(compared: Compared, tmp_path: Path) -> None:
    left = [("loss", torch.tensor([1.0, 1.0]), {"step": step}) for step in range(4)]
    right = [("loss", torch.tensor([1.0, 1.0 + bump]), {"step": n}) for n, bump in enumerate((0, 1e-6, 1e-5, 0.5))]
    result = CheckResult("divergent", _renamed(compared(left, right), "x & <b>"))
    page = write_report(result, verdict_document(result, tmp_path), tmp_path).read_text(encoding="utf-8")
    assert "It first jumps at step 3" in page
    assert "a tag jumps at the first step" in page
    assert page.count("<polyline") == 2
    assert "x &amp; &lt;b&gt;, step 3: 0.333" in page
    assert "<b>" not in page


def _renamed(comparison: KeyDataComparison, name: str) -> KeyDataComparison:
    """The same with a tag that our writer refuses and a foreign tree may have."""
    for tag, step, rank in list(comparison.cells):
        comparison.cells[name, step, rank] = comparison.cells.pop((tag, step, rank))
    return comparison


def test_the_report_of_equal_runs_has_no_plot(compared: Compared, tmp_path: Path) -> None:
    result = CheckResult("identical", compared([("loss", 1.0)], [("loss", 1.0)]))
    page = write_report(result, verdict_document(result, tmp_path), tmp_path).read_text(encoding="utf-8")
    assert "Growth of the error" not in page and "<svg" not in page
