"""Traces compared: nothing that differs is passed over, and nothing is taken for equal that was not compared."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.compare import RankTrace, TraceComparison, compare_traces
from probe.compare import trace as compare_module
from probe.store import trace_reader
from tests.probe.traces import Event, Recorder, digest, item, seal, trace_bytes, training, write_traces

Ranks = dict[int, list[Event]]
Compare = Callable[..., TraceComparison]

KINDS = {
    "stage_start", "stage_end", "weights", "buffers", "rng", "forward_input", "forward_output", "grad_output",
    "grad_input", "param_grad", "optimizer", "data",
}  # fmt: skip


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Writes two dumps and compares their traces."""

    def run(a: Ranks, b: Ranks, last_step: int | None = None, **of_b: Any) -> TraceComparison:
        number = len(list(tmp_path.iterdir()))
        one, two = write_traces(tmp_path / f"a{number}", a), write_traces(tmp_path / f"b{number}", b, **of_b)
        return compare_traces(one, two, last_step)

    return run


def changed(events: list[Event], *positions: int) -> list[Event]:
    """The same events, of which some hold something else."""
    found = copy.deepcopy(events)
    for position in positions:
        found[position]["items"][0][3] = digest(("changed", position))
    return found


def counts(found: RankTrace) -> dict[str, int]:
    return {status: count for status, count in found.counts.items() if count}


def test_the_training_has_every_kind() -> None:
    assert {event["kind"] for event in training()} == KINDS


def test_equal_traces_have_no_difference(compare: Compare) -> None:
    events = training()
    result = compare({0: events, 1: training(rank=1)}, {0: events, 1: training(rank=1)})
    assert (result.problems, result.recorded, result.whole) == ([], True, True)
    assert (result.compared, result.differences) == (2 * len(events), 0)
    assert all(found.first is None for found in result.ranks.values())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_changed_event_is_the_first_and_the_only_one(compare: Compare, data: st.DataObject) -> None:
    events = training(steps=2)
    position = data.draw(st.integers(0, len(events) - 1).filter(lambda i: bool(events[i]["items"])))
    found = compare({0: events}, {0: changed(events, position)}).ranks[0]
    assert found.first is not None
    assert (found.first.status, found.first.event.index, found.first_index) == ("different", position, position)
    assert counts(found) == {"same": len(events) - 1, "different": 1}
    assert found.following == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_one_event_that_one_run_lacks_is_the_first_and_the_only_one(compare: Compare, data: st.DataObject) -> None:
    events = training(steps=2)
    position = data.draw(st.integers(0, len(events) - 1))
    less = [event for number, event in enumerate(events) if number != position]
    for a, b, status in ((events, less, "missing"), (less, events, "extra")):
        found = compare({0: a}, {0: b}).ranks[0]
        assert found.first is not None
        assert (found.first.status, found.first.event.index, found.first_index) == (status, position, position)
        assert counts(found) == {"same": len(less), status: 1}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(0, 300), min_size=1, max_size=120))
def test_the_first_of_many_and_those_that_follow(compare: Compare, positions: set[int]) -> None:
    events = training(steps=2)
    chosen = [position for position in sorted(positions) if position < len(events) and events[position]["items"]]
    found = compare({0: events}, {0: changed(events, *chosen)}).ranks[0]
    assert counts(found) == {"same": len(events) - len(chosen)} | ({"different": len(chosen)} if chosen else {})
    seen = [difference.event.index for difference in (*([found.first] if found.first else []), *found.following)]
    assert seen == chosen[: 1 + compare_module.FOLLOWING]
    assert found.last_index == (chosen[-1] if chosen else None)


