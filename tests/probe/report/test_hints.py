"""What to do: the file's form, that every entry can be met, and which hint is chosen for what."""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

import pytest

from probe.report import CheckResult, hint_line, markdown_summary, verdict_document
from probe.report.advice import advice
from probe.report.hints import CAUSES, DEVICES, Hint, Situation, hints_of, load_hints, parse_hints, situation_of

HINTS = load_hints()
GOOD = {"id": "x", "text": "Do it.", "source": "https://example.org/a", "kinds": ["rng"]}


def chosen(kind: str, **more: Any) -> list[str]:
    return [hint.id for hint in HINTS.choose(Situation(kind, **more))]


@pytest.fixture
def document() -> dict[str, Any]:
    base = verdict_document(CheckResult("divergent"), None)
    first = {"step": 2, "stage": "actor_update", "rank": [0], "event": "grad_input", "name": "actor.model.self_attn"}
    cause = {"kind": "module_backward", "name": "actor.model.self_attn", "explanation": "another gradient"}
    return {**base, "first": {**first, "tag": None}, "cause": cause}


@pytest.mark.parametrize("kind", CAUSES)
@pytest.mark.parametrize("device", DEVICES)
def test_every_kind_of_cause_has_a_hint_on_every_device(kind: str, device: str) -> None:
    assert chosen(kind, devices=frozenset({device}), several_ranks=False)


def test_the_causes_are_those_that_are_located() -> None:
    sources = [resources.files("probe.locate").joinpath(name).read_text() for name in ("cause.py", "trace_cause.py")]
    named = set(re.findall(r'Cause\("(\w+)"', "\n".join(sources)))
    assert named and named <= set(CAUSES)


@pytest.mark.parametrize("hint", HINTS.entries, ids=lambda hint: hint.id)
def test_every_entry_is_short_and_can_be_chosen(hint: Hint) -> None:
    assert 40 <= len(hint.text) <= 300 and hint.text.endswith(".") and "\n" not in hint.text
    assert "github.com/" not in hint.source or "/issues/" in hint.source
    where: dict[str, Any] = {"event": next(iter(hint.events), None), "stage": next(iter(hint.stages), None)}
    words = [re.sub(r"\\b|[\^$?]", "", pattern.pattern) for pattern in (*hint.operations, *hint.modules)]
    found = Situation(hint.kinds[0], devices=frozenset(hint.devices), module=words[-1] if words else None, **where)
    if hint.operations and not hint.modules:
        found = Situation(hint.kinds[0], devices=frozenset(hint.devices), operation=words[0], **where)
    assert hint.score(found) is not None
    for pattern, word in zip(hint.operations, words, strict=False):
        by_operation = Situation(hint.kinds[0], operation=f"aten.{word}", devices=frozenset(hint.devices), **where)
        assert hint.score(by_operation) is not None, pattern.pattern


@pytest.mark.parametrize(
    ("kind", "more", "first"),
    [
        ("module_backward", {"operation": "aten::index_add_", "devices": {"cuda"}}, "scatter-cuda"),
        ("module_backward", {"operation": "aten.scatter_add.default", "devices": {"npu"}}, "scatter-npu"),
        ("module_backward", {"module": "FlashAttention", "devices": {"cuda"}}, "attention-backward-cuda"),
        ("module_backward", {"name": "actor.layers.0.self_attn", "devices": {"npu"}}, "attention-backward-npu"),
        ("module_forward", {"operation": "aten::scaled_dot_product_attention", "devices": {"cpu"}}, "sdpa-kernel"),
        ("module_forward", {"module": "GroupedExperts"}, "grouped-gemm"),
        ("loss", {"operation": "aten::cumsum", "devices": {"cuda"}}, "cumsum-cuda"),
        ("module_backward", {"operation": "aten::upsample_bilinear2d_backward", "devices": {"cuda"}}, "interpolation"),
        ("gradient", {"event": "param_grad", "devices": {"npu"}}, "hccl-reduction"),
        ("gradient", {"event": "param_grad", "devices": {"cuda"}}, "nccl-reduction"),
        ("gradient", {"event": "param_grad", "devices": {"cuda"}, "several_ranks": False}, "gradient"),
        ("module_forward", {"operation": "triton_red_fused_add", "devices": {"cuda"}}, "autotuning"),
        ("optimizer", {"event": "data", "name": "actor.grad_norm", "several_ranks": False}, "clipping-order"),
        ("optimizer", {"event": "optimizer", "name": "actor.head.bias", "several_ranks": False}, "optimizer"),
        ("calls", {"event": "optimizer", "stage": "actor_update"}, "skipped-update"),
        ("calls", {"event": "forward_input", "stage": "actor_update"}, "micro-batches"),
        ("weights", {"name": "rollout.head.bias", "stage": "actor_generate_sequences", "step": 1}, "sleep-mode"),
        ("weights", {"name": "rollout.head.bias", "stage": "actor_generate_sequences", "step": 0}, "weights"),
        ("weights", {"name": "actor.head.bias", "stage": "actor_generate_sequences", "step": 1}, "weights"),
        ("sampling", {"stage": "actor_generate_sequences", "devices": {"npu"}}, "vllm-batch-invariance-npu"),
        ("buffers", {"name": "rollout.model.rotary_emb.inv_freq"}, "uninitialised-memory"),
        ("module_forward", {"module": "Dropout", "devices": {"cpu"}}, "dropout"),
        ("data", {"event": "data"}, "loader-workers"),
        ("rng", {"event": "rng", "name": "python"}, "rng"),
        ("rewards", {}, "rewards"),
    ],
)
def test_the_closest_hint_comes_first(kind: str, more: dict[str, Any], first: str) -> None:
    if "devices" in more:
        more = {**more, "devices": frozenset(more["devices"])}
    assert chosen(kind, **more)[0] == first


