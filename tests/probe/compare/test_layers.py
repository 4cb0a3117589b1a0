"""Layer dumps of real msprobe, compared by exact bytes: the first difference is the planted one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from probe.compare import LayerComparison, compare_layers
from probe.comparison import compare_dumps
from probe.store.layers import LayerEvent

REFERENCE = "reference_compute_log_prob"
UPDATE = "actor_update"

Compare = Callable[[str], LayerComparison]


@pytest.fixture(scope="module")
def against_base(layer_runs: Path) -> Compare:
    """Compares the run without a fault with another, each once."""
    return cache(lambda name: compare_layers(layer_runs / "base", layer_runs / name))


@pytest.fixture
def pair(layer_runs: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two equal dumps of one step, to be changed."""
    one_step = shutil.ignore_patterns("step1")
    c, d = (Path(shutil.copytree(layer_runs / "base", tmp_path / name, ignore=one_step)) for name in "cd")
    return c, d


def window_of(dump: Path, stage: str = UPDATE) -> Path:
    return dump / stage / "step0" / "rank0"


def test_equal_runs_are_equal(against_base: Compare) -> None:
    comparison = against_base("again")
    assert comparison.differences == []
    assert comparison.problems == []
    assert comparison.first is None
    assert comparison.ranks_of_first == []
    assert comparison.stages == [REFERENCE, UPDATE]
    assert comparison.compared == 288  # 8 windows: 6 modules entered and left, 8 parameters, and 4 backward passes


@pytest.mark.parametrize(
    ("run", "kind", "name"),
    [
        ("output", "forward_output", "actor.b.fc1"),
        ("between", "forward_input", "actor.b.act"),
        ("backward", "grad_input", "actor.b.act"),
        ("between-backward", "grad_output", "actor.b.fc1"),
        ("parameter-gradient", "param_grad", "actor.b.fc1.weight"),
        ("loss", "grad_output", "actor.b"),
        ("input", "forward_input", "actor.a"),
    ],
)
def test_the_first_difference_is_the_planted_one(against_base: Compare, run: str, kind: str, name: str) -> None:
    comparison = against_base(run)
    first = comparison.first
    assert first is not None
    assert comparison.problems == []
    assert (first.status, first.event.kind, first.full_name) == ("different", kind, name)
    assert (first.window.stage, first.window.step, first.window.micro_step) == (UPDATE, 0, 0)
    assert comparison.ranks_of_first == [0]


def test_weights_come_before_what_they_compute(against_base: Compare) -> None:
    first = against_base("weights").first
    assert first is not None
    assert (first.event.kind, first.full_name) == ("weights", "reference.b.fc1.weight")
    assert first.window.stage == REFERENCE


def test_a_call_that_one_run_lacks(layer_runs: Path) -> None:
    for names, status in ((("base", "calls"), "extra"), (("calls", "base"), "missing")):
        first = compare_layers(*(layer_runs / name for name in names)).first
        assert first is not None
        assert (first.status, first.full_name, first.event.call) == (status, "actor.b", 1)


def test_a_later_window_of_a_stage(against_base: Compare) -> None:
    first = against_base("second-window").first
    assert first is not None
    assert (first.window.stage, first.window.micro_step, first.full_name) == (UPDATE, 1, "actor.b.fc1")


@pytest.mark.parametrize(("run", "ranks"), [("both-ranks", [0, 1]), ("rank-1", [1])])
def test_every_rank_that_shares_the_first_difference_is_named(
    against_base: Compare, run: str, ranks: list[int]
) -> None:
    comparison = against_base(run)
    first = comparison.first
    assert first is not None
    assert (first.window.stage, first.full_name) == (REFERENCE, "reference.b.fc1")
    assert comparison.ranks_of_first == ranks


def test_an_earlier_step_comes_before_an_earlier_stage(against_base: Compare) -> None:
    comparison = against_base("update-then-reference")
    first = comparison.first
    assert first is not None
    assert (first.window.step, first.window.stage) == (0, UPDATE)
    assert comparison.ranks_of_first == [0]


def test_the_enclosing_module_is_the_caller(against_base: Compare) -> None:
    first = against_base("between").first
    assert first is not None
    assert first.enclosing == "actor.b"
    top = against_base("input").first
    assert top is not None
    assert (top.enclosing, top.first_in_window) == ("actor", True)


