"""What the report shows of the culprit: events side by side, the tree of modules, values, and the map of stages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.compare import TraceComparison, compare_key_data, compare_layers, compare_traces
from probe.locate import locate_trace
from probe.report.grid import MOST_ROWS, grid, plain
from probe.report.picture import condensed, step_map
from probe.report.sides import ELEMENTS, _unlike, sides_of_layers, sides_of_record, sides_of_trace
from probe.report.stage import StageEvents, events_of_layers, events_of_traces
from probe.report.stage_map import BETWEEN, stage_cells
from probe.report.tree import tree_of
from probe.store.reader import read_dump
from tests.probe.traces import Event, digest, training, write_traces

NAME = "reference.layers.1.up"


def _compared(folder: Path, left: list[Event], right: list[Event], **more: Any) -> TraceComparison:
    a, b = write_traces(folder / "a", {0: left}, **more), write_traces(folder / "b", {0: right}, **more)
    return compare_traces(a, b)


def _stage(comparison: TraceComparison) -> StageEvents:
    found = events_of_traces(comparison.ranks[0])
    assert found is not None and found.first is not None
    return found


def _at(events: list[Event], kind: str, name: str, step: int = 1) -> int:
    return next(i for i, e in enumerate(events) if (e["kind"], e["name"], e["step"]) == (kind, name, step))


@pytest.fixture
def faulty() -> list[Event]:
    """The training with another output of one module, from step 1 on."""
    events = training()
    events[_at(events, "forward_output", NAME)]["items"][0][3] = digest("other")
    return events


class TestEvents:
    def test_are_those_of_the_whole_stage_entry(self, tmp_path: Path, faulty: list[Event]) -> None:
        found = _stage(_compared(tmp_path, training(), faulty))
        assert (found.source, found.stage, found.step, found.cut) == ("trace", "reference_compute_log_prob", 1, False)
        assert (found.events[0].kind, found.events[-1].kind) == ("stage_start", "stage_end")
        named = found.events[found.first or 0]
        assert (named.kind, named.name, named.status) == ("forward_output", NAME, "different")
        assert [event.status for event in found.events].count("different") == 1
        whole = [event for event in faulty if (event["stage"], event["step"]) == (found.stage, 1)]
        assert len(found.events) == len(whole)

    def test_a_missing_call_shifts_nothing(self, tmp_path: Path) -> None:
        right = training()
        at = _at(right, "forward_input", NAME)
        del right[at : at + 2]
        found = _stage(_compared(tmp_path, training(), right))
        unlike = [(event.status, event.kind, event.name) for event in found.events if event.status != "same"]
        assert unlike == [("missing", "forward_input", NAME), ("missing", "forward_output", NAME)]
        assert found.events[found.first or 0].kind == "forward_input"

    def test_between_stages_are_those_between(self, tmp_path: Path) -> None:
        right = training()
        right[_at(right, "data", "rewards")]["items"][0][3] = digest("other")
        found = _stage(_compared(tmp_path, training(), right))
        assert (found.stage, [event.name for event in found.events]) == (None, ["rewards"])

    @pytest.mark.parametrize("most", [8, 12])
    def test_of_a_long_stage_are_the_nearest(
        self, tmp_path: Path, faulty: list[Event], most: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("probe.report.stage.MOST", most)
        found = _stage(_compared(tmp_path, training(), faulty))
        assert found.cut and len(found.events) == most and len(found.lines) == most
        assert found.events[found.first or 0].name == NAME and (found.first or 0) >= most // 2 - 1

    def test_of_a_trace_that_vanished_are_none(self, tmp_path: Path, faulty: list[Event]) -> None:
        comparison = _compared(tmp_path, training(), faulty)
        (tmp_path / "b/trace/rank0.jsonl").unlink()
        assert events_of_traces(comparison.ranks[0]) is None
        assert stage_cells(comparison) == {}

    def test_one_call_is_given_with_what_both_runs_have(self, tmp_path: Path, faulty: list[Event]) -> None:
        comparison = _compared(tmp_path, training(), faulty)
        answer = locate_trace(comparison)
        assert answer is not None
        sides = sides_of_trace(_stage(comparison), answer.first)
        assert sides is not None
        assert [(row.what, row.same) for row in sides.rows] == [("input", True), ("output", False)]
        assert sides.rows[1].digest_b == digest("other") != sides.rows[1].digest_a


def test_the_tree_marks_the_first_difference_and_what_leads_to_it(tmp_path: Path, faulty: list[Event]) -> None:
    nodes = tree_of(_stage(_compared(tmp_path, training(), faulty)))
    assert [node.name for node in nodes if node.first] == [NAME]
    assert [node.name for node in nodes if node.leads] == ["reference", "reference.layers", "reference.layers.1"]
    assert [node.name for node in nodes if node.status == "different"] == [NAME]
    down = next(node for node in nodes if node.name == "reference.layers.0.down")
    assert (down.depth, down.label, down.module, down.events) == (3, "down", "Linear", 2)


class TestMap:
    def test_has_every_stage_of_every_step(self, tmp_path: Path, faulty: list[Event]) -> None:
        cells = stage_cells(_compared(tmp_path, training(), faulty))
        stages = {"actor_generate_sequences", "reference_compute_log_prob", "actor_update"}
        assert set(cells) == {(stage, step, 0) for stage in stages for step in range(3)}
        assert [place for place, status in cells.items() if status != "same"] == [("reference_compute_log_prob", 1, 0)]

    def test_counts_every_difference_also_those_that_are_not_kept(self, tmp_path: Path) -> None:
        right = training(steps=6)
        for event in right:
            if event["step"] and event["items"]:
                event["items"][0][3] = digest("other")
        cells = stage_cells(_compared(tmp_path, training(steps=6), right))
        assert {step for (_, step, _), status in cells.items() if status == "different"} == {1, 2, 3, 4, 5}
        assert all(status == "different" for (_, step, _), status in cells.items() if step)
        assert all(status == "same" for (_, step, _), status in cells.items() if not step)
        assert (BETWEEN, 3, 0) in cells

    def test_a_step_that_one_run_lacks_is_missing(self, tmp_path: Path) -> None:
        cells = stage_cells(_compared(tmp_path, training(steps=4), training(steps=2)))
        assert {cells[place] for place in cells if place[1] >= 2} == {"missing"}
        assert {cells[place] for place in cells if place[1] < 2} == {"same"}

    def test_takes_nothing_for_the_same_in_a_trace_that_was_not_compared_to_its_end(self, tmp_path: Path) -> None:
        comparison = _compared(tmp_path, training(steps=4), training(steps=2), complete=False)
        assert not comparison.whole and set(stage_cells(comparison).values()) == {"not_compared"}

    def test_rows_of_stages_follow_those_of_tags(
        self, tmp_path: Path, faulty: list[Event], compared: Callable[..., Any]
    ) -> None:
        key_data = compared([("loss", 1.0)], [("loss", 1.0)])
        found = step_map(key_data, _compared(tmp_path / "traces", training(), faulty))
        assert found is not None
        assert [name for name, _ in found["rows"]][:2] == ["loss", "actor_generate_sequences"]
        assert found["rows"][0][1] == ["same", "none", "none"]

    def test_of_many_steps_and_rows_stays_small_and_keeps_what_differs(self) -> None:
        rows = [(f"tag{number}", ["same"] * 1000) for number in range(50)]
        rows[41][1][777] = "different"
        small = condensed({"steps": list(range(1000)), "rows": rows}, 10, 100)
        assert small is not None and len(small["rows"]) == 10 and small["left_out"] == 40
        assert len(small["columns"]) == 100 and small["columns"][77] == (770, 779)
        assert [states[77] for name, states in small["rows"] if name == "tag41"] == ["different"]
        assert condensed(None, 1, 1) is None


class TestValues:
    @pytest.mark.parametrize(
        ("left", "right", "dtype", "ulp"),
        [
            (np.float32([1, 2]), np.float32([1, np.nextafter(np.float32(2), np.float32(3))]), "float32", 1),
            (np.float32([1, 2]), np.float32([1, 2 + 2**-6]), "bfloat16", 1),
            (np.int64([1, 5]), np.int64([1, 9]), "int64", 4),
            (np.array([True, True]), np.array([True, False]), "bool", 1),
            (np.float32([1, np.nan]), np.float32([1, 2]), "float32", None),
        ],
    )
    def test_the_first_elements_have_index_values_and_distance(
        self, left: Any, right: Any, dtype: str, ulp: int | None
    ) -> None:
        found = _unlike(left.reshape(1, 2), right.reshape(1, 2), dtype)
        assert found is not None
        count, size, (element,) = found
        assert (count, size, element.index, element.ulp) == (1, 2, (0, 1), ulp)

    def test_of_another_shape_have_no_elements_in_common(self) -> None:
        assert _unlike(np.zeros(2), np.zeros(3), "float64") is None

    def test_of_a_record_come_from_both_dumps(self, make_dump: Callable[..., Path]) -> None:
        folders = [make_dump(name, [("loss", np.float32([[1, last]]))]) for name, last in (("a", 2.0), ("b", 2.5))]
        comparison = compare_key_data(*map(read_dump, folders))
        sides = sides_of_record(comparison.differing[0], (folders[0], folders[1]))
        assert sides is not None
        (row,) = sides.rows
        assert (row.path, row.count, row.size) == ("loss", 1, 2)
        assert [(element.index, element.a, element.b) for element in row.elements] == [((0, 1), 2.0, 2.5)]


class TestGrid:
    HOSTILE = ("</script><script>alert(1)</script>", "__proto__", "a\x00b", "\u202egnp.exe", "<!--", "\u2028", "&amp;")

    def test_is_json_that_cannot_leave_its_element(self) -> None:
        rows = [(name,) for name in self.HOSTILE]
        data = grid("x", [("name", "1fr")], rows, ["same"] * len(rows), 0).data
        assert not set("<>&\u2028\u2029\x00") & set(data) and data.isascii()
        content = json.loads(data)
        values = content["columns"][0]["values"]
        assert values[0] == self.HOSTILE[0] and values[1] == "__proto__"
        assert values[2] == "a\N{REPLACEMENT CHARACTER}b" and values[3] == "\N{REPLACEMENT CHARACTER}gnp.exe"

    def test_packs_columns_of_few_values(self) -> None:
        content = json.loads(grid("x", [("kind", "1fr")], [("a",), ("b",)] * 500, ["same"] * 1000, None).data)
        column = content["columns"][0]
        assert (column["known"], column["codes"][:3], content["rows"]) == (["a", "b"], [0, 1, 0], 1000)

    def test_keeps_a_number_apart_from_a_truth(self) -> None:
        rows = [(value,) for value in (1, True, 1.0, None, "1")] * 20
        content = json.loads(grid("x", [("value", "1fr")], rows, ["same"] * 100, None).data)
        column = content["columns"][0]
        shown = [str(column["known"][code]) for code in column["codes"][:5]]
        assert shown == ["1", "True", "1.0", "None", "1"]

    def test_says_large_and_strange_numbers_as_text(self) -> None:
        rows = [(2**60 + 1,), (float("nan"),), (float("inf"),)]
        content = json.loads(grid("x", [("ulp", "1fr")], rows, ["same"] * 3, None).data)
        assert content["columns"][0]["values"] == [str(2**60 + 1), "nan", "inf"]

    def test_ends_at_the_most_rows(self) -> None:
        found = grid("x", [("n", "1fr")], ((n,) for n in range(MOST_ROWS + 5)), ["same"] * (MOST_ROWS + 5), None, 5)
        assert (found.rows, found.left_out) == (MOST_ROWS, 5)

    def test_plain_text_keeps_lines(self) -> None:
        assert plain("a\n\tb\x1b") == "a\n\tb\N{REPLACEMENT CHARACTER}" and plain(3) == 3


class TestLayers:
    @pytest.fixture
    def pair(self, layer_runs: Path) -> tuple[Path, Path]:
        return layer_runs / "base", layer_runs / "output"

    def test_values_of_the_module_come_from_the_layer_dumps(self, pair: tuple[Path, Path]) -> None:
        layers = compare_layers(*pair)
        first = layers.first
        assert first is not None and first.event.kind == "forward_output"
        sides = sides_of_layers(layers, (("c", pair[0]), ("d", pair[1])))
        assert sides is not None and (sides.run_a, sides.run_b) == ("c", "d")
        by_what = {row.what: row for row in sides.rows}
        assert by_what["input"].same and by_what["input"].elements == ()
        output = by_what["output"]
        assert not output.same and output.count and output.size and 0 < len(output.elements) <= ELEMENTS
        assert all(element.a != element.b and element.ulp for element in output.elements)
        assert len(output.elements[0].index) == output.a.count(",") + 1

    def test_the_tree_comes_from_the_layer_dumps_without_traces(self, pair: tuple[Path, Path]) -> None:
        layers = compare_layers(*pair)
        found = events_of_layers(layers, pair)
        assert found is not None and found.source == "layers" and layers.first is not None
        assert [node.name for node in tree_of(found) if node.first] == [layers.first.full_name]
        assert {event.status for event in found.events} == {"same", "different"}

    def test_a_dump_that_vanished_shows_nothing(self, pair: tuple[Path, Path], tmp_path: Path) -> None:
        layers = compare_layers(*pair)
        gone = (("c", tmp_path / "c"), ("d", tmp_path / "d"))
        assert sides_of_layers(layers, gone) is None and sides_of_layers(None, gone) is None
