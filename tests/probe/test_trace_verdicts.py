"""``firstdiff compare`` on dumps that hold traces: verdict, document and report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.collect.values import Snapshot
from probe.comparison import compare_dumps
from probe.store.writer import DumpWriter
from tests.probe.traces import Event, Recorder, digest, item, seal, trace_bytes, training, write_traces

Saves = list[tuple[str, Any, int]]
MASK = torch.tensor([[1, 1, 0]])


def run_with(saves: Saves, mask: Any = None, weights: object = "w", update: bool = True) -> tuple[list[Event], Any]:
    """A run's events, and what writes its key data: both say the same of what was saved."""
    shots = [(tag, step, Snapshot.take(value, mask)) for tag, value, step in saves]
    run = Recorder()
    for tag, step, shot in shots:
        run.step = step
        run.enter("actor_update")
        run.forward("actor", step)
        run.add("data", tag, ["", shot.dtype, list(shot.shape), shot.digest], call=0)
        run.backward("actor", step)
        if update:
            run.add("optimizer", "actor:weights", item("layers.0.up.weight", (step, weights)))
        run.leave()

    def save(writer: DumpWriter) -> None:
        for tag, step, shot in shots:
            writer.add(
                tag, step, 0, 0, "", "actor_update", shot.numbers, shot.dtype, shot.shape, shot.digest, shot.masked
            )

    return run.events, save


