"""The trace of a process: which events there are, in which order, and what a planted difference changes first."""

from __future__ import annotations

import json
import pickle
import random
from collections import deque
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from inspect import signature
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from probe import Probe
from probe.errors import RecordError
from probe.store.digest import digest, hasher
from probe.store.reader import read_dump
from probe.types import RunSpec

Event = dict[str, Any]


@pytest.fixture(autouse=True)
def global_state(torch_state: None) -> None:
    """Leaves torch as it was."""


@pytest.fixture
def trace(record) -> Callable[..., list[Event]]:
    """Runs code with a probe that traces, and returns the events of a rank."""

    def run(code: Callable[[Probe], object], rank: int = 0, **spec: Any) -> list[Event]:
        recording = record(trace=True, **spec)
        code(recording.probe)
        recording.probe.close()
        path = recording.folder / f"trace/rank{rank}.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()]
        assert [event["i"] for event in events] == list(range(len(events)))
        return events

    return run


def seen(events: list[Event], *kinds: str) -> list[tuple[str, str, Any]]:
    return [(e["kind"], e["name"], e["call"]) for e in events if e["kind"] in kinds]


def paths(events: list[Event], kind: str, name: str, call: int | None = 0) -> list[str]:
    (event,) = [e for e in events if (e["kind"], e["name"], e["call"]) == (kind, name, call)]
    return [item[0] for item in event["items"]]


def values(events: list[Event], kind: str, name: str, call: int | None = 0) -> list[list[Any]]:
    """Items of an event, or of the events, of this name."""
    return [item for e in events if (e["kind"], e["name"], e["call"]) == (kind, name, call) for item in e["items"]]


def of(tensor: torch.Tensor) -> str:
    plain = tensor.detach().contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    return digest(
        name, tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    )


FORWARD = ("forward_input", "forward_output")


class TestStages:
    def test_a_stage_has_weights_buffers_and_random_states_at_its_start(self, trace):
        model = torch.nn.BatchNorm1d(3)
        model.register_buffer("hidden", torch.arange(4), persistent=False)
        generator, numbers = torch.Generator(), np.random.default_rng(1)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            probe.attach_rng(sampling=generator, numbers=numbers, plain=random.Random(3))
            with probe.stage("actor_update", micro_step=4):
                pass

        events = trace(code)
        names = [(e["kind"], e["name"]) for e in events]
        rng = [("rng", name) for name in ("python", "numpy", "torch.cpu", "sampling", "numbers", "plain")]
        start, end = ("stage_start", "actor_update"), ("stage_end", "actor_update")
        assert names == [start, ("weights", "actor"), ("buffers", "actor"), *rng, end]
        assert {(e["step"], e["stage"], e["micro_step"], e["call"]) for e in events} == {(0, "actor_update", 4, None)}
        assert values(events, "weights", "actor", None)[0] == ["weight", "float32", [3], of(model.weight)]
        assert "hidden" in paths(events, "buffers", "actor", None)
        assert values(events, "rng", "sampling", None)[0][3] == of(generator.get_state())

    @pytest.mark.parametrize("kind", ["python", "numpy", "torch.cpu", "mine", "numbers"])
    def test_one_more_draw_changes_that_state_alone(self, trace, kind):
        def run(extra: bool) -> list[Event]:
            mine, numbers = torch.Generator().manual_seed(1), np.random.default_rng(1)
            torch.manual_seed(1)
            random.seed(1)
            np.random.seed(1)
            draws = {
                "python": random.random,
                "numpy": np.random.rand,
                "torch.cpu": lambda: torch.rand(1),
                "mine": lambda: torch.rand(1, generator=mine),
                "numbers": numbers.random,
            }

            def code(probe: Probe) -> None:
                probe.attach_rng(mine=mine, numbers=numbers)
                if extra:
                    draws[kind]()
                with probe.stage("actor_generate_sequences"):
                    pass

            return trace(code)

        a, b = run(False), run(True)
        assert [one["name"] for one, other in zip(a, b, strict=True) if one != other] == [kind]

    def test_a_weight_that_no_version_counter_shows_is_seen(self, trace):
        model = torch.nn.Linear(2, 2)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            for _ in range(2):
                with probe.stage("actor_update"):
                    pass
                model.weight.detach().numpy()[0, 0] += 1

        first, second = (e["items"] for e in trace(code) if e["kind"] == "weights")
        assert first[0] != second[0] and first[1] == second[1]

    def test_tied_weights_are_there_under_both_names_and_a_role_that_runs_later_is_too(self, trace):
        tied = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False))
        tied[1].weight = tied[0].weight
        other = torch.nn.Linear(2, 2)

        def code(probe: Probe) -> None:
            probe.attach(actor=tied, rollout=other)
            with probe.stage("actor_update"):
                tied(torch.ones(1, 2))
                other(torch.ones(1, 2))

        events = trace(code)
        assert paths(events, "weights", "actor", None) == ["0.weight", "1.weight"]
        order = [(e["kind"], e["name"]) for e in events]
        assert order.index(("weights", "rollout")) == order.index(("forward_input", "rollout")) - 2

    def test_ranks_of_one_process_have_a_trace_each_and_stages_entered_twice_count_anew(self, trace):
        model = torch.nn.Linear(2, 2)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            for rank in (0, 1, 1):
                with probe.stage("actor_update", rank=rank):
                    model(torch.ones(1, 2))
                    model(torch.ones(1, 2))

        calls = [("forward_input", "actor", 0), ("forward_input", "actor", 1)]
        assert seen(trace(code), "forward_input") == calls
        assert seen(trace(code, rank=1), "forward_input") == calls * 2

    def test_an_exception_in_a_stage_ends_it_and_is_the_trainers_own(self, trace):
        def code(probe: Probe) -> None:
            with pytest.raises(KeyError, match="mine"), probe.stage("actor_update"):
                raise KeyError("mine")
            with probe.stage("critic_update"):
                pass

        assert seen(trace(code), "stage_start", "stage_end") == [
            ("stage_start", "actor_update", None),
            ("stage_end", "actor_update", None),
            ("stage_start", "critic_update", None),
            ("stage_end", "critic_update", None),
        ]