@pytest.mark.parametrize("size", [64, 1000, 5000])
def test_pieces_of_any_size_give_the_same(compare: Compare, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    events = training()
    middle = len(events) // 2
    less = [*events[:100], *events[104:]]
    want = compare({0: events}, {0: changed(less, 99, middle, middle + 1)}).ranks[0]
    monkeypatch.setattr(trace_reader, "CHUNK", size)
    found = compare({0: events}, {0: changed(less, 99, middle, middle + 1)}).ranks[0]
    assert (counts(found), found.first, found.following) == (counts(want), want.first, want.following)
    assert counts(found)["missing"] == 4


def test_small_windows_take_pieces_that_are_missing_one_after_the_other(
    compare: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare_module, "WINDOW", 60)
    events = training(steps=4)
    gone = {10, 11, *range(200, 230), 400}
    less = [event for position, event in enumerate(events) if position not in gone]
    found = compare({0: events}, {0: less}).ranks[0]
    assert counts(found) == {"same": len(less), "missing": len(gone)}
    assert found.first_index == 10


def test_a_whole_pass_less_is_missing_and_its_followers_are_not_different(compare: Compare) -> None:
    run, other = Recorder(), Recorder()
    for recorder, passes in ((run, range(5)), (other, (0, 2, 3, 4))):
        recorder.enter("reference_compute_log_prob")
        for number in passes:
            recorder.forward("reference", number)
        recorder.leave()
    found = compare({0: run.events}, {0: other.events}).ranks[0]
    of_a_pass = (len(run.events) - 2) // 5
    assert counts(found) == {"same": len(other.events), "missing": of_a_pass}
    assert found.first is not None
    assert (found.first.status, found.first.event.name, found.first.event.call) == ("missing", "reference", 1)


def test_calls_that_are_numbered_otherwise_for_no_reason_differ(compare: Compare) -> None:
    events = training(steps=1)
    position = next(number for number, event in enumerate(events) if event["call"] == 1)
    other = copy.deepcopy(events)
    other[position]["call"] = 7
    found = compare({0: events}, {0: other}).ranks[0]
    assert counts(found) == {"same": len(events) - 1, "different": 1}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"module": "Other"}, id="class"),
        pytest.param({"note": "why"}, id="note"),
        pytest.param({"recomputed": True}, id="recomputed"),
        pytest.param({"another": 1}, id="a key that is not known"),
        pytest.param({"zebra": [1]}, id="a key that is not known, behind the step"),
        pytest.param({"items": [item("out", 1), item("out", 1)]}, id="one more item"),
        pytest.param({"items": []}, id="no item"),
        pytest.param({"micro_step": 5}, id="micro-step"),
        pytest.param({"stage": None}, id="stage"),
        pytest.param({"name": "reference.other"}, id="name"),
    ],
)
def test_everything_that_an_event_says_counts(compare: Compare, change: dict[str, Any]) -> None:
    events = training(steps=1)
    position = next(number for number, event in enumerate(events) if event["name"] == "reference.layers.1.up")
    other = [*events[:position], {**events[position], **change}, *events[position + 1 :]]
    result = compare({0: events}, {0: other})
    assert result.differences
    assert result.ranks[0].first_index == position


@pytest.mark.parametrize("field", [1, 2, 3])
def test_dtype_shape_and_digest_count(compare: Compare, field: int) -> None:
    events = training(steps=1)
    other = copy.deepcopy(events)
    other[-1]["items"][0][field] = {1: "bfloat16", 2: [4, 2], 3: digest("other")}[field]
    assert compare({0: events}, {0: other}).differences == 1


class TestNotObserved:
    def events(self, note: str = "inside torch.compile") -> list[Event]:
        run = Recorder()
        run.enter("actor_update")
        run.forward("actor", 0)
        run.add("not_observed", "actor.layers.0", note=note)
        run.forward("actor", 1)
        run.leave()
        return run.events

    def test_is_never_equal(self, compare: Compare) -> None:
        events = self.events()
        result = compare({0: events}, {0: events})
        assert counts(result.ranks[0]) == {"same": len(events) - 1, "not_observed": 1}
        assert result.compared == len(events) - 1
        assert result.whole

    def test_is_not_equal_behind_a_difference_or_a_shift_either(self, compare: Compare) -> None:
        events = self.events()
        assert counts(compare({0: events}, {0: changed(events, 1)}).ranks[0])["not_observed"] == 1
        assert counts(compare({0: events}, {0: [events[0], *events[3:]]}).ranks[0])["not_observed"] == 1

    def test_for_another_reason_differs(self, compare: Compare) -> None:
        result = compare({0: self.events()}, {0: self.events("a view")})
        assert counts(result.ranks[0])["different"] == 1

    def test_in_one_run_only_differs(self, compare: Compare) -> None:
        events = self.events()
        less = [event for event in events if event["kind"] != "not_observed"]
        found = compare({0: events}, {0: less}).ranks[0]
        assert found.first is not None
        assert (found.first.status, found.first.event.kind) == ("missing", "not_observed")