def test_a_known_operation_decides_over_the_module() -> None:
    found = chosen("module_backward", module="FlashAttention", operation="aten::mm", devices=frozenset({"cuda"}))
    assert found[0] == "gemm-cublas" and "attention-backward-cuda" not in found


def test_where_the_device_is_unknown_what_holds_anywhere_comes_first() -> None:
    assert chosen("module_forward", module="Linear")[:2] == ["forward", "gemm-cublas"]


def test_hash_seeds_are_named_for_the_order_of_data() -> None:
    assert "hash-seed" in chosen("data", event="data") and "hash-seed" in chosen("calls")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kinds": ["nonsense"]}, r"hints\[0\].kinds: must be a list of some of"),
        ({"kinds": []}, "kinds"),
        ({"source": "http://example.org"}, "source: must be an address"),
        ({"source": "https://example.org/a b"}, "source"),
        ({"text": " "}, "text: must be text"),
        ({"modules": ["("]}, "modules: is no pattern"),
        ({"operations": []}, "operations: must be a list"),
        ({"stages": ["training"]}, "stages"),
        ({"several_ranks": 1}, "several_ranks: must be true or false"),
        ({"note": "x"}, "note: is not a key"),
    ],
)
def test_an_entry_of_another_form_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    assert parse_hints({"hints": [GOOD]}).entries[0].id == "x"
    with pytest.raises(ValueError, match=words):
        parse_hints({"hints": [{**GOOD, **change}]})
    with pytest.raises(ValueError, match="stands twice"):
        parse_hints({"hints": [GOOD, GOOD]})


def test_the_file_is_written_as_json_would_be() -> None:
    text = resources.files("probe.report").joinpath("hints.json").read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"


def test_a_verdict_names_what_to_do(document: dict[str, Any]) -> None:
    environment = {"world_size": 1, "models": {"actor": {"devices": ["cuda:0"]}}}
    hints = hints_of(document, [environment])
    assert [set(hint) for hint in hints] == [{"id", "text", "source"}] * len(hints)
    assert hints[0]["id"] == "attention-backward-cuda"
    replayed = {**document, "replay": {"operation": "aten::index_add_"}}
    assert hints_of(replayed, [environment])[0]["id"] == "scatter-cuda"
    assert hints_of({**document, "replay": {"operation": None}}, [environment]) == hints
    assert hints_of({**document, "verdict": "identical"}, [environment]) == []


def test_the_class_of_the_module_comes_from_the_trace(document: dict[str, Any]) -> None:
    event = {"name": "actor.model.self_attn", "module": "FlashSelfAttention"}
    document["trace"] = {**document["trace"], "event": event}
    found = situation_of(document, [{"models": "damaged", "world_size": "2"}])
    assert (found.module, found.devices, found.several_ranks) == ("FlashSelfAttention", frozenset(), True)


def test_what_to_do_stands_in_one_line_and_in_the_summary(document: dict[str, Any]) -> None:
    document["hints"] = hints_of(document)
    line = hint_line(document)
    assert line is not None and line.startswith("what to do: ") and "\n" not in line
    assert document["hints"][0]["source"] in line
    text = markdown_summary(document, "demo", "host:/checks/1")
    for hint in document["hints"]:
        assert f"<{hint['source']}>" in text
    document["layers"]["reproduced"] = False
    assert advice(document).startswith("It is intermittent")
    assert hint_line({**document, "hints": []}) is None
