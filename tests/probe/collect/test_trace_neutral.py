"""A training with the trace and one without are the same, bit for bit, after twenty steps."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

from probe import Probe
from probe.types import CaptureRequest, RunSpec

STEPS = 20
CAPTURED = (("actor", True),)
"""Which call the second of two traced runs captures: module, and whether its backward."""

slow = pytest.mark.slow

Train = Callable[[Probe], Any]
Traced = Callable[..., list[bytes]]


@pytest.fixture(autouse=True)
def global_state(torch_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    """Trains without a probe, with a trace, and with captures: nothing differs. Returns the traces."""

    def run(train: Train, captures: tuple[tuple[str, bool], ...] = CAPTURED) -> list[bytes]:
        plain = train(Probe())
        found = []
        for number, asked in enumerate((None, *captures)):
            # what is captured changes neither the training nor the trace
            request = None if asked is None else CaptureRequest(asked[0], 3, "actor_update", backward=asked[1])
            folder = tmp_path / str(number)
            probe = Probe(RunSpec(run="a", dump_path=str(folder), key_data="off", trace=True, capture=request))
            try:
                result = train(probe)
            finally:
                probe.close()
            assert [key for key in plain if plain[key] != result[key]] == []
            found.append((folder / "trace/rank0.jsonl").read_bytes())
            if asked is not None:
                assert_captured(folder, asked[1])
        assert len(set(found)) == 1
        return found

    yield run


def assert_captured(folder: Path, backward: bool) -> None:
    said = json.loads((folder / "capture/capture.json").read_text())
    assert "note" not in said, said["note"]
    wanted = ("output.", "grad_output.") if backward else ("output.", "rng.")
    for beginning in wanted:
        assert any(name.startswith(beginning) for name in said["tensors"]), beginning


def exact(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        plain = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach()).reshape(-1)
        return str(value.dtype), tuple(value.shape), plain.view(torch.uint8).numpy().tobytes()
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    return value


def train(probe: Probe, model: torch.nn.Module, inputs: Callable[[], tuple[Any, ...]]) -> dict[str, Any]:
    """Twenty steps of AdamW; what must be the same."""
    probe.attach(actor=model)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-2)
    gradients = []
    for _ in range(STEPS):
        with probe.stage("actor_update"):
            for _ in range(2):
                out = model(*inputs())
                loss = (out if isinstance(out, torch.Tensor) else out.logits).float().square().mean()
                loss.backward()
            gradients.append(exact([one.grad for one in model.parameters() if one.grad is not None]))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        probe.step()
    return {
        "weights": exact(model.state_dict()),
        "gradients": gradients,
        "optimizer": exact(optimizer.state_dict()["state"]),
        "random": [exact(torch.get_rng_state()), random.getstate(), str(np.random.get_state())],
    }


def seeded() -> None:
    torch.manual_seed(4)
    random.seed(5)
    np.random.seed(6)


class Block(torch.nn.Module):
    """Fan-out, views changed in place, in-place modules, dropout, keyword and nested arguments."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.relu = torch.nn.ReLU(inplace=True)
        self.out = torch.nn.Linear(width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.dropout = torch.nn.Dropout(0.2)
        self.same = torch.nn.Identity()

    def forward(self, x: torch.Tensor, *, extra: dict[str, torch.Tensor]) -> dict[str, Any]:
        normed = self.norm(x)
        q, k, v = self.qkv(normed).chunk(3, dim=-1)
        attention = torch.softmax(q @ k.transpose(1, 2) / 3, dim=-1)
        h = self.relu(self.out(self.dropout(attention @ v)))
        return {"x": self.same(x + h * extra["scale"]), "parts": (normed, [v])}


class Net(torch.nn.Module):
    """Shared and tied modules, a frozen one, several uses of one tensor, reentrant and other checkpointing."""

    def __init__(self, recompute: str = "none") -> None:
        super().__init__()
        self.recompute = recompute
        self.embedding = torch.nn.Embedding(13, 12)
        self.blocks = torch.nn.ModuleList([Block(12) for _ in range(2)])
        self.frozen = torch.nn.Linear(12, 12).requires_grad_(False)
        self.side = torch.nn.Linear(12, 3 * 12)
        self.head = torch.nn.Linear(12, 13, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.nn.Parameter(torch.ones(12))

    def _block(self, block: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        def run(x: torch.Tensor) -> torch.Tensor:
            result = block(x, extra={"scale": self.scale})
            return result["x"] + result["parts"][1][0] * 0.1 + result["parts"][0] * 0.01

        if self.recompute == "none":
            return run(x)
        result: torch.Tensor = checkpoint(run, x, use_reentrant=self.recompute == "reentrant")
        return result

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in [*self.blocks, self.blocks[0]]:
            x = self._block(block, x)
            x = x + self.frozen.forward(x) * 0.1
        a, b, c = self.side(x).split(12, dim=-1)
        a = torch.nn.functional.relu(a * 1, inplace=True)
        side = self.side(x)
        first = side[..., :12]
        side[..., 12:24].mul_(2)  # a sibling view is stale from here on
        result: torch.Tensor = self.head(self.frozen(first + c * 0.5) + a * x + b * x + x)
        return result


@pytest.mark.parametrize("recompute", ["none", pytest.param("reentrant", marks=slow), "not reentrant"])
def test_fan_out_views_in_place_shared_and_recomputed_modules(traced, recompute):
    def run(probe: Probe) -> Any:
        seeded()
        return train(probe, Net(recompute), lambda: (torch.randint(0, 13, (2, 5)),))

    found = traced(run)[0]
    kinds = {f'"kind":"{kind}"'.encode() for kind in ("grad_output", "grad_input", "param_grad", "optimizer")}
    assert all(kind in found for kind in kinds)
    assert (b'"recomputed":true' in found) == (recompute != "none")


@slow
@pytest.mark.parametrize("recompute", ["none", "reentrant", "not reentrant"])
def test_captures_of_parts_of_it(traced, recompute):
    def run(probe: Probe) -> Any:
        seeded()
        return train(probe, Net(recompute), lambda: (torch.randint(0, 13, (2, 5)),))

    inside = ("actor.blocks.0", "actor.blocks.1.qkv", "actor.blocks.1.relu", "actor.frozen", "actor.side")
    backward = [(name, True) for name in inside if name != "actor.frozen" or recompute == "none"]
    traced(run, (("actor", False), *((name, False) for name in inside), *backward))


@slow
def test_the_stock_transformer_encoder(traced):
    def run(probe: Probe) -> Any:
        seeded()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        return train(probe, torch.nn.TransformerEncoder(layer, 2), lambda: (torch.randn(2, 5, 8),))

    traced(run)


def qwen2(recompute: bool = False, attention: str = "eager") -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        attention_dropout=0.1,
        attn_implementation=attention,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    if recompute:
        modern = getattr(model, "activation_checkpointing_enable", None)  # the other warns from transformers 5 on
        if modern is not None:
            modern()
        else:
            model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.parametrize(
    ("recompute", "lora"),
    [(True, True), *(pytest.param(*one, marks=slow) for one in ((False, False), (True, False), (False, True)))],
)
def test_qwen2_with_recomputation_and_adapters(traced, recompute, lora):
    def run(probe: Probe) -> Any:
        seeded()
        model = qwen2(recompute)
        if lora:
            from peft import LoraConfig, get_peft_model

            if recompute:
                model.enable_input_require_grads()
            model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], lora_dropout=0.1))
        ran = [0]
        model.get_submodule(f"{'base_model.model.' * lora}model.layers.0.mlp.act_fn").register_forward_hook(
            lambda *_: ran.__setitem__(0, ran[0] + 1)
        )
        found = train(probe, model, lambda: (torch.randint(0, 31, (2, 6)),))
        return {**found, "forward passes": ran[0]}  # a trace that turns checkpointing off has half of them

    layers = "actor.base_model.model.model.layers" if lora else "actor.model.layers"
    inside = ((f"{layers}.1.mlp.down_proj", False), (f"{layers}.0.self_attn", True)) if not (recompute and lora) else ()
    traced(run, (*CAPTURED, *inside))