@pytest.fixture
def compared(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Writes two runs with key data and traces, and compares the dumps."""

    def compare(a: tuple[list[Event], Any], b: tuple[list[Event], Any], **options: Any) -> dict[str, Any]:
        for name, (events, save) in (("a", a), ("b", b)):
            write_traces(tmp_path / name, {0: events}, save=save, **options)
        return compare_dumps(tmp_path / "a", tmp_path / "b", None)

    return compare


def values(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers])


PLAIN: Saves = [("loss", values(1.0, 2.0, 0.0), 0), ("loss", values(3.0, 4.0, 5.0), 1)]
SIGNED: Saves = [("loss", values(1.0, 2.0, -0.0), 0), PLAIN[1]]
OTHER: Saves = [("loss", values(1.0, 2.5, 0.0), 0), PLAIN[1]]


class TestEquivalent:
    def test_signs_of_zeros_from_which_nothing_follows(self, compared: Callable[..., dict[str, Any]]) -> None:
        document = compared(run_with(PLAIN), run_with(SIGNED))
        assert document["verdict"] == "equivalent"
        assert document["equivalent"] == [
            {"step": 0, "rank": 0, "micro_step": 0, "tag": "loss", "path": None, "call": 0, "only": "the sign of zeros"}
        ]
        assert (document["cause"]["kind"], document["first"]["tag"]) == ("none", "loss")
        assert "every later event and all weights are the same" in document["cause"]["explanation"]

    def test_payloads_of_nan(self, compared: Callable[..., dict[str, Any]]) -> None:
        nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
        left, right = (run_with([("loss", value.reshape(1, 1), 0)]) for value in nans)
        assert compared(left, right)["verdict"] == "equivalent"

    def test_entries_outside_the_mask(self, compared: Callable[..., dict[str, Any]]) -> None:
        other: Saves = [("loss", values(1.0, 2.0, 9.0), 0), PLAIN[1]]
        document = compared(run_with(PLAIN, MASK), run_with(other, MASK))
        assert document["verdict"] == "equivalent"
        assert document["equivalent"][0]["only"] == "entries outside the mask"

    @pytest.mark.parametrize(
        ("a", "b"),
        [
            pytest.param(run_with(PLAIN), run_with(OTHER), id="a value"),
            pytest.param(run_with(PLAIN), run_with(SIGNED, weights="other"), id="weights after it"),
            pytest.param(run_with(PLAIN, update=False), run_with(SIGNED, update=False), id="no weights are shown"),
            pytest.param(
                run_with(PLAIN, MASK), run_with([("loss", values(1, 7, 0), 0), PLAIN[1]], MASK), id="in the mask"
            ),
            pytest.param(run_with(PLAIN[:1]), run_with([*SIGNED[:1], *PLAIN[1:]]), id="and more is saved"),
        ],
    )
    def test_is_nothing_of_which_something_follows(
        self, compared: Callable[..., dict[str, Any]], a: Any, b: Any
    ) -> None:
        document = compared(a, b)
        assert (document["verdict"], document["equivalent"]) == ("divergent", [])

    def test_is_nothing_where_something_was_not_observed(self, compared: Callable[..., dict[str, Any]]) -> None:
        runs = [run_with(PLAIN), run_with(SIGNED)]
        for events, _ in runs:
            events.insert(30, {**events[30], "kind": "not_observed", "items": [], "note": "compiled"})
        assert compared(*runs)["verdict"] == "divergent"

    def test_is_nothing_where_a_trace_was_not_compared(self, compared: Callable[..., dict[str, Any]]) -> None:
        assert compared(run_with(PLAIN), run_with(SIGNED), complete=False)["verdict"] == "divergent"

    def test_is_nothing_where_the_trace_does_not_show_the_difference(
        self, compared: Callable[..., dict[str, Any]]
    ) -> None:
        events, _ = run_with(PLAIN)
        assert compared((events, run_with(PLAIN)[1]), (events, run_with(SIGNED)[1]))["verdict"] == "divergent"

    def test_is_nothing_where_another_event_differs(self, compared: Callable[..., dict[str, Any]]) -> None:
        events, save = run_with(SIGNED)
        events[3]["items"][0][3] = digest("other")
        document = compared(run_with(PLAIN), (events, save))
        assert document["verdict"] == "divergent"
        assert (document["cause"]["kind"], document["trace"]["first_index"]) == ("module_input", 3)


class TestVerdicts:
    def test_traces_that_are_the_same(self, tmp_path: Path) -> None:
        for name in "ab":
            write_traces(tmp_path / name, {0: training()})
        document = compare_dumps(tmp_path / "a", tmp_path / "b", None)
        assert document["verdict"] == "identical"
        assert document["trace"]["compared"] == len(training())
        assert (document["trace"]["first_index"], document["first"], document["not_compared"]) == (None, None, [])

    def test_traces_alone_make_a_difference(self, tmp_path: Path) -> None:
        events = training()
        other = json.loads(json.dumps(events))
        other[100]["items"][0][3] = digest("other")
        for name, of_run in (("a", events), ("b", other)):
            write_traces(tmp_path / name, {0: of_run})
        document = compare_dumps(tmp_path / "a", tmp_path / "b", tmp_path / "out")
        trace = document["trace"]
        assert document["verdict"] == "divergent"
        assert (trace["first_index"], trace["different"], trace["missing"], trace["extra"]) == (100, 1, 0, 0)
        assert (len(trace["before"]), trace["after"], trace["hidden"]) == (20, [], [])
        assert document["first"]["event"] == trace["event"]["event"] == events[100]["kind"]
        assert json.loads((tmp_path / "out/verdict.json").read_text()) == document
        page = (tmp_path / "out/report.html").read_text()
        assert "events compared, 1 different" in page
        assert document["cause"]["explanation"].split(";")[0].split("'")[0] in page

    def test_the_traces_name_the_cause_that_key_data_cannot(self, compared: Callable[..., dict[str, Any]]) -> None:
        events, save = run_with(OTHER)
        at = next(i for i, event in enumerate(events) if event["name"] == "actor.layers.1.up") + 1
        events[at]["items"][0][3] = digest("other")
        document = compared(run_with(PLAIN), (events, save))
        assert document["key_data"]["first"]["tag"] == "loss"
        assert (document["cause"]["kind"], document["cause"]["name"]) == ("module_forward", "actor.layers.1.up")

    def test_key_data_of_an_earlier_step_counts_first(self, compared: Callable[..., dict[str, Any]]) -> None:
        events, save = run_with(PLAIN)[0], run_with(OTHER)[1]
        events[-1]["items"] = [item("other", 1)]
        document = compared(run_with(PLAIN), (events, save))
        assert document["first"]["step"] == 0
        assert document["trace"]["first_index"] == len(events) - 1

    def test_a_trace_that_only_one_run_has_is_inconclusive(
        self, tmp_path: Path, edit_json: Callable[..., None]
    ) -> None:
        events, save = run_with(PLAIN)
        write_traces(tmp_path / "a", {0: events}, save=save)
        write_traces(tmp_path / "b", {0: events}, save=save)
        (tmp_path / "b/trace/rank0.jsonl").unlink()
        edit_json(tmp_path / "b/manifest.json", traces={})
        document = compare_dumps(tmp_path / "a", tmp_path / "b", None)
        assert document["verdict"] == "inconclusive"
        assert "has no traces" in document["not_compared"][0]
        assert document["key_data"]["compared"] == 2

    def test_a_trace_that_was_changed_is_inconclusive(self, tmp_path: Path) -> None:
        for name in "ab":
            write_traces(tmp_path / name, {0: training()})
        path = tmp_path / "b/trace/rank0.jsonl"
        path.write_bytes(trace_bytes(training()[:-1]))
        document = compare_dumps(tmp_path / "a", tmp_path / "b", None)
        assert document["verdict"] == "inconclusive"
        assert "was changed after it was written" in document["not_compared"][0]
        seal(tmp_path / "b", [0])
        assert compare_dumps(tmp_path / "a", tmp_path / "b", None)["verdict"] == "divergent"

    def test_dumps_without_traces_say_null(self, compared: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
        for name in "ab":
            write_traces(tmp_path / name, {}, save=run_with(PLAIN)[1])
            (tmp_path / name / "trace").rmdir()
        trace = compare_dumps(tmp_path / "a", tmp_path / "b", None)["trace"]
        assert set(trace.values()) == {None}

    def test_empty_traces_alone_compare_nothing(self, tmp_path: Path) -> None:
        for name in "ab":
            write_traces(tmp_path / name, {0: []})
        assert compare_dumps(tmp_path / "a", tmp_path / "b", None)["verdict"] == "inconclusive"


def test_environments_that_may_differ_are_named_as_a_likely_reason(
    compared: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    for name, threads, weights in (("a", 1, "w"), ("b", 4, "other")):
        events, save = run_with(PLAIN, weights=weights)
        write_traces(tmp_path / name, {0: events}, save=save)
        (tmp_path / name / "environment.json").write_text(json.dumps({"threads": threads}))
    refused = compare_dumps(tmp_path / "a", tmp_path / "b", None)
    assert refused["verdict"] == "inconclusive"
    document = compare_dumps(tmp_path / "a", tmp_path / "b", None, ["environment.threads"])
    assert document["verdict"] == "divergent"
    assert "the environments differ, a likely reason: environment.threads" in document["notes"]


def test_the_command_says_what_the_trace_shows(firstdiff: Callable[..., Any], tmp_path: Path) -> None:
    events = training()
    other = json.loads(json.dumps(events))
    at = next(i for i, event in enumerate(events) if event["kind"] == "rng" and event["step"] == 1)
    for event in other[at:]:
        for changed in event["items"]:
            changed[3] = digest(changed)
    for name, of_run in (("a", events), ("b", other)):
        write_traces(tmp_path / name, {0: of_run})
    done = firstdiff("compare", tmp_path / "a", tmp_path / "b", "--json")
    assert done.status == 1
    assert (done.document["cause"]["kind"], done.document["first"]["event"]) == ("rng", "rng")
    assert "torch.cpu (rng)" in done.last_line