class TestData:
    @pytest.mark.parametrize("key_data", ["full", "digests", "off"])
    def test_what_is_saved_is_an_event_with_its_rows(self, trace, key_data):
        prompts = torch.arange(6).reshape(3, 2)

        def code(probe: Probe) -> None:
            probe.save({"prompts": {"ids": prompts, "length": 2}}, micro_step=3)
            with probe.stage("actor_update"):
                probe.save({"loss": torch.tensor(1.0)})

        events = [e for e in trace(code, key_data=key_data) if e["kind"] == "data"]
        assert [(e["name"], e["stage"], e["micro_step"]) for e in events] == [
            ("prompts", None, 3),
            ("loss", "actor_update", 0),
        ]
        assert events[0]["items"][0] == ["ids", "int64", [3, 2], of(prompts)]
        assert events[0]["rows"]["ids"] == [of(row) for row in prompts]
        assert "rows" not in events[1]

    def test_many_rows_are_not_hashed_one_by_one(self, trace):
        events = trace(lambda probe: probe.save({"x": torch.zeros(4097, 1), "y": torch.zeros(4096, 1)}))
        assert ["rows" in e for e in events] == [False, True]


@dataclass
class Nested:
    first: torch.Tensor
    rest: dict[str, Any]


class Cache:
    """An object with tensors that changes while the model runs."""

    def __init__(self) -> None:
        self.layers = [{"keys": torch.zeros(1)}]


class Parent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = torch.nn.Linear(2, 2)
        self.idle = torch.nn.Identity()
        self.silent = Silent()

    def forward(self, x: torch.Tensor, *, mask: Any = None, cache: Any = None, fail: bool = False) -> Any:
        self.silent()
        y = self.child.forward(self.child(x))
        if fail:
            raise RuntimeError("mine")
        if cache is not None:
            self.idle((y, cache))
            cache.layers[0]["keys"] = y
        return Nested(y, {"a.b": (x, 3), "none": None})


class Mode(Enum):
    FAST = 1
    EXACT = 2


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Silent(torch.nn.Module):
    def forward(self) -> None:
        return None


class Ignoring(torch.nn.Module):
    def forward(self, given: object) -> None:
        return None


class Inherits(Parent):
    pass


class Calls(Parent):
    def forward(self, x: torch.Tensor, **kwargs: Any) -> Any:
        return super().forward(x + 1, **kwargs)


