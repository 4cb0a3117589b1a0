"""The first event that differs is the answer, and its kind is the cause: each row of the table, and across ranks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.compare import compare_traces
from probe.locate import TraceAnswer, locate_trace
from tests.probe.traces import Event, Recorder, digest, item, training, write_traces

Ranks = dict[int, list[Event]]
Locate = Callable[[Ranks, Ranks], TraceAnswer]

GENERATE, REFERENCE, UPDATE = "actor_generate_sequences", "reference_compute_log_prob", "actor_update"
BLOCK = "actor.layers.1"


@pytest.fixture
def locate(tmp_path: Path) -> Locate:
    def run(a: Ranks, b: Ranks) -> TraceAnswer:
        number = len(list(tmp_path.iterdir()))
        one, two = write_traces(tmp_path / f"a{number}", a), write_traces(tmp_path / f"b{number}", b)
        found = compare_traces(one, two)
        assert found.problems == []
        answer = locate_trace(found)
        assert answer is not None
        return answer

    return run


def find(events: list[Event], step: int, kind: str, name: str, **where: Any) -> int:
    """Position of the first event like that."""
    wanted = {"step": step, "kind": kind, "name": name, **where}
    return next(i for i, event in enumerate(events) if all(event.get(key) == value for key, value in wanted.items()))


def from_on(events: list[Event], *positions: int, following: bool = True, number: int = 0) -> list[Event]:
    """The events, of which some, and with them everything behind the last, hold other values."""
    other = copy.deepcopy(events)
    for position, event in enumerate(other):
        if position in positions or (following and position > positions[-1]):
            for changed in event["items"][number:]:
                changed[3] = digest(("other", position, changed[0]))
            for rows in event.get("rows", {}).values():
                rows[:] = [digest(("other", position, row)) for row in rows]
    return other


ROWS_OF_THE_TABLE = [
    # kind and name of the event, where it is, kind and name of the cause, a word of the explanation
    ("weights", "actor", {"stage": GENERATE}, "weights", "actor.layers.0.up.weight", "same at event"),
    ("weights", "reference", {}, "weights", "reference.layers.0.up.weight", "weight sync"),
    ("buffers", "actor", {"stage": UPDATE}, "buffers", "actor.rotary.inv_freq", "buffer"),
    ("rng", "torch.cpu", {"stage": GENERATE}, "rng", "torch.cpu", "extra draw"),
    ("data", "prompts", {}, "data", "prompts", "sampler"),
    ("data", "responses", {}, "sampling", "responses", "the model's outputs"),
    ("forward_input", "actor", {"stage": GENERATE, "call": 1}, "sampling", "responses", "another token"),
    ("forward_input", "actor", {"stage": GENERATE, "call": 0}, "data", "actor", "code before the model"),
    ("forward_input", "actor", {"stage": UPDATE}, "data", "actor", "code before the model"),
    ("data", "ref_log_prob", {}, "loss", "ref_log_prob", "code after the model"),
    ("data", "loss", {"micro_step": 1}, "loss", "loss", "code after the model"),
    ("data", "rewards", {}, "rewards", "rewards", "scores"),
    ("data", "advantages", {}, "advantages", "advantages", "between the stages"),
    ("forward_output", f"{BLOCK}.down", {"stage": UPDATE}, "module_forward", f"{BLOCK}.down", "same inputs"),
    ("forward_output", "actor", {"stage": UPDATE}, "module_forward", "actor", "same inputs"),
    ("forward_input", f"{BLOCK}.down", {"stage": UPDATE}, "module_input", BLOCK, "between its modules"),
    ("forward_input", BLOCK, {"stage": UPDATE}, "module_input", "actor", "between its modules"),
    ("grad_output", "actor", {}, "loss", "actor", "first gradient"),
    ("grad_output", f"{BLOCK}.up", {}, "module_backward", BLOCK, "the one that arrived is not"),
    ("grad_output", "actor.layers.0", {}, "module_backward", "actor", "the one that arrived is not"),
    ("grad_input", f"{BLOCK}.up", {}, "module_backward", f"{BLOCK}.up", "passed on"),
    ("param_grad", "actor.layers.0.up.weight", {"note": "reduced"}, "gradient", "actor.layers.0.up.weight", "reduc"),
    ("optimizer", "actor:gradients", {}, "gradient", "actor.layers.0.up.weight", "in b alone"),
    ("optimizer", "actor:grad_norm", {}, "optimizer", "actor.grad_norm", "norm"),
    ("optimizer", "actor:clipped", {}, "optimizer", "actor.layers.0.up.weight", "clipping"),
    ("optimizer", "actor:state", {}, "optimizer", "actor.layers.0.up.weight", "state"),
    ("optimizer", "actor:weights", {}, "optimizer", "actor.layers.0.up.weight", "update"),
    ("data", "grad_norm", {}, "optimizer", "grad_norm", "clipping"),
]


@pytest.mark.parametrize(("event", "name", "where", "cause", "cause_name", "says"), ROWS_OF_THE_TABLE)
def test_the_kind_of_the_first_event_is_the_cause(
    locate: Locate, event: str, name: str, where: dict[str, Any], cause: str, cause_name: str, says: str
) -> None:
    events = training()
    position = find(events, 1, event, name, **where)
    answer = locate({0: events}, {0: from_on(events, position)})
    assert (answer.cause.kind, answer.cause.name) == (cause, cause_name)
    assert says in answer.cause.explanation
    first = answer.first
    assert (first.step, first.rank, first.event, first.name) == (1, (0,), event, name)
    assert (first.stage, first.micro_step) == (events[position]["stage"], events[position]["micro_step"])
    assert (first.call, first.tag) == (events[position]["call"] or 0, name if event == "data" else None)
    assert answer.index == position
    assert answer.hidden == []


def test_a_cache_that_was_changed_between_two_tokens_is_no_other_token(locate: Locate) -> None:
    one = training()
    position = find(one, 0, "forward_input", "actor", stage=GENERATE, call=1)
    one[position]["items"].append(["kwargs.cache.0", "float32", [2], digest("cache")])
    other = copy.deepcopy(one)
    other[position]["items"][-1][3] = digest("changed")
    cause = locate({0: one}, {0: other}).cause
    assert cause.kind == "sampling"
    assert "same tokens with something else (kwargs.cache.0): a cache" in cause.explanation


def test_the_parameter_itself_is_named_not_the_first(locate: Locate) -> None:
    events = training()
    answer = locate({0: events}, {0: from_on(events, find(events, 1, "weights", "actor"), number=2)})
    assert answer.cause.name == "actor.layers.1.up.weight"
    assert "1 more" in answer.cause.explanation


def test_a_parameters_gradient_alone_is_its_accumulation(locate: Locate) -> None:
    events = training()
    position = find(events, 1, "param_grad", f"{BLOCK}.up.weight")
    answer = locate({0: events}, {0: from_on(events, position, following=False)})
    assert (answer.cause.kind, answer.cause.name) == ("gradient", f"{BLOCK}.up.weight")


def test_gradients_of_many_parameters_and_none_that_is_passed_on_are_what_they_held_before(locate: Locate) -> None:
    events = training()
    held = [at for at, event in enumerate(events) if event["step"] == 1 and event["kind"] == "param_grad"]
    cause = locate({0: events}, {0: from_on(events, *held, following=False)}).cause
    assert (cause.kind, cause.name) == ("gradient", f"{BLOCK}.down.weight")
    assert "zero_grad" in cause.explanation


def test_a_module_that_gives_its_parameter_and_its_input_other_gradients_is_the_cause(locate: Locate) -> None:
    events = training()
    answer = locate({0: events}, {0: from_on(events, find(events, 1, "param_grad", f"{BLOCK}.up.weight"))})
    assert (answer.cause.kind, answer.cause.name) == ("module_backward", f"{BLOCK}.up")


@pytest.mark.parametrize(
    ("changed", "name", "says"),
    [
        (("log_prob", "loss"), "log_prob", "log_prob is not the same: code after the model that makes log_prob"),
        (("loss",), "loss", "log_prob is the same, loss is not: code after the model that makes loss"),
        ((), "actor", "log_prob, loss, saved later, is the same: the backward of the code after the model"),
    ],
)
def test_what_is_saved_after_the_backward_tells_the_loss_from_its_backward(
    locate: Locate, changed: tuple[str, ...], name: str, says: str
) -> None:
    events = training()
    saved = [events.pop(find(events, 1, "data", tag)) for tag in ("log_prob", "loss")]
    at = find(events, 1, "stage_end", UPDATE)
    events[at:at] = saved
    positions = [find(events, 1, "grad_output", "actor"), *(find(events, 1, "data", tag) for tag in changed)]
    answer = locate({0: events}, {0: from_on(events, *positions, following=False)})
    assert (answer.first.event, answer.first.name) == ("grad_output", "actor")
    assert (answer.cause.kind, answer.cause.name) == ("loss", name)
    assert says in answer.cause.explanation


def test_a_module_that_passes_gradients_on_in_parts_stays_the_one_around_the_rest(locate: Locate) -> None:
    events = training()
    at = find(events, 1, "grad_output", f"{BLOCK}.up")
    part = copy.deepcopy(events[find(events, 1, "grad_input", BLOCK)])
    events.insert(at, {**part, "items": [item("args.0", "the part of down")]})
    answer = locate({0: events}, {0: from_on(events, at + 1)})
    assert (answer.first.event, answer.first.name) == ("grad_output", f"{BLOCK}.up")
    assert (answer.cause.kind, answer.cause.name) == ("module_backward", BLOCK)


def test_batches_in_another_order_are_told_from_other_batches(locate: Locate) -> None:
    events = training()
    one, two = (find(events, 1, "forward_input", "actor", stage=UPDATE, micro_step=number) for number in (0, 1))
    other = from_on(events, one)
    assert locate({0: events}, {0: other}).cause.permutation is None
    other[one]["items"], other[two]["items"] = events[two]["items"], events[one]["items"]
    cause = locate({0: events}, {0: other}).cause
    assert (cause.kind, cause.name, cause.permutation) == ("data", "actor", True)
    assert "in another order" in cause.explanation


def test_where_in_a_module_around_others_its_own_code_lies_is_said(locate: Locate) -> None:
    events = training()
    for event, name, says in (
        ("forward_output", BLOCK, f"the modules inside gave the same, {BLOCK}.down last: its own code behind that"),
        ("forward_input", f"{BLOCK}.down", f"between its modules, behind {BLOCK}.up, or a hook"),
        ("forward_input", f"{BLOCK}.up", "between its modules, or a hook"),
    ):
        answer = locate({0: events}, {0: from_on(events, find(events, 1, event, name, stage=UPDATE))})
        assert says in answer.cause.explanation
    leaf = locate({0: events}, {0: from_on(events, find(events, 1, "forward_output", f"{BLOCK}.up", stage=UPDATE))})
    assert "inside" not in leaf.cause.explanation


def test_an_update_that_one_run_leaves_out_is_said_to_be_one(locate: Locate) -> None:
    events = training()
    at, end = find(events, 1, "optimizer", "actor:gradients"), find(events, 1, "optimizer", "actor:weights")
    answer = locate({0: events}, {0: [*events[:at], *events[end + 1 :]]})
    assert (answer.cause.kind, answer.cause.name) == ("calls", "actor:gradients")
    assert "a step of the optimizer of actor (gradients) is in a, not in b" in answer.cause.explanation


@pytest.mark.parametrize("kind", ["weights", "buffers", "rng"])
def test_what_differed_before_the_first_traced_event_is_said(locate: Locate, kind: str) -> None:
    events = training()
    position = next(i for i, event in enumerate(events) if event["kind"] == kind)
    answer = locate({0: events}, {0: from_on(events, position)})
    assert answer.cause.kind == kind
    assert "it differed before the first traced event" in answer.cause.explanation


def test_that_nothing_was_traced_before_it_is_said(locate: Locate) -> None:
    events = training()
    assert "it is the first traced event" in locate({0: events}, {0: from_on(events, 0)}).cause.explanation
    later = locate({0: events}, {0: from_on(events, find(events, 1, "data", "prompts"))})
    assert "first traced event" not in later.cause.explanation


def test_the_weights_tag_after_an_update_is_the_optimizers(locate: Locate) -> None:
    def run(update: bool) -> list[Event]:
        recorder = Recorder()
        recorder.enter(UPDATE)
        recorder.forward("actor", 0)
        if update:
            recorder.add("optimizer", "actor:gradients", item("layers.0.up.weight", "g"))
        recorder.leave()
        recorder.add("data", "weights", item("actor.layers.0.up.weight", "w"))
        return recorder.events

    for update, kind in ((True, "optimizer"), (False, "weights")):
        events = run(update)
        answer = locate({0: events}, {0: from_on(events, len(events) - 1)})
        assert (answer.cause.kind, answer.cause.name) == (kind, "actor.layers.0.up.weight")


class TestCalls:
    @pytest.mark.parametrize(("swap", "runs"), [(False, "a, not in b"), (True, "b, not in a")])
    def test_one_that_one_run_lacks(self, locate: Locate, swap: bool, runs: str) -> None:
        events = training()
        start = find(events, 1, "forward_input", f"{BLOCK}.up", stage=UPDATE)
        less = [*events[:start], *from_on(events, start)[start + 2 :]]  # and what follows differs
        one, two = (less, events) if swap else (events, less)
        answer = locate({0: one}, {0: two})
        assert (answer.cause.kind, answer.cause.name) == ("calls", f"{BLOCK}.up")
        assert f"was called (call 0) in {runs}" in answer.cause.explanation
        assert (answer.first.event, answer.index) == ("forward_input", start)
        assert answer.after[0]["status"] == ("extra" if swap else "missing")
        assert answer.after[1]["status"] == "different"

    def test_one_that_is_repeated(self, locate: Locate) -> None:
        run, other = Recorder(), Recorder()
        for recorder, times in ((run, 1), (other, 2)):
            recorder.enter(REFERENCE)
            for _ in range(times):
                recorder.of_module("forward_input", "reference.norm", 0)
                recorder.of_module("forward_output", "reference.norm", 0)
            recorder.forward("reference", 1)
            recorder.of_module("forward_input", "reference.norm", 2)
            recorder.of_module("forward_output", "reference.norm", 2)
            recorder.leave()
        answer = locate({0: run.events}, {0: other.events})
        assert (answer.cause.kind, answer.first.name, answer.first.call) == ("calls", "reference.norm", 1)
        assert [later["status"] for later in answer.after] == ["extra"]

    def test_two_in_another_order(self, locate: Locate) -> None:
        events = training()
        at = find(events, 1, "data", "log_prob")
        answer = locate({0: events}, {0: [*events[:at], events[at + 1], events[at], *events[at + 2 :]]})
        assert (answer.cause.kind, answer.index) == ("calls", at)
        assert "in another order" in answer.cause.explanation

    def test_another_module_in_its_place(self, locate: Locate) -> None:
        events = training()
        at = find(events, 1, "forward_input", f"{BLOCK}.up", stage=UPDATE)
        other = [*events[:at], {**events[at], "name": f"{BLOCK}.gate"}, *events[at + 1 :]]
        answer = locate({0: events}, {0: other})
        assert (answer.cause.kind, answer.cause.name) == ("calls", f"{BLOCK}.up")
        assert f"b has {BLOCK}.gate" in answer.cause.explanation

    def test_a_stage_that_one_run_never_enters(self, locate: Locate) -> None:
        events = training()
        answer = locate({0: events}, {0: [e for e in events if (e["step"], e["stage"]) != (1, REFERENCE)]})
        assert (answer.cause.kind, answer.cause.name) == ("calls", REFERENCE)
        assert (answer.first.event, answer.first.stage) == ("stage_start", REFERENCE)

    def test_another_class_under_the_same_name(self, locate: Locate) -> None:
        events = training()
        at = find(events, 1, "forward_input", f"{BLOCK}.up", stage=UPDATE)
        answer = locate({0: events}, {0: [*events[:at], {**events[at], "module": "Lora"}, *events[at + 1 :]]})
        assert answer.cause.kind == "calls"
        assert "a Linear in a, a Lora in b" in answer.cause.explanation


class TestData:
    def shuffled(self, events: list[Event], at: int) -> list[Event]:
        other = from_on(events, at)
        rows = list(reversed(events[at]["rows"][""]))
        other[at]["rows"] = {"": rows}
        return other

    @pytest.mark.parametrize("tag", ["prompts", "responses"])
    def test_rows_in_another_order(self, locate: Locate, tag: str) -> None:
        events = training()
        answer = locate({0: events}, {0: self.shuffled(events, find(events, 1, "data", tag))})
        assert (answer.cause.kind, answer.cause.permutation) == ("data", True)
        assert answer.cause.as_dict()["permutation"] is True
        assert "another order" in answer.cause.explanation

    def test_other_rows(self, locate: Locate) -> None:
        events = training()
        answer = locate({0: events}, {0: from_on(events, find(events, 1, "data", "prompts"))})
        assert answer.cause.permutation is False

    def test_rows_of_which_not_all_are_known(self, locate: Locate) -> None:
        events = training()
        at = find(events, 1, "data", "prompts")
        events[at]["items"][0][2] = [5000, 4]
        assert locate({0: events}, {0: self.shuffled(events, at)}).cause.permutation is False

    def test_two_ranks_that_are_exchanged(self, locate: Locate) -> None:
        ranks = {rank: training(rank=rank) for rank in range(3)}
        others = {rank: copy.deepcopy(events) for rank, events in ranks.items()}
        for rank, events in others.items():
            at = find(events, 1, "data", "prompts")
            if rank:
                others[rank] = from_on(events, at)
                others[rank][at] = copy.deepcopy(ranks[3 - rank][at])
        answer = locate(ranks, others)
        assert (answer.cause.kind, answer.first.rank) == ("data", (1, 2))
        assert answer.cause.as_dict()["ranks_swapped"] == [1, 2]

    def test_another_shape_is_said(self, locate: Locate) -> None:
        events = training()
        at = find(events, 1, "data", "prompts")
        other = copy.deepcopy(events)
        other[at]["items"][0][2:] = [[3, 4], digest("shorter")]
        assert "int64[4, 4] against int64[3, 4]" in locate({0: events}, {0: other}).cause.explanation


class TestRanks:
    @pytest.mark.parametrize("faulty", [0, 1, 2])
    def test_the_earliest_wins_and_what_reaches_the_others_follows(self, locate: Locate, faulty: int) -> None:
        events = training()
        cause = find(events, 1, "forward_output", f"{BLOCK}.down", stage=UPDATE)
        later = find(events, 1, "optimizer", "actor:gradients")
        others = {rank: from_on(events, cause if rank == faulty else later) for rank in range(3)}
        answer = locate(dict.fromkeys(range(3), events), others)
        assert (answer.first.rank, answer.first.name, answer.rank) == ((faulty,), f"{BLOCK}.down", faulty)

    def test_all_that_share_it_are_named(self, locate: Locate) -> None:
        events = training()
        at = find(events, 1, "grad_input", f"{BLOCK}.down")
        others = {rank: events if rank == 1 else from_on(events, at) for rank in range(4)}
        assert locate(dict.fromkeys(range(4), events), others).first.rank == (0, 2, 3)

    def test_an_earlier_step_wins(self, locate: Locate) -> None:
        events = training()
        others = {
            0: from_on(events, find(events, 2, "data", "prompts")),
            1: from_on(events, find(events, 1, "optimizer", "actor:weights")),
        }
        answer = locate({0: events, 1: events}, others)
        assert (answer.first.step, answer.first.rank) == (1, (1,))

    def test_the_order_of_the_stages_is_that_of_rank_0(self, locate: Locate) -> None:
        """Rank 1 made more calls, so that its positions say nothing of rank 0's."""
        short, long = training(tokens=2), training(tokens=9)
        early = find(long, 1, "forward_output", "actor.layers.0.up", stage=GENERATE, call=8)
        late = find(short, 1, "weights", "reference")
        assert early > late
        answer = locate({0: short, 1: long}, {0: from_on(short, late), 1: from_on(long, early)})
        assert (answer.first.rank, answer.first.stage) == ((1,), GENERATE)

    def test_what_lies_between_stages_comes_after_the_stage_before_it(self, locate: Locate) -> None:
        events = training()
        rewards, reference = find(events, 1, "data", "rewards"), find(events, 1, "weights", "reference")
        advantages = find(events, 1, "data", "advantages")
        answer = locate({0: events, 1: events}, {0: from_on(events, reference), 1: from_on(events, advantages)})
        assert answer.first.rank == (0,)
        answer = locate({0: events, 1: events}, {0: from_on(events, reference), 1: from_on(events, rewards)})
        assert answer.first.rank == (1,)