def two_ranks(folder: Path, kind: str, trace: str, *capture: str) -> list[Any]:
    """Trains with two gloo processes, of which rank 1 captures; returns what each of them had in the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("trace_ranks.py")
    started = []
    for rank in range(2):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env = {**os.environ, **{name: str(value) for name, value in variables.items()}, "OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = str(Path(__file__).resolve().parents[3])
        command = [sys.executable, str(script), str(folder), kind, trace, f"{kind}-{trace}", *capture]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    try:
        for process in started:
            output, _ = process.communicate(timeout=300)
            assert process.returncode == 0, output
    finally:
        for process in started:
            process.kill()
            process.communicate()
    return [torch.load(folder / f"{kind}-{trace}.rank{rank}.pt") for rank in range(2)]


@slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp2-checkpoint"])
def test_two_ranks(tmp_path, kind):
    plain = two_ranks(tmp_path, kind, "none")
    captures = {"a": (), "b": ("actor.layers.1", "forward"), "c": ("actor.layers.1.up", "backward"),
                "d": ("actor", "backward")}  # fmt: skip
    for name, capture in captures.items():
        traced = two_ranks(tmp_path, kind, name, *capture)
        assert exact(traced) == exact(plain)
        if capture:
            assert_captured(tmp_path / name, capture[1] == "backward")
    for rank in range(2):
        a, *others = ((tmp_path / name / f"trace/rank{rank}.jsonl").read_bytes() for name in captures)
        assert others == [a, a, a]
        events = [json.loads(line) for line in a.splitlines()]
        first = [event for event in events if event["step"] == 0]
        reduced = [event for event in first if event.get("note") == "reduced"]
        assert {event["name"] for event in reduced} >= {"actor.head.weight", "actor.layers.2.up.bias"}
        gathered = [event for event in first if event.get("note") == "gathered"]
        assert bool(gathered) == (kind != "ddp")
        if gathered:
            whole = {
                item[0]: item[2] for event in gathered if event["name"] == "actor.layers.0" for item in event["items"]
            }
            assert whole["up.weight"] == [16, 8]
            shards = next(event for event in first if event["kind"] == "weights" and event["name"] == "actor")
            assert {item[0]: item[2] for item in shards["items"]}["layers.0.up.weight"] == [8, 8]
        assert any(event.get("recomputed") for event in first) == kind.endswith("checkpoint")
        counted = Counter(event["name"] for event in first if event["kind"] == "param_grad" and "note" not in event)
        assert counted["actor.head.weight"] == 2  # one for each of the two backward passes