class Checkpointed(Parent):
    """Runs its child again in the backward, unless something stands in the place of its class's ``forward``."""

    ran = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(self).forward is not _CHECKPOINTED:
            return self.inner(x)
        return checkpoint(self.inner, x, use_reentrant=False)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        self.ran += 1
        return self.child(x).exp()


_CHECKPOINTED = Checkpointed.forward


class TestModules:
    def test_the_root_forward_calls_shared_modules_and_nested_values(self, trace):
        model, x = Parent(), torch.ones(1, 2)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_compute_log_prob"), torch.no_grad():
                model(x, mask={"m": torch.ones(1), "n": [True, 2.5, "t"]})

        events = trace(code)
        assert seen(events, *FORWARD) == [
            ("forward_input", "actor", 0),
            ("forward_input", "actor.silent", 0),
            ("forward_output", "actor.silent", 0),
            ("forward_input", "actor.child", 0),
            ("forward_output", "actor.child", 0),
            ("forward_input", "actor.child", 1),
            ("forward_output", "actor.child", 1),
            ("forward_output", "actor", 0),
        ]
        inputs = ["args.0", "kwargs.mask.m", "kwargs.mask.n.0", "kwargs.mask.n.1", "kwargs.mask.n.2"]
        assert paths(events, "forward_input", "actor") == inputs
        assert paths(events, "forward_output", "actor") == ["out.first", "out.rest.a\\.b.0", "out.rest.a\\.b.1"]
        assert values(events, "forward_input", "actor")[0] == ["args.0", "float32", [1, 2], of(x)]
        assert values(events, "forward_output", "actor.child", 1)[0][3] == of(model.child(model.child(x)))
        assert not values(events, "forward_input", "actor.silent")
        modules = {e["name"]: e["module"] for e in events if e["kind"] == "forward_input"}
        assert modules == {"actor": "Parent", "actor.child": "Linear", "actor.silent": "Silent"}

    @pytest.mark.parametrize("kind", [Inherits, Calls])
    def test_a_module_whose_class_inherits_its_forward_is_seen_once(self, trace, kind):
        model, plain = kind(), Parent()

        def code(probe: Probe) -> None:
            probe.attach(actor=model, reference=plain)
            with probe.stage("actor_compute_log_prob"):
                model(torch.ones(1, 2))

        events = trace(code)
        assert [one for one in seen(events, *FORWARD) if one[1] == "actor"] == [
            ("forward_input", "actor", 0),
            ("forward_output", "actor", 0),
        ]
        assert not [one for one in events if one["name"].startswith("reference")]

    def test_a_cache_is_opened_once_where_it_comes_in(self, trace):
        model = Parent()

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_generate_sequences"):
                model(torch.ones(1, 2), cache=Cache())

        events = trace(code)
        assert "kwargs.cache.layers.0.keys" in paths(events, "forward_input", "actor")
        assert paths(events, "forward_input", "actor.idle") == ["args.0.0"]

    def test_transformers_outputs_and_caches(self, trace):
        from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

        sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 11}
        config = Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1)
        model = Qwen2ForCausalLM(config).eval()
        word = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"  # new, old

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            cache = DynamicCache(config=config)
            with probe.stage("actor_generate_sequences"), torch.no_grad():
                for token in (torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int64)):
                    model(token, **{word: cache}, use_cache=True)

        events = trace(code)
        keys = [path for path in paths(events, "forward_input", "actor", 1) if path.endswith("keys")]
        assert keys == [f"kwargs.{word}.layers.0.keys"]
        out = paths(events, "forward_output", "actor", 1)
        assert "out.logits" in out and any(path.endswith("layers.0.keys") for path in out)

    def test_an_exception_passes_through_and_what_comes_after_is_right(self, trace):
        model = Parent()

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                with pytest.raises(RuntimeError, match="mine"):
                    model(torch.ones(1, 2), fail=True)
                model(torch.ones(1, 2))

        events = trace(code)
        left = [e for e in events if e.get("note") == "left by RuntimeError"]
        assert [(e["kind"], e["name"], e["call"]) for e in left] == [("forward_output", "actor", 0)]
        assert seen(events, *FORWARD)[-1] == ("forward_output", "actor", 1)

    def test_a_layer_that_looks_at_its_own_class_is_checkpointed_as_without_a_trace(self, trace):
        """As transformers' layers do: only the outermost ``forward`` of a class checkpoints."""

        def run(probe: Probe | None) -> int:
            model = Checkpointed()
            if probe is not None:
                probe.attach(actor=model)
                with probe.stage("actor_update"):
                    model(torch.ones(1, 2)).sum().backward()
            else:
                model(torch.ones(1, 2)).sum().backward()
            return model.ran

        ran: list[int] = []
        events = trace(lambda probe: ran.append(run(probe)))
        assert ran == [run(None)] == [2]
        assert [e["call"] for e in events if e.get("recomputed") and e["name"] == "actor.child"] == [0, 0]
        assert type(Checkpointed().forward.__func__) is type(Checkpointed.forward)

    def test_a_forward_that_a_library_puts_in_place_later_is_watched_too(self, trace):
        class Model(Parent):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x

        def other(model: Model, x: torch.Tensor) -> torch.Tensor:
            return own(model, x) + 1

        own = Model.forward

        def code(probe: Probe) -> None:
            model = Model()
            probe.attach(actor=model)
            Model.forward = other
            with probe.stage("actor_update"):
                assert torch.equal(model(torch.ones(1)), torch.full((1,), 2.0))

        assert seen(trace(code), *FORWARD) == [(kind, "actor", 0) for kind in FORWARD]
        assert Model.__dict__["forward"] is other, "what the library put there stays"

    def test_dictionaries_filled_in_another_order_are_the_same(self, trace):
        def code(turned: bool) -> list[Event]:
            model, one, two = Parent(), {"mask": {"m": 1, "n": 2}, "cache": None}, {"loss": 1.0, "kl": 2.0}

            def run(probe: Probe) -> None:
                def order(values: dict[str, Any]) -> dict[str, Any]:
                    return dict(sorted(values.items(), reverse=turned))

                probe.attach(actor=model)
                with probe.stage("actor_update"):
                    model(torch.ones(1, 2), **order({**one, "mask": order(one["mask"])}))
                    probe.save({"loss": order(two)})

            with torch.random.fork_rng():
                torch.manual_seed(1)
                model.load_state_dict({name: torch.ones_like(value) for name, value in model.state_dict().items()})
                return [e for e in trace(run) if e["kind"] in (*FORWARD, "data")]

        assert code(turned=False) == code(turned=True)

    def test_late_models_and_replaced_modules_are_seen_and_all_is_put_back(self, record):
        own, linear = Parent.__dict__["forward"], torch.nn.Linear.__dict__["forward"]
        assert "forward" not in Inherits.__dict__
        recording = record(trace=True)
        model = Inherits()
        with recording.probe.stage("actor_update"):
            recording.probe.attach(actor=model)
            model(torch.ones(1, 2))
        assert signature(model.forward) == signature(own.__get__(model))
        model.child = torch.nn.Bilinear(2, 2, 2)
        again = pickle.loads(pickle.dumps(deepcopy(model)))
        assert type(again) is Inherits
        with recording.probe.stage("actor_update"):
            model.child(torch.ones(1, 2), torch.ones(1, 2))
            again.child(torch.ones(1, 2), torch.ones(1, 2))  # a copy is not attached
        recording.probe.close()
        assert Parent.__dict__["forward"] is own and torch.nn.Linear.__dict__["forward"] is linear
        assert "forward" not in Inherits.__dict__
        assert all(not one._post_accumulate_grad_hooks for one in model.parameters())
        lines = (recording.folder / "trace/rank0.jsonl").read_text().splitlines()
        kinds = [(e["kind"], e.get("module")) for e in map(json.loads, lines)]
        assert ("forward_input", "Inherits") in kinds
        assert kinds.count(("forward_input", "Bilinear")) == 1

    def test_a_bound_forward_of_a_module_s_own_is_observed_copied_and_put_back(self, trace):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        plain = model.forward

        def twice(self, x):
            return torch.nn.Sequential.forward(self, x) * 2

        own = model.forward = MethodType(twice, model)
        x = torch.ones(1, 2)
        expected = model(x)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_compute_log_prob"):
                assert torch.equal(model(x), expected)
                copied = deepcopy(model)
                assert copied.forward.__self__ is copied
                with torch.no_grad():
                    copied[0].weight.zero_()
                assert not torch.equal(copied(x), expected)
            model.forward = plain  # as accelerate does when it unwraps a model
            with probe.stage("actor_update"):
                model(x)

        events = trace(code)
        calls = [(e["name"], e["call"]) for e in events if e["kind"] == "forward_output" and e["name"] == "actor"]
        assert calls == [("actor", 0), ("actor", 0)]
        assert [e for e in events if e["kind"] == "not_observed"] == []
        assert model.forward is plain
        model.forward = own

        def other(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                assert model.forward is not own

        trace(other)
        assert model.forward is own

    def test_what_cannot_be_observed_is_said(self, trace):
        model = torch.nn.ModuleDict(
            {"own": torch.nn.Linear(1, 1), "jit": torch.nn.Linear(1, 1), "id": torch.nn.Identity()}
        )
        model["own"].forward = lambda x: x
        model["jit"].compile(backend="eager")

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                model["id"](torch.eye(2).to_sparse())
                model["id"]([torch.ones(1), torch.empty(1, device="meta")])

        events = [e for e in trace(code) if e["kind"] == "not_observed"]
        assert [e["name"] for e in events] == [*["actor.own", "actor.jit"] * 2, *["actor.id"] * 4]
        assert [e["stage"] for e in events[:4]] == [None, None, "actor_update", "actor_update"], (
            "in each stage it hides in"
        )
        assert "class" in events[0]["note"] and "compile" in events[1]["note"]
        assert "sparse" in events[4]["note"] and "args.0.1" in events[6]["note"]

    def test_inside_compiled_code_nothing_breaks(self, trace):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
        x = torch.ones(1, 2)
        expected = model(x)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_compute_log_prob"):
                compiled = torch.compile(model, backend="eager", fullgraph=True)
                assert torch.equal(compiled(x), expected)

        assert not seen(trace(code), *FORWARD)

    def test_a_part_that_is_compiled_runs_in_a_model_that_is_watched(self, trace):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), Doubling())
        x = torch.ones(1, 2)
        expected = model(x)
        model[1] = torch.compile(model[1], backend="eager")

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_compute_log_prob"), torch.no_grad():
                assert torch.equal(model(x), expected)

        assert "actor.0" in [name for _, name, _ in seen(trace(code), *FORWARD)]

    def test_what_stands_in_deques_sets_and_names_is_recorded(self, trace):
        model = torch.nn.ModuleDict({"any": Ignoring()})
        given = [deque([torch.ones(1), deque([2.0])]), {"b", "a"}, Mode.FAST, torch.bfloat16]
        others = [deque([torch.ones(1), deque([3.0])]), {"b", "c"}, Mode.EXACT, torch.float16]

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                model["any"](given)
                model["any"](others)

        events = trace(code)
        assert paths(events, "forward_input", "actor.any") == [
            f"args.0.{path}" for path in ("0.0", "0.1.0", "1.0", "1.1", "2", "3")
        ]
        pairs = zip(*(values(events, "forward_input", "actor.any", call) for call in (0, 1)), strict=True)
        assert [one == two for one, two in pairs] == [True, False, False, False, False, False]

    def test_any_memory_layout_has_the_digest_of_its_values(self, trace):
        model = torch.nn.Identity()
        x = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        given = [x.t(), x[:, ::2], x[1:], x.expand(2, 3, 4), torch.view_as_complex(x.reshape(6, 2)).conj().imag, x[:0]]

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                model([x, *given])

        items = values(trace(code), "forward_input", "actor")
        assert [item[3] for item in items] == [of(one.resolve_neg().clone()) for one in [x, *given]]