class TestNotObserved:
    def test_the_range_that_it_hides_is_named(self, locate: Locate) -> None:
        recorder = Recorder()
        recorder.enter(UPDATE)
        recorder.forward("actor", 0)
        recorder.of_module("grad_output", "actor", 0)
        recorder.add("not_observed", "actor.layers.1", note="an in-place operation on a view")
        recorder.of_module("grad_input", "actor.layers.0", 0)
        recorder.leave()
        events = recorder.events
        at = find(events, 0, "grad_input", "actor.layers.0")
        answer = locate({0: events}, {0: from_on(events, at)})
        assert answer.cause.kind == "module_backward"
        assert "actor.layers.1 could not be observed (an in-place operation on a view)" in answer.cause.explanation
        assert answer.hidden == [
            {"from": at - 1, "to": at, "name": "actor.layers.1", "note": "an in-place operation on a view"}
        ]

    def test_in_another_stage_hides_nothing(self, locate: Locate) -> None:
        events = training()
        events.insert(find(events, 1, "stage_end", REFERENCE), {
            **events[find(events, 1, "stage_end", REFERENCE)], "kind": "not_observed", "name": "x", "note": "y",
        })  # fmt: skip
        at = find(events, 1, "forward_output", f"{BLOCK}.down", stage=UPDATE)
        assert locate({0: events}, {0: from_on(events, at)}).hidden == []


