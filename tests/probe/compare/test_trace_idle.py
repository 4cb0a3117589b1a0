"""Random states that differ: of a generator from which nothing was drawn, and of others."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.compare import TraceComparison, compare_traces
from probe.comparison import compare_dumps
from tests.probe.traces import Event, digest, item, training, write_traces

Compare = Callable[[list[Event], list[Event]], TraceComparison]


def with_python(events: list[Event], *seeds: str) -> list[Event]:
    """The events with the state of one more generator at each stage's start: the last of the seeds goes on."""
    made: list[Event] = []
    given = list(seeds)
    for event in copy.deepcopy(events):
        if event["kind"] == "rng":
            seed = given.pop(0) if len(given) > 1 else given[0]
            made.append({**event, "name": "python", "items": [item("", ("python", seed), (625,), "uint64")]})
        made.append(event)
    return made


def changed(events: list[Event], at: int) -> list[Event]:
    """The events, of which one and all behind it hold other values, but for random states."""
    other = copy.deepcopy(events)
    for event in other[at:]:
        if event["kind"] != "rng":
            for one in event["items"]:
                one[3] = digest(("other", one))
    return other


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    def run(a: list[Event], b: list[Event]) -> TraceComparison:
        write_traces(tmp_path / "a", {0: a})
        write_traces(tmp_path / "b", {0: b})
        return compare_traces(tmp_path / "a", tmp_path / "b")

    return run


def test_a_state_from_which_nothing_was_drawn_is_no_difference(compare: Compare, tmp_path: Path) -> None:
    found = compare(with_python(training(), "one"), with_python(training(), "two"))
    assert (found.differences, found.ranks[0].idle, found.compared) == (0, ("python",), len(training()))
    assert found.ranks[0].counts["idle"] == 12
    document = compare_dumps(tmp_path / "a", tmp_path / "b", None)
    assert document["verdict"] == "identical"
    assert any("random states of python differ, and nothing drew from them" in note for note in document["notes"])


def test_it_hides_nothing_that_differs_before_the_last_look(compare: Compare) -> None:
    events = training()
    at = next(i for i, event in enumerate(events) if event["kind"] == "forward_output" and event["step"] == 1)
    found = compare(with_python(events, "one"), with_python(changed(events, at), "two")).ranks[0]
    assert found.first is not None
    assert (found.first.event.kind, found.first.event.name) == ("forward_output", events[at]["name"])
    assert found.counts["idle"] == 12


def test_what_differs_after_the_last_look_may_come_from_it(compare: Compare) -> None:
    events = training()
    at = max(i for i, event in enumerate(events) if event["kind"] == "grad_input")
    found = compare(with_python(events, "one"), with_python(changed(events, at), "two")).ranks[0]
    assert found.first is not None
    assert (found.first.event.kind, found.first.event.name, found.idle) == ("rng", "python", ())


def test_a_state_that_was_drawn_from_counts(compare: Compare) -> None:
    found = compare(with_python(training(), "one", "later"), with_python(training(), "two", "later")).ranks[0]
    assert found.first is not None
    assert (found.first.event.name, found.differences, found.idle) == ("python", 1, ())


def test_a_state_that_one_run_draws_from_counts(compare: Compare) -> None:
    found = compare(with_python(training(), "one", "one", "drawn"), with_python(training(), "one")).ranks[0]
    assert found.first is not None
    assert (found.first.event.name, found.differences, found.idle) == ("python", 10, ())


def test_of_two_states_the_one_that_counts_is_named(compare: Compare) -> None:
    events = training()
    other = copy.deepcopy(events)
    for event in other:
        if event["kind"] == "rng":
            event["items"][0][3] = digest(("seed", event["step"], event["stage"]))
    found = compare(with_python(events, "one"), with_python(other, "two")).ranks[0]
    assert found.first is not None
    assert (found.first.event.name, found.idle) == ("torch.cpu", ("python",))