class TestGradients:
    def test_what_arrives_what_is_passed_on_and_what_parameters_collect(self, trace):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        x = torch.randn(4, 2, requires_grad=True)
        kept: dict[str, torch.Tensor] = {}

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                h = model[0](x)
                t = model[1](h)
                y = model[2](t)
                for name, tensor in (("h", h), ("t", t), ("y", y)):
                    tensor.retain_grad()
                    kept[name] = tensor
                y.sum().backward()

        events = trace(code)
        for name, tensor in (("actor.0", kept["h"]), ("actor.1", kept["t"]), ("actor.2", kept["y"])):
            assert values(events, "grad_output", name) == [["out", "float32", list(tensor.shape), of(tensor.grad)]]
        for name, tensor in (("actor.0", x), ("actor.1", kept["h"]), ("actor.2", kept["t"])):
            assert values(events, "grad_input", name) == [["args.0", "float32", list(tensor.shape), of(tensor.grad)]]
        assert values(events, "param_grad", "actor.0.weight", None)[0][3] == of(model[0].weight.grad)
        order = [(e["kind"], e["name"]) for e in events if e["kind"].startswith(("grad", "param"))]
        assert order.index(("grad_output", "actor.1")) < order.index(("grad_input", "actor.1"))

    def test_the_parts_that_modules_pass_on_to_a_shared_input(self, trace):
        model = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Tanh()])
        x = torch.randn(2, 3, requires_grad=True)
        expected = {}
        for index in range(2):
            (expected[index],) = torch.autograd.grad(model[index](x).sum() * (index + 1), x)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                (model[0](x).sum() + 2 * model[1](x).sum()).backward()

        events = trace(code)
        for index in range(2):
            assert values(events, "grad_input", f"actor.{index}")[0][3] == of(expected[index])

    @pytest.mark.parametrize("inplace", [False, True])
    def test_a_view_that_is_changed_in_place_loses_no_gradient(self, trace, inplace):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(inplace=inplace), torch.nn.Linear(3, 1))

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                model(torch.ones(2, 4, 2)).sum().backward()  # the output of a 3-D Linear is a view

        events = trace(code)
        arrived = {e["name"] for e in events if e["kind"] == "grad_output"}
        passed = {e["name"] for e in events if e["kind"] == "grad_input"}
        assert arrived == {"actor", "actor.0", "actor.1", "actor.2"}
        assert passed == {"actor.1", "actor.2"}

    def test_a_gradient_that_torch_cannot_show_is_said(self, trace):
        class Half(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return (x * 2)[:, :1]

        model = torch.nn.Sequential(Half())

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                model(torch.ones(2, 3, requires_grad=True)).mul_(3).sum().backward()

        events = trace(code)
        hidden = [e for e in events if e["kind"] == "not_observed"]
        assert {e["name"] for e in hidden} == {"actor", "actor.0"}
        assert not [e for e in events if e["kind"] == "grad_output"]

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_recomputation_is_matched_by_call(self, trace, reentrant):
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
        x = torch.randn(2, 2, requires_grad=True)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            with probe.stage("actor_update"):
                y = checkpoint(lambda t: model(model(t)), x, use_reentrant=reentrant)
                checkpoint(model, y, use_reentrant=reentrant).sum().backward()

        events = trace(code)
        inputs = [
            (e["name"], e["call"], e.get("recomputed", False), e["items"])
            for e in events
            if e["kind"] == "forward_input"
        ]
        again = [(name, call) for name, call, recomputed, _ in inputs if recomputed]
        assert [call for name, call in again if name == "actor"] == [2, 0, 1]
        given = {(name, call): items for name, call, recomputed, items in inputs if not recomputed}
        assert all(given[name, call] == items for name, call, recomputed, items in inputs if recomputed)
        early = [e for e in events if e.get("note", "").startswith("left by")]
        assert bool(early) != reentrant and all(e["recomputed"] for e in early)


class TestOptimizer:
    def test_gradients_norm_clipped_state_and_weights(self, trace):
        from torch.nn.utils import clip_grad_norm_

        model = torch.nn.Linear(3, 2)
        kept: dict[str, Any] = {}

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            with probe.stage("actor_update"):
                model(torch.ones(1, 3)).sum().backward()
                kept["before"] = of(model.weight.grad)
                kept["norm"] = of(clip_grad_norm_(model.parameters(), 0.1))
                kept["after"] = of(model.weight.grad)
                optimizer.step()
            kept["optimizer"] = optimizer

        clip = torch.nn.utils.clip_grad._clip_grads_with_norm_
        events = trace(code)
        assert torch.nn.utils.clip_grad._clip_grads_with_norm_ is clip
        steps = [e["name"] for e in events if e["kind"] == "optimizer"]
        assert steps == [
            f"actor:{what}" for what in ("gradients", "grad_norm", "clipped", "clipped", "state", "weights")
        ]
        found = {e["name"]: {item[0]: item[3] for item in e["items"]} for e in events if e["kind"] == "optimizer"}
        assert found["actor:gradients"]["weight"] == kept["before"]
        assert found["actor:grad_norm"][""] == kept["norm"]
        assert found["actor:clipped"]["weight"] == kept["after"] != kept["before"]
        state = kept["optimizer"].state[model.weight]
        assert found["actor:state"]["weight.exp_avg"] == of(state["exp_avg"])
        assert "groups.0.lr" in found["actor:state"]
        assert found["actor:weights"]["weight"] == of(model.weight)

    @pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop])
    def test_any_optimizer_without_clipping_and_none_of_others(self, trace, kind):
        model, other = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)

        def code(probe: Probe) -> None:
            probe.attach(actor=model)
            for module in (model, other):
                optimizer = kind(module.parameters(), lr=0.1)
                module(torch.ones(1, 1)).sum().backward()
                optimizer.step()

        events = [e for e in trace(code) if e["kind"] == "optimizer"]
        assert [e["name"] for e in events] == ["actor:gradients", "actor:state", "actor:weights"]
        assert {e["stage"] for e in events} == {None}