def test_where_one_gradient_arrives_at_several_modules_the_innermost_encloses(locate: Locate) -> None:
    recorder = Recorder()
    recorder.enter(UPDATE)
    recorder.forward("actor", 0)
    for name in (BLOCK, "actor"):  # the model returns what its block does: the block is told first
        recorder.of_module("grad_output", name, 0)
    recorder.of_module("grad_output", f"{BLOCK}.down", 0)
    recorder.leave()
    events = recorder.events
    answer = locate({0: events}, {0: from_on(events, find(events, 0, "grad_output", f"{BLOCK}.down"))})
    assert (answer.cause.kind, answer.cause.name) == ("module_backward", BLOCK)


class TestCheckpointing:
    def events(self) -> list[Event]:
        """The block is run again in its backward; its last module and the block itself are never left."""
        recorder = Recorder()
        recorder.enter(UPDATE)
        recorder.forward("actor", 0)
        recorder.of_module("grad_output", "actor", 0)
        for kind, name in (("input", BLOCK), ("input", f"{BLOCK}.up"), ("output", f"{BLOCK}.up")):
            recorder.of_module(f"forward_{kind}", name, 0, recomputed=True)
        recorder.of_module("forward_input", f"{BLOCK}.down", 0, recomputed=True)
        for kind, name in (("output", BLOCK), ("output", f"{BLOCK}.down"), ("input", f"{BLOCK}.down")):
            recorder.of_module(f"grad_{kind}", name, 0)
        recorder.of_module("grad_output", f"{BLOCK}.up", 0)
        recorder.leave()
        return recorder.events

    def test_a_module_that_computes_something_else_the_second_time(self, locate: Locate) -> None:
        events = self.events()
        at = find(events, 0, "forward_output", f"{BLOCK}.up", recomputed=True)
        answer = locate({0: events}, {0: from_on(events, at)})
        assert (answer.cause.kind, answer.cause.name) == ("module_forward", f"{BLOCK}.up")
        assert "checkpointing ran it again" in answer.cause.explanation

    def test_running_it_again_does_not_begin_another_backward(self, locate: Locate) -> None:
        events = self.events()
        answer = locate({0: events}, {0: from_on(events, find(events, 0, "grad_output", BLOCK))})
        assert (answer.cause.kind, answer.cause.name) == ("module_backward", "actor")

    def test_modules_that_were_not_left_enclose_nothing_later(self, locate: Locate) -> None:
        events = self.events()
        at = find(events, 0, "grad_output", f"{BLOCK}.up")
        answer = locate({0: events}, {0: from_on(events, at)})
        assert (answer.cause.kind, answer.cause.name) == ("module_backward", BLOCK)


