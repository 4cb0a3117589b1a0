"""``verdict.json`` has every key of ``api.md``, null where it does not apply, and the last line says the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.compare import LayerComparison, compare_key_data, compare_layers
from probe.locate import Cause, First, cause_of_layers, first_key_data
from probe.report import CheckResult, Tables, last_line, verdict_document, write_verdict
from probe.store.reader import read_dump

MakeDump = Callable[..., Path]

KEYS = {  # api.md
    "": {"format", "verdict", "first", "cause", "key_data", "trace", "layers", "equivalent", "not_compared", "cost",
         "runs", "configurations", "growth", "growth_jump"},
    "configurations": {"compared", "different", "not_compared"},
    "first": {"step", "stage", "rank", "micro_step", "event", "name", "tag", "call"},
    "cause": {"kind", "name", "explanation", "permutation", "ranks_swapped"},
    "key_data": {"first", "compared", "different", "missing", "unreadable"},
    "trace": {"compared", "first_index"},
    "layers": {"first", "reproduced"},
    "cost": {"trainer_steps", "documented_recipe_steps", "seconds"},
    "runs": {"a", "b", "c", "d"},
}  # fmt: skip


@pytest.fixture
def result(make_dump: MakeDump, layer_runs: Path, tmp_path: Path) -> CheckResult:
    """A check that found something in every part."""
    where = {"step": 2, "stage": "reference_compute_log_prob", "micro_step": 1}
    a = make_dump("a", [("prompts", 1), ("ref_log_prob", 1.0, where), ("loss", 1.0, {"step": 2})])
    b = make_dump("b", [("prompts", 1), ("ref_log_prob", 2.0, where)])
    comparison = compare_key_data(read_dump(a), read_dump(b))
    layers = compare_layers(layer_runs / "base", layer_runs / "both-ranks")
    first = first_key_data(comparison)
    located = cause_of_layers(first, layers)
    assert located is not None
    return CheckResult(
        "divergent",
        key_data=comparison,
        first_key_data=first,
        first=located[0],
        cause=located[1],
        layers=layers,
        reproduced=True,
        tables=[Tables([tmp_path / "keydata" / "loss.xlsx"], ["layers: msprobe failed"])],
        runs={"a": a, "b": b},
        trainer_steps=17,
        recipe_steps=24,
        seconds=41.234,
    )


def test_every_key_is_there(result: CheckResult, tmp_path: Path) -> None:
    for checked in (result, CheckResult("inconclusive")):
        document = verdict_document(checked, tmp_path)
        assert KEYS[""] <= set(document)
        for key in ("cause", "key_data", "trace", "layers", "cost", "runs"):
            assert set(document[key]) >= KEYS[key]
    assert set(verdict_document(result, tmp_path)["first"]) == KEYS["first"]
    assert {"step", "tag", "rank", "micro_step"} <= set(verdict_document(result, tmp_path)["key_data"]["first"])


def test_values_are_what_was_found(result: CheckResult, tmp_path: Path) -> None:
    document = verdict_document(result, tmp_path)
    assert (document["format"], document["verdict"]) == (1, "divergent")
    assert document["first"]["name"] == document["cause"]["name"] == document["layers"]["first"] == "reference.b.fc1"
    assert document["first"]["event"] == "forward_output"
    assert document["first"]["rank"] == [0, 1]
    assert document["cause"]["kind"] == "module_forward"
    counts = {key: document["key_data"][key] for key in ("compared", "different", "missing", "extra", "unreadable")}
    assert counts == {"compared": 3, "different": 1, "missing": 1, "extra": 0, "unreadable": 0}
    first = document["key_data"]["first"]
    assert (first["step"], first["tag"], first["rank"], first["micro_step"]) == (2, "ref_log_prob", [0], 1)
    assert document["cost"] == {"trainer_steps": 17, "documented_recipe_steps": 24, "seconds": 41.2}
    assert document["tables"] == {
        "summary": None,
        "made": ["keydata/loss.xlsx"],
        "not_made": ["layers: msprobe failed"],
    }


def test_what_does_not_apply_is_null_or_empty() -> None:
    document = verdict_document(CheckResult("inconclusive"), None)
    assert document["first"] is None
    assert document["key_data"]["first"] is None
    assert document["layers"]["first"] is document["layers"]["reproduced"] is None
    assert document["runs"] == {"a": None, "b": None, "c": None, "d": None}
    assert document["equivalent"] == document["not_compared"] == []
    assert document["cause"]["permutation"] is document["cause"]["ranks_swapped"] is None


def test_paths_are_relative_to_the_checks_folder(result: CheckResult, tmp_path: Path) -> None:
    assert verdict_document(result, tmp_path)["runs"] == {"a": "a", "b": "b", "c": None, "d": None}


def test_paths_without_a_folder_are_absolute(result: CheckResult, tmp_path: Path) -> None:
    document = verdict_document(result, None)
    assert document["runs"]["a"] == str(tmp_path / "a")
    assert document["tables"]["made"] == [str(tmp_path / "keydata" / "loss.xlsx")]


def test_everything_not_compared_is_listed(make_dump: MakeDump) -> None:
    a = make_dump("a", [("loss", 1.0), ("loss", 2.0, {"step": 1})])
    b = make_dump("b", [("loss", 1.0)], complete=False)
    comparison = compare_key_data(read_dump(a), read_dump(b))
    layers = LayerComparison(problems=["x: the layer dump was cut off"])
    listed = verdict_document(CheckResult("inconclusive", comparison, layers=layers), None)["not_compared"]
    assert listed == [
        f"{b}: the run did not finish; 1 steps are whole",
        "loss, step 1, rank 0, micro-step 0: absent from the other run, which is incomplete",
        "x: the layer dump was cut off",
    ]


def test_the_file_is_strict_json(result: CheckResult, tmp_path: Path) -> None:
    document = verdict_document(result, tmp_path)
    write_verdict(document, tmp_path)
    text = (tmp_path / "verdict.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")) == document


class TestLastLine:
    def line(self, result: CheckResult, report: Path | None = None) -> str:
        return last_line(verdict_document(result, None), report)

    def test_names_verdict_cause_and_report(self, result: CheckResult) -> None:
        assert self.line(result, Path("checks/x/report.html")) == (
            "divergent; step 0, ranks 0, 1, reference_compute_log_prob, reference.b.fc1 (module_forward);"
            " report checks/x/report.html"
        )

    def test_of_data_names_the_tag(self) -> None:
        first = First(3, None, (0,), 0, "data", "prompts", "prompts", 0)
        checked = CheckResult("divergent", first=first, cause=Cause("data", "prompts", "why"))
        assert self.line(checked) == "divergent; step 3, no stage, prompts (data)"

    @pytest.mark.parametrize(
        ("ranks", "named"), [((1,), "rank 1, "), ((0, 3), "ranks 0, 3, "), (tuple(range(9)), "ranks 0, 1, 2, 3…, ")]
    )
    def test_names_ranks_beside_the_first(self, ranks: tuple[int, ...], named: str) -> None:
        first = First(3, None, ranks, 0, "data", "prompts", "prompts", 0)
        checked = CheckResult("divergent", first=first, cause=Cause("data", "prompts", "why"))
        assert self.line(checked) == f"divergent; step 3, {named}no stage, prompts (data)"

    def test_of_equal_runs_counts_what_was_compared(self, make_dump: MakeDump) -> None:
        dumps = [read_dump(make_dump(name, [("loss", 1.0)])) for name in "ab"]
        checked = CheckResult("identical", compare_key_data(*dumps))
        assert self.line(checked) == "identical; all 1 records are the same bit for bit"

    def test_of_layers_alone_does_not_speak_of_no_records(self, layer_runs: Path) -> None:
        layers = compare_layers(layer_runs / "base", layer_runs / "again")
        line = self.line(CheckResult("identical", layers=layers))
        assert "all 0 records" not in line
        assert "288" in line

    def test_of_no_verdict_says_why(self) -> None:
        assert self.line(CheckResult("inconclusive", error="run a: it failed")) == "inconclusive; run a: it failed"

    def test_of_an_incomplete_comparison_says_the_first_reason(self, make_dump: MakeDump) -> None:
        dumps = [read_dump(make_dump(name, [("loss", 1.0)], complete=name == "a")) for name in "ab"]
        line = self.line(CheckResult("inconclusive", compare_key_data(*dumps)))
        assert line.startswith("inconclusive; ")
        assert "did not finish" in line

    def test_is_one_line(self, result: CheckResult) -> None:
        assert "\n" not in self.line(CheckResult("inconclusive", error="first line\nsecond line"))


def test_a_check_that_found_nothing_yet_blames_nothing() -> None:
    cause = verdict_document(CheckResult("inconclusive"), None)["cause"]
    assert (cause["kind"], cause["name"]) == ("none", None)
    assert cause["explanation"]