def training(probe: Probe, plant: Callable[..., Any] = lambda *_: None) -> None:
    """Two steps; ``plant`` may do harm at named places."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    probe.attach(actor=model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        plant("step", step, model)
        prompts = torch.randn(4, 3)
        probe.save({"prompts": plant("prompts", step, prompts) if step else prompts})
        with probe.stage("actor_update"):
            plant("stage", step, model)
            loss = model(prompts).square().mean()
            loss.backward()
            probe.save({"loss": loss})
            plant("backward", step, model)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            plant("clipped", step, model)
            optimizer.step()
            optimizer.zero_grad()
        probe.step()


def _poke(where: str, harm: Callable[[Any], Any]) -> Callable[..., Any]:
    def plant(place: str, step: int, what: Any) -> Any:
        changed = harm(what) if place == where and step == 1 else None
        return what if changed is None else changed

    return plant


def _slower_tanh(model: Any) -> None:
    class Other(torch.nn.Tanh):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 1.0000001

    Other.__name__ = "Tanh"
    model[2] = Other()


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 2


class _Honest(_Scaled):
    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 1


def _own_backward(kind: Any) -> Callable[[Any], None]:
    class Tanh(torch.nn.Tanh):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return kind.apply(x)

    def change(model: Any) -> None:
        model[2] = Tanh()

    return change


def _add(tensor: torch.Tensor) -> None:
    tensor.detach().view(-1)[0] += 0.5


PLANTED: dict[str, tuple[Any, Any, str, str]] = {
    "weight": (None, _poke("step", lambda m: _add(m[0].weight)), "weights", "actor"),
    "draw": (None, _poke("stage", lambda m: torch.rand(1) and None), "forward_output", "actor.1"),
    "draw before": (None, _poke("step", lambda m: torch.rand(1) and None), "data", "prompts"),
    "rows": (None, _poke("prompts", lambda p: p.flip(0)), "data", "prompts"),
    "forward": (None, _poke("step", _slower_tanh), "forward_output", "actor.2"),
    "call": (None, _poke("stage", lambda m: m[2](torch.ones(1)) and None), "forward_input", "actor"),
    "backward": (
        _poke("step", _own_backward(_Honest)),
        _poke("step", _own_backward(_Scaled)),
        "grad_input",
        "actor.2",
    ),
    "gradient": (None, _poke("backward", lambda m: _add(m[3].weight.grad)), "optimizer", "actor:gradients"),
    "clipped": (None, _poke("clipped", lambda m: _add(m[3].weight.grad)), "optimizer", "actor:clipped"),
}


class TestEqualRuns:
    @pytest.mark.parametrize("name", PLANTED)
    def test_a_planted_difference_is_the_first_event_that_differs(self, record, name):
        sound, harmful, kind, what = PLANTED[name]
        traces = []
        for plant in (sound, sound, harmful):
            recording = record(trace=True)
            training(recording.probe, plant or (lambda *args: args[2] if args[0] == "prompts" else None))
            recording.probe.close()
            traces.append((recording.folder / "trace/rank0.jsonl").read_bytes())
        assert traces[0] == traces[1]
        lines = [[json.loads(line) for line in one.splitlines()] for one in traces]
        first = next(pair for pair in zip(lines[0], lines[2], strict=False) if pair[0] != pair[1])
        assert (first[0]["step"], first[0]["kind"], first[0]["name"]) == (1, kind, what)

    def test_the_manifest_vouches_for_the_whole_trace(self, record):
        recording = record(trace=True)
        training(recording.probe, lambda *args: args[2] if args[0] == "prompts" else None)
        recording.probe.close()
        data = (recording.folder / "trace/rank0.jsonl").read_bytes()
        taken = hasher()
        taken.update(data)
        manifest = json.loads((recording.folder / "manifest.json").read_text())
        assert manifest["complete"]
        assert manifest["traces"] == {
            "0": {"digest": taken.hexdigest(), "events": data.count(b"\n"), "algorithms": [manifest["digest"]]}
        }
        line = json.dumps(json.loads(data.splitlines()[3]), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        assert line.encode() == data.splitlines()[3]


def test_without_the_switch_nothing_is_traced_or_touched(record):
    forward = torch.nn.Linear.__dict__["forward"]
    recording = record()
    model = torch.nn.Linear(1, 1)
    recording.probe.attach(actor=model)
    recording.probe.attach_rng(mine=torch.Generator())
    with recording.probe.stage("actor_update"):
        assert torch.nn.Linear.__dict__["forward"] is forward
    recording.probe.close()
    assert "traces" not in json.loads((recording.folder / "manifest.json").read_text())
    assert not (recording.folder / "trace").exists()


def test_after_the_last_step_the_model_is_as_it_was(record):
    forward = torch.nn.Linear.__dict__["forward"]
    recording = record(trace=True, last_step=0)
    model = torch.nn.Linear(1, 1)
    recording.probe.attach(actor=model)
    assert torch.nn.Linear.__dict__["forward"] is not forward
    recording.probe.step()
    assert torch.nn.Linear.__dict__["forward"] is forward
    model(torch.ones(1, 1))


def test_after_a_resume_the_events_are_of_the_step_that_goes_on(trace):
    def code(probe: Probe) -> None:
        probe.resume(3)
        with probe.stage("actor_update"):
            pass
        probe.step()
        probe.save({"rewards": 1})

    assert [e["step"] for e in trace(code)] == [3] * 5 + [4]


def test_what_is_no_generator_is_refused(record):
    with pytest.raises(TypeError, match="generator"):
        record(trace=True).probe.attach_rng(mine=3)


@pytest.mark.parametrize("on_error", ["raise", "continue"])
@pytest.mark.parametrize("where", ["Recorder.items", "Recorder.open", "Recorder.next_step"])
def test_an_error_of_the_trace_ends_nothing_but_the_trace(record, on_error, where, monkeypatch, capsys):
    recording = record(trace=True, on_error=on_error)
    model = torch.nn.Linear(1, 1)
    recording.probe.attach(actor=model)
    monkeypatch.setattr(f"probe.collect.trace.events.{where}", _broken)
    for step in range(2):
        with recording.probe.stage("actor_update"):
            assert model(torch.ones(1, 1)).shape == (1, 1)
            recording.probe.save({"loss": torch.tensor(step)})
        recording.probe.step()
    assert not hasattr(torch.nn.Linear.forward, "__wrapped__"), "all is put back at once"
    recording.probe.close()
    manifest = json.loads((recording.folder / "manifest.json").read_text())
    stopped = "the trace stopped at step 0 (RecordError: broken)"
    assert manifest["errors"] == [f"{stopped}; record.trace=false checks without it"]
    assert not manifest["complete"], "it is never taken for a whole one"
    assert capsys.readouterr().err == f"firstdiff: {stopped}; training goes on\n"
    dump = read_dump(recording.folder)
    assert [(r.tag, r.step) for r in dump.records[0] if r.tag == "loss"] == [("loss", 0), ("loss", 1)]


def test_what_is_nested_in_itself_is_not_observed(trace):
    class Takes(torch.nn.Module):
        def forward(self, x: torch.Tensor, more: list[Any]) -> Any:
            return x + 1, more

    def code(probe: Probe) -> None:
        probe.attach(actor=Takes())
        more: list[Any] = [torch.ones(2)]
        more.append(more)
        probe._models["actor"](torch.zeros(2), more)

    events = trace(code)
    assert seen(events, "forward_input", "forward_output") == [
        ("forward_input", "actor", 0),
        ("forward_output", "actor", 0),
    ]
    notes = [event["note"] for event in events if event["kind"] == "not_observed"]
    assert len(notes) == 2 and all("nested too deeply, or in itself" in note for note in notes)
    assert paths(events, "forward_output", "actor")[0] == "out.0"


def _broken(*_: Any) -> Any:
    raise RecordError("broken")


def test_a_spec_carries_the_switch():
    assert RunSpec.from_json(RunSpec(run="a", dump_path="x", trace=True).to_json()).trace