def test_the_call_of_the_enclosing_module_is_known(locate: Locate) -> None:
    events = training()
    at = find(events, 1, "forward_input", f"{BLOCK}.down", stage=GENERATE, call=2)
    answer = locate({0: events}, {0: from_on(events, at)})
    assert (answer.cause.name, answer.call) == (BLOCK, 2)


def test_a_residual_that_passes_its_part_on_first_does_not_end_a_backward(locate: Locate) -> None:
    events = training()
    at = find(events, 1, "grad_output", f"{BLOCK}.up", stage=UPDATE)
    events.insert(at, {**events[at], "kind": "grad_input", "name": BLOCK})
    answer = locate({0: events}, {0: from_on(events, at + 1)})
    assert (answer.cause.kind, answer.cause.name, answer.call) == ("module_backward", BLOCK, 0)


def test_the_events_around_it_show_how_it_spreads(locate: Locate) -> None:
    events = training()
    at = find(events, 1, "forward_output", f"{BLOCK}.down", stage=UPDATE)
    answer = locate({0: events}, {0: from_on(events, at)})
    assert [event["i"] for event in answer.before] == list(range(at - 20, at))
    with_items = [i for i in range(at + 1, len(events)) if events[i]["items"]]
    assert [event["i"] for event in answer.after] == with_items[:50]
    assert {event["status"] for event in answer.after} == {"different"}
    (only,) = answer.difference["items"]
    assert (only["path"], only["a"]["digest"]) == ("out", events[at]["items"][0][3])
    assert only["b"]["digest"] == digest(("other", at, "out"))


def test_a_long_stage_is_looked_at_in_bounded_pieces(locate: Locate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probe.locate.trace_context.MOST_PARSED", 10)
    events = training(tokens=20)
    at = find(events, 1, "data", "responses")
    answer = locate({0: events, 1: events}, {0: from_on(events, at), 1: from_on(events, at - 3)})
    assert answer.first.rank == (1,)  # positions are counted all the same
    assert len(answer.before) == 20
