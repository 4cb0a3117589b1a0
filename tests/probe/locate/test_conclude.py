"""The answer from two pairs of runs: what the second says about the first, and when its layers do not speak of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.compare import LayerComparison, compare_key_data, compare_layers
from probe.locate import Conclusion, SecondPair, conclude, first_key_data
from probe.store.reader import read_dump

MakeDump = Callable[..., Path]
Conclude = Callable[..., Conclusion]

STAGES = {
    "responses": "actor_generate_sequences",
    "ref_log_prob": "reference_compute_log_prob",
    "loss": "actor_update",
    "grad_norm": "actor_update",
}


def run(**values: float) -> list[tuple[str, float, dict[str, Any]]]:
    """A run's saves in causal order; each is 1.0 unless told otherwise."""
    tags = ("prompts", "responses", "rewards", "ref_log_prob", "loss", "grad_norm")
    return [(tag, values.get(tag, 1.0), {"stage": STAGES.get(tag)}) for tag in tags]


@pytest.fixture
def answer(make_dump: MakeDump) -> Conclude:
    """The conclusion from runs a, b and perhaps c, d with their layers."""

    def find(a: Any, b: Any, c: Any = None, d: Any = None, layers: LayerComparison | None = None) -> Conclusion:
        one, two = read_dump(make_dump("a", a)), read_dump(make_dump("b", b))
        comparison = compare_key_data(one, two)
        second = None
        if c is not None:
            three, four = read_dump(make_dump("c", c)), read_dump(make_dump("d", d))
            second = SecondPair(compare_key_data(three, four), layers or LayerComparison(), three)
        return conclude(first_key_data(comparison), comparison, one, two, second)

    return find


@pytest.fixture(scope="module")
def differing_layers(layer_runs: Path) -> LayerComparison:
    return compare_layers(layer_runs / "base", layer_runs / "both-ranks")


@pytest.fixture(scope="module")
def equal_layers(layer_runs: Path) -> LayerComparison:
    return compare_layers(layer_runs / "base", layer_runs / "again")


def test_no_difference_has_no_cause(answer: Conclude) -> None:
    found = answer(run(), run())
    assert (found.first, found.cause.kind, found.reproduced) == (None, "none", None)


def test_without_a_second_pair_the_key_data_speaks(answer: Conclude) -> None:
    found = answer(run(), run(rewards=2.0))
    assert found.first is not None
    assert (found.first.tag, found.cause.kind, found.reproduced) == ("rewards", "rewards", None)


def test_layers_that_differ_name_the_module(answer: Conclude, differing_layers: LayerComparison) -> None:
    found = answer(run(), run(ref_log_prob=2.0), run(ref_log_prob=3.0), run(ref_log_prob=4.0), differing_layers)
    assert (found.cause.kind, found.cause.name) == ("module_forward", "reference.b.fc1")
    assert (found.reproduced, found.sides_with, found.notes) == (True, None, [])


@pytest.mark.parametrize(
    ("tag", "kind"), [("ref_log_prob", "loss"), ("responses", "sampling"), ("loss", "loss"), ("grad_norm", "optimizer")]
)
def test_layers_that_are_equal_where_key_data_differs_again_acquit_the_modules(
    answer: Conclude, equal_layers: LayerComparison, tag: str, kind: str
) -> None:
    found = answer(run(), run(**{tag: 2.0}), run(**{tag: 3.0}), run(**{tag: 4.0}), equal_layers)
    assert (found.cause.kind, found.reproduced) == (kind, True)
    assert found.first is not None
    assert found.first.tag == tag


@pytest.mark.parametrize(("value", "side"), [(1.0, "a"), (2.0, "b"), (3.0, None)])
def test_a_second_pair_that_agrees_did_not_reproduce_it(
    answer: Conclude, equal_layers: LayerComparison, value: float, side: str | None
) -> None:
    same = run(ref_log_prob=value)
    found = answer(run(), run(ref_log_prob=2.0), same, same, equal_layers)
    assert (found.reproduced, found.sides_with) == (False, side)
    assert found.cause.kind == "none", "equal layers of runs that agree acquit nobody"
    assert found.first is not None
    assert found.first.tag == "ref_log_prob"
    assert any("not reproduced" in note for note in found.notes)


def test_a_second_pair_that_differs_only_later_did_not_reproduce_it(
    answer: Conclude, equal_layers: LayerComparison
) -> None:
    c, d = run(ref_log_prob=2.0, grad_norm=3.0), run(ref_log_prob=2.0, grad_norm=4.0)
    found = answer(run(), run(ref_log_prob=2.0), c, d, equal_layers)
    assert (found.reproduced, found.sides_with) == (False, "b")
    assert found.cause.kind == "none"


def test_a_second_pair_that_differs_earlier_says_nothing_of_it(
    answer: Conclude, differing_layers: LayerComparison
) -> None:
    c, d = run(responses=3.0, ref_log_prob=3.0), run(responses=4.0, ref_log_prob=4.0)
    found = answer(run(), run(ref_log_prob=2.0), c, d, differing_layers)
    assert found.first is not None
    assert (found.first.tag, found.cause.kind) == ("ref_log_prob", "none")
    assert any("differ before" in note for note in found.notes)


def test_a_second_pair_that_differs_earlier_in_the_dumped_stage_shows_it(
    answer: Conclude, differing_layers: LayerComparison
) -> None:
    """An intermittent fault of one stage shows in the loss of one pair, in the gradient of the other."""
    c, d = run(loss=3.0, grad_norm=3.0), run(loss=4.0, grad_norm=4.0)
    found = answer(run(), run(grad_norm=2.0), c, d, differing_layers)
    assert (found.cause.kind, found.cause.name, found.reproduced) == ("module_forward", "reference.b.fc1", True)


@pytest.mark.parametrize("problems", [["a tensor could not be read"], []], ids=["damaged", "nothing compared"])
def test_layers_that_could_not_be_compared_acquit_nobody(
    answer: Conclude, equal_layers: LayerComparison, problems: list[str]
) -> None:
    layers = LayerComparison(equal_layers.compared if problems else 0, [], equal_layers.stages, problems)
    found = answer(run(), run(ref_log_prob=2.0), run(ref_log_prob=3.0), run(ref_log_prob=4.0), layers)
    assert found.cause.kind == "none"