class TestWhatCannotBeCompared:
    def test_a_window_of_one_run_only(self, pair: tuple[Path, Path]) -> None:
        shutil.rmtree(window_of(pair[1]))
        comparison = compare_layers(*pair)
        assert len(comparison.problems) == 2  # the second window of that stage lies in the first one's folder
        assert all("the other run has no such layer dump" in problem for problem in comparison.problems)
        assert comparison.compared == 48

    def test_a_window_that_was_cut_off(self, pair: tuple[Path, Path]) -> None:
        (window_of(pair[1]) / "window.json").unlink()
        assert compare_layers(*pair).problems == [f"{window_of(pair[1])}: the layer dump was cut off"]

    @pytest.mark.parametrize("name", ["dump.json", "construct.json", "window.json"])
    @pytest.mark.parametrize("content", ["", "[]", "{", "null"])
    def test_a_damaged_file(self, pair: tuple[Path, Path], name: str, content: str) -> None:
        file = window_of(pair[1]) / name
        file.write_text(content)
        comparison = compare_layers(*pair)
        assert comparison.problems
        assert all(str(file) in problem for problem in comparison.problems)
        assert comparison.differences == []

    def test_an_empty_dump(self, pair: tuple[Path, Path], edit_json: Callable[..., None]) -> None:
        for dump in pair:
            edit_json(window_of(dump) / "dump.json", data={})
        assert compare_layers(*pair).problems == [f"{window_of(pair[0])}: dump.json is empty"]

    def test_a_dump_of_structure(self, pair: tuple[Path, Path], edit_json: Callable[..., None]) -> None:
        edit_json(window_of(pair[0]) / "dump.json", task="structure")
        (problem,) = compare_layers(*pair).problems
        assert "only 'tensor' or 'statistics' hold something of values" in problem

    @pytest.mark.parametrize("damage", ["missing", "truncated", "pickle"])
    def test_an_unreadable_tensor(self, pair: tuple[Path, Path], damage: str) -> None:
        file = window_of(pair[1]) / "dump_tensor_data" / "Module.a.fc1.Linear.forward.0.output.0.pt"
        content = file.read_bytes()
        file.unlink()
        if damage == "truncated":
            file.write_bytes(content[:-40])
        if damage == "pickle":
            torch.save({"a": file}, file)  # a class that weights_only refuses
        (problem,) = compare_layers(*pair).problems
        assert str(file) in problem

    def test_a_tensor_outside_the_folder(self, pair: tuple[Path, Path], tmp_path: Path) -> None:
        torch.save(torch.ones(2), tmp_path / "secret.pt")
        file = window_of(pair[1]) / "dump.json"
        name = "Module.a.fc1.Linear.forward.0.output.0.pt"
        file.write_text(file.read_text().replace(name, "../../../../../secret.pt"))
        (problem,) = compare_layers(*pair).problems
        assert "lies outside the dump folder" in problem

    @pytest.mark.parametrize("shape", [[2, 8], []], ids=["matrix", "scalar"])
    def test_a_tensor_that_was_not_stored(self, pair: tuple[Path, Path], shape: list[int]) -> None:
        for dump in pair:
            file = window_of(dump) / "dump.json"
            content = json.loads(file.read_text())
            value = content["data"]["Module.a.fc1.Linear.forward.0"]["output"][0]
            value["shape"] = shape
            del value["data_name"]
            file.write_text(json.dumps(content))
        (problem,) = compare_layers(*pair).problems
        assert "was not stored" in problem

    def test_one_problem_does_not_hide_another_windows_difference(self, layer_runs: Path, tmp_path: Path) -> None:
        c, d = layer_runs / "base", Path(shutil.copytree(layer_runs / "second-window", tmp_path / "d"))
        (window_of(d, REFERENCE) / "dump.json").unlink()
        comparison = compare_layers(c, d)
        assert comparison.problems
        assert comparison.first is not None
        assert comparison.first.full_name == "actor.b.fc1"


class TestOneChangedTensor:
    """A tensor changed on the disk by one bit, its dtype or its shape."""

    @pytest.mark.parametrize("change", ["bit", "dtype", "shape", "sign of zero"])
    def test_is_found(self, pair: tuple[Path, Path], change: str) -> None:
        name = "Module.a.act.Tanh.forward.0.output.0.pt"
        files = [window_of(dump) / "dump_tensor_data" / name for dump in pair]
        tensor = torch.load(files[0])
        if change == "sign of zero":
            tensor[1, 3] = 0.0
            torch.save(tensor, files[0])
        changed = {
            "bit": lambda: (tensor.view(torch.int32) ^ torch.eye(2, 8, dtype=torch.int32)).view(torch.float32),
            "dtype": tensor.double,
            "shape": tensor.flatten,
            "sign of zero": lambda: torch.where(tensor == 0, -tensor, tensor),
        }[change]()
        torch.save(changed, files[1])
        comparison = compare_layers(*pair)
        assert [d.event.key for d in comparison.differences] == [("forward_output", "a.act", 0)]

    def test_statistics_are_not_what_is_compared(self, pair: tuple[Path, Path]) -> None:
        file = window_of(pair[1]) / "dump.json"
        file.write_text(file.read_text().replace('"Max": ', '"Max": 1'))
        assert compare_layers(*pair).differences == []


def test_events_are_told_apart_by_kind_name_and_call() -> None:
    events = [LayerEvent(kind, "m", call, None, ()) for kind in ("forward_input", "forward_output") for call in (0, 1)]
    assert len({event.key for event in events}) == 4


class TestTwoExistingDumps:
    """``firstdiff compare`` on dumps that hold layers alone."""

    def test_that_are_equal(self, layer_runs: Path) -> None:
        document = compare_dumps(layer_runs / "base", layer_runs / "again", None)
        assert (document["verdict"], document["layers"]["compared"]) == ("identical", 288)

    def test_that_differ(self, layer_runs: Path) -> None:
        document = compare_dumps(layer_runs / "base", layer_runs / "output", None)
        assert document["verdict"] == "divergent"
        assert document["first"]["name"] == "actor.b.fc1"
        assert document["cause"]["kind"] == "module_forward"

    def test_of_runs_that_did_not_finish(self, pair: tuple[Path, Path], edit_json: Callable[..., None]) -> None:
        for dump in pair:
            edit_json(dump / "manifest.json", complete=False)
        document = compare_dumps(*pair, None)
        assert document["verdict"] == "inconclusive"
        assert document["not_compared"]

    def test_whose_windows_lie_where_msprobe_puts_them_without_a_rank(self, pair: tuple[Path, Path]) -> None:
        for dump, process in zip(pair, ("proc17", "proc18"), strict=True):
            for file in ("manifest.json", "index"):
                shutil.rmtree(dump / file) if (dump / file).is_dir() else (dump / file).unlink()
            (dump / UPDATE / "step0" / "rank0").rename(dump / UPDATE / "step0" / process)
        document = compare_dumps(*pair, None)
        assert document["layers"]["compared"] == 144 or document["verdict"] == "inconclusive"
