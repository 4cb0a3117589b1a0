"""What a first difference means: layers of real msprobe dumps, and key data that no layer explains."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.compare import LayerComparison, LayerDifference, compare_key_data, compare_layers
from probe.locate import Cause, First, cause_of_key_data, cause_of_layers, first_key_data
from probe.store.layers import LayerEvent, Window
from probe.store.reader import read_dump

MakeDump = Callable[..., Path]
CauseOf = Callable[..., tuple[First, Cause]]

KINDS = {  # api.md
    "module_forward", "module_backward", "module_input", "weights", "buffers", "rng", "data", "sampling", "rewards",
    "advantages", "loss", "gradient", "optimizer", "calls", "none",
}  # fmt: skip


class TestLayers:
    @pytest.mark.parametrize(
        ("run", "kind", "name", "event"),
        [
            ("output", "module_forward", "actor.b.fc1", "forward_output"),
            ("between", "module_input", "actor.b", "forward_input"),
            ("backward", "module_backward", "actor.b.act", "grad_input"),
            ("between-backward", "module_backward", "actor.b", "grad_output"),
            ("parameter-gradient", "gradient", "actor.b.fc1.weight", "param_grad"),
            ("loss", "loss", "actor.b", "grad_output"),
            ("input", "data", "actor.a", "forward_input"),
            ("weights", "weights", "reference.b.fc1.weight", "weights"),
            ("calls", "calls", "actor.b", "forward_input"),
        ],
    )
    def test_name_the_planted_cause(self, layer_runs: Path, run: str, kind: str, name: str, event: str) -> None:
        located = cause_of_layers(None, compare_layers(layer_runs / "base", layer_runs / run))
        assert located is not None
        first, cause = located
        assert (cause.kind, cause.name, first.event) == (kind, name, event)
        assert (first.step, first.rank, first.tag) == (0, (0, 1) if run == "weights" else (0,), None)
        assert cause.kind in KINDS

    def test_that_are_equal_name_nothing(self, layer_runs: Path) -> None:
        assert cause_of_layers(None, compare_layers(layer_runs / "base", layer_runs / "again")) is None

    def test_name_the_window(self, layer_runs: Path) -> None:
        located = cause_of_layers(None, compare_layers(layer_runs / "base", layer_runs / "second-window"))
        assert located is not None
        assert located[0].micro_step == 1

    @pytest.mark.parametrize(
        ("name", "opens", "kind"), [("model", True, "sampling"), ("lm_head", False, "module_input")]
    )
    def test_tell_a_drawn_token_from_code_in_the_model(self, tmp_path: Path, name: str, opens: bool, kind: str) -> None:
        window = Window(tmp_path, "actor_generate_sequences", 1, 0, 0, "actor", 0, True)
        event = LayerEvent("forward_input", name, 2, None, ())
        layers = LayerComparison(9, [LayerDifference("different", 5, window, event, False, opens)], [window.stage])
        located = cause_of_layers(None, layers)
        assert located is not None
        assert located[1].kind == kind

    def test_name_the_ranks(self, layer_runs: Path) -> None:
        located = cause_of_layers(None, compare_layers(layer_runs / "base", layer_runs / "both-ranks"))
        assert located is not None
        assert located[0].rank == (0, 1)

    def test_take_the_micro_step_of_the_key_data_in_one_window(self, layer_runs: Path, make_dump: MakeDump) -> None:
        """A stage that is entered once and saves once a micro-batch has one window for all of them."""
        saves = [("log_prob", 1.0, {"micro_step": step, "stage": "actor_update"}) for step in range(3)]
        other = [*saves[:2], ("log_prob", 2.0, saves[2][2])]
        first = first_key_data(compare_key_data(read_dump(make_dump("a", saves)), read_dump(make_dump("b", other))))
        located = cause_of_layers(first, compare_layers(layer_runs / "base", layer_runs / "output"))
        assert located is not None
        assert located[0].micro_step == 2


@pytest.fixture
def cause_of(make_dump: MakeDump) -> CauseOf:
    """The cause of the first difference of two dumps, when no layer explains it."""

    def find(left: list[Any], right: list[Any], layers_equal: bool = False) -> tuple[First, Cause]:
        a, b = read_dump(make_dump("a", left)), read_dump(make_dump("b", right))
        comparison = compare_key_data(a, b)
        first = first_key_data(comparison)
        assert first is not None
        return cause_of_key_data(first, comparison, a, b, layers_equal)

    return find


class TestKeyData:
    @pytest.mark.parametrize(
        ("tag", "stage", "layers_equal", "kind"),
        [
            ("prompts", None, False, "data"),
            ("rewards", None, False, "rewards"),
            ("advantages", None, False, "advantages"),
            ("grad_norm", "actor_update", False, "optimizer"),
            ("unheard_of", None, False, "data"),
            ("responses", "actor_generate_sequences", True, "sampling"),
            ("old_log_prob", "actor_compute_log_prob", True, "loss"),
            ("ref_log_prob", "reference_compute_log_prob", True, "loss"),
            ("loss", "actor_update", True, "loss"),
            ("responses", "actor_generate_sequences", False, "none"),
            ("ref_log_prob", "reference_compute_log_prob", False, "none"),
        ],
    )
    def test_by_tag(self, cause_of: CauseOf, tag: str, stage: str | None, layers_equal: bool, kind: str) -> None:
        place = {"step": 2, "rank": 1, "micro_step": 3, "stage": stage}
        first, cause = cause_of([(tag, 1.0, place)], [(tag, 2.0, place)], layers_equal)
        assert (cause.kind, cause.name) == (kind, tag)
        assert first == First(2, stage, (1,), 3, "data", tag, tag, 0)
        assert cause.kind in KINDS
        assert cause.explanation

    @pytest.mark.parametrize(("layers_equal", "kind"), [(False, "weights"), (True, "optimizer")])
    def test_of_weights_names_the_parameter(self, cause_of: CauseOf, layers_equal: bool, kind: str) -> None:
        pair = [[("weights", {"actor": {"model": {"w": value}}})] for value in (1.0, 2.0)]
        first, cause = cause_of(*pair, layers_equal)
        assert (first.event, first.name, first.stage) == ("weights", "actor.model.w", "actor_update")
        assert (cause.kind, cause.name) == (kind, "actor.model.w")

    @pytest.mark.parametrize("turned", [False, True])
    def test_of_a_record_that_one_run_lacks_is_calls(self, cause_of: CauseOf, turned: bool) -> None:
        pair = [[("loss", 1.0), ("loss", 2.0)], [("loss", 1.0)]]
        first, cause = cause_of(*(pair[::-1] if turned else pair))
        assert (cause.kind, first.call) == ("calls", 1)
        assert ("b, not in a" if turned else "a, not in b") in cause.explanation

    def test_says_when_rows_are_permuted(self, cause_of: CauseOf) -> None:
        rows = torch.arange(6).reshape(3, 2)
        cause = cause_of([("prompts", rows)], [("prompts", rows.flip(0))])[1]
        assert (cause.kind, cause.permutation, cause.ranks_swapped) == ("data", True, None)

    def test_says_when_rows_are_new(self, cause_of: CauseOf) -> None:
        rows = torch.arange(6).reshape(3, 2)
        assert cause_of([("prompts", rows)], [("prompts", rows + 1)])[1].permutation is False

    def test_says_when_ranks_are_swapped(self, cause_of: CauseOf) -> None:
        left = [("prompts", torch.full((2, 2), rank), {"rank": rank}) for rank in (0, 1)]
        right = [("prompts", torch.full((2, 2), 1 - rank), {"rank": rank}) for rank in (0, 1)]
        first, cause = cause_of(left, right)
        assert (cause.kind, cause.permutation, cause.ranks_swapped) == ("data", False, (0, 1))
        assert first.rank == (0, 1)

    def test_leaves_what_concerns_data_null_elsewhere(self, cause_of: CauseOf) -> None:
        cause = cause_of([("loss", 1.0)], [("loss", 2.0)])[1]
        assert (cause.permutation, cause.ranks_swapped) == (None, None)

    def test_says_when_only_masked_entries_differ(self, cause_of: CauseOf) -> None:
        mask = {"mask": torch.tensor([1, 0]), "stage": "actor_update"}
        pair = [[("log_prob", torch.tensor([1.0, value]), mask)] for value in (2.0, 3.0)]
        assert "only entries outside the mask differ" in cause_of(*pair, layers_equal=True)[1].explanation


def test_forms_for_json() -> None:
    assert Cause("data", "prompts", "why", True, (0, 1)).as_dict() == {
        "kind": "data",
        "name": "prompts",
        "explanation": "why",
        "permutation": True,
        "ranks_swapped": [0, 1],
    }
    assert First(2, None, (0, 1), 3, "data", "prompts", "prompts", 4).as_dict() == {
        "step": 2,
        "stage": None,
        "rank": [0, 1],
        "micro_step": 3,
        "event": "data",
        "name": "prompts",
        "tag": "prompts",
        "call": 4,
    }