class TestWhatCannotBeCompared:
    def test_a_trace_that_only_one_run_has(self, tmp_path: Path) -> None:
        one, two = write_traces(tmp_path / "a", {0: training(1)}), write_traces(tmp_path / "b", {})
        for left, right in ((one, two), (two, one)):
            result = compare_traces(left, right)
            assert (result.recorded, result.whole, result.compared) == (True, False, 0)
            assert result.problems == [f"{two}: has no traces; that of rank 0 in {one} was not compared"]

    def test_a_rank_that_only_one_run_has(self, compare: Compare) -> None:
        result = compare({0: training(1), 1: training(1)}, {0: training(1)})
        assert result.compared == len(training(1))
        assert "rank 1 has no trace" in result.problems[0]

    def test_dumps_without_traces_have_nothing_to_say(self, tmp_path: Path) -> None:
        for name in "ab":
            write_traces(tmp_path / name, {})
            (tmp_path / name / "trace").rmdir()
        result = compare_traces(tmp_path / "a", tmp_path / "b")
        assert (result.recorded, result.problems) == (False, [])

    def test_digests_of_different_algorithms(self, compare: Compare) -> None:
        result = compare({0: training(1)}, {0: training(1)}, algorithms=("device-2x64",))
        assert (result.compared, result.whole) == (0, False)
        assert "different algorithms (xxh3-128 and device-2x64)" in result.problems[0]

    def test_digests_whose_algorithm_one_run_does_not_name(self, compare: Compare) -> None:
        assert not compare({0: training(1)}, {0: training(1)}, algorithms=None).whole

    def test_manifests_of_different_algorithms(self, tmp_path: Path, edit_json: Callable[..., None]) -> None:
        one, two = (write_traces(tmp_path / name, {0: training(1)}) for name in "ab")
        edit_json(two / "manifest.json", digest="blake2b-128")
        result = compare_traces(one, two)
        assert (result.compared, result.whole) == (0, False)

    def test_what_lies_behind_the_end_of_a_run_that_did_not_finish(self, compare: Compare) -> None:
        events = training()
        result = compare({0: events}, {0: events[:300]}, complete=False)
        assert counts(result.ranks[0]) == {"same": 300, "not_compared": len(events) - 300}
        assert (result.differences, result.whole) == (0, False)

    def test_a_difference_in_what_both_have_of_a_run_that_did_not_finish(self, compare: Compare) -> None:
        events = training()
        result = compare({0: events}, {0: changed(events, 250)[:300]}, complete=False)
        assert counts(result.ranks[0]) == {"same": 299, "different": 1, "not_compared": len(events) - 300}

    def test_what_one_finished_run_has_more_is_missing(self, compare: Compare) -> None:
        events = training()
        found = compare({0: events}, {0: events[:300]}).ranks[0]
        assert counts(found) == {"same": 300, "missing": len(events) - 300}
        assert (found.first_index, len(found.following)) == (300, compare_module.FOLLOWING)

    def test_a_file_that_was_changed_says_nothing(self, tmp_path: Path) -> None:
        events = training()
        one, two = (write_traces(tmp_path / name, {0: events}) for name in "ab")
        (two / "trace/rank0.jsonl").write_bytes(trace_bytes(changed(events, 40)))
        result = compare_traces(one, two)
        assert (result.ranks, result.whole) == ({}, False)
        assert "was changed after it was written" in result.problems[0]


@pytest.mark.parametrize(("last_step", "same"), [(0, 1), (1, 2), (2, 3), (9, 3)])
def test_steps_after_the_last_that_was_asked_for_are_left_out(compare: Compare, last_step: int, same: int) -> None:
    events = training()
    more = [*events, {**events[-1], "step": 3, "items": []}]
    result = compare({0: events}, {0: more}, last_step)
    assert result.ranks[0].counts["same"] == len(events) * same // 3
    assert result.ranks[0].counts["extra"] == (last_step > 2)
    assert result.whole


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**9))
def test_bytes_put_anywhere_are_never_identical(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Whoever can write the manifest too: no traceback, and never equal when the events are not."""
    source = random.Random(seed)
    folder = tmp_path_factory.mktemp("hostile")
    events = training(1)
    one, two = (write_traces(folder / name, {0: events}) for name in "ab")
    path = two / "trace/rank0.jsonl"
    content = bytearray(path.read_bytes())
    for _ in range(source.randint(1, 4)):
        start = source.randrange(len(content))
        end = start + source.choice([0, 1, 3, 200])
        content[start:end] = source.choice(
            [b"", b"\n", b"\r", b"\0", b'"', b"7", b"}\n{", b"[" * 3000, b"\xff", b"null"]
        )
    path.write_bytes(bytes(content))
    seal(two, [0])
    result = compare_traces(one, two)
    equal = (
        [json.loads(line) for line in path.read_bytes().splitlines()] if not result.differences and result.whole else []
    )
    if result.whole and not result.differences:
        assert equal == [{**event, "i": position} for position, event in enumerate(events)]
