"""A run with the probe and one without are the same, bit for bit: weights, optimizer, gradients, random states."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe import Probe
from probe.config import (
    ActorConfig,
    GenerateConfig,
    MegatronTraining,
    ModelConfig,
    RLConfig,
    SamplingConfig,
    TrainerRunConfig,
)
from probe.store.digest import digest
from probe.store.reader import read_dump
from probe.trainer.loop import Trainer
from probe.trainer.parallel import Ranks
from probe.types import RunSpec

STEPS = 20
KEY_DATA = ["full", "digests", "device", "off"]
TRACED = ["traced", "traced again"]

Opened = Callable[[str], Probe]


@pytest.fixture(autouse=True)
def global_state(torch_state: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test here leaves torch and the interpreter's hook as it found them."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Opens a probe that keeps as much as is said.

    ``none`` is inert, ``device`` digests as on a device, ``traced`` records every event too.
    """
    made: list[Probe] = []

    def make(key_data: Any) -> Probe:
        what: dict[str, Any] = {"key_data": key_data}
        if key_data == "device":
            what = {"key_data": "digests", "digest": "device"}
        elif key_data in TRACED:
            what = {"key_data": "digests", "trace": True}
        spec = None if key_data == "none" else RunSpec(run="a", dump_path=str(tmp_path / key_data), **what)
        made.append(Probe(spec))
        return made[-1]

    yield make
    for probe in made:
        probe.close()


def exact(value: Any) -> Any:
    """A value in which two that are not the same bit for bit are not equal: tensors as dtype, shape and bytes."""
    if isinstance(value, torch.Tensor):
        plain = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach()).reshape(-1)
        return str(value.dtype), tuple(value.shape), bytes(plain.view(torch.uint8).numpy()) if plain.numel() else b""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: exact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [exact(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def random_states() -> Any:
    return exact([torch.get_rng_state(), random.getstate(), np.random.get_state()])


def gradients(model: torch.nn.Module) -> Any:
    """Every gradient as a digest: there is one for each step and parameter."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            dtype, shape, data = exact(parameter.grad)
            found[name] = digest(dtype, shape, data)
    return found


# ---- the GRPO trainer that ships ----


def grpo(probe: Probe) -> dict[str, Any]:
    """Twenty steps of a very small GRPO training; what a probe must not change."""
    model = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "initializer_range": 0.3,
        "attention_dropout": 0.1,
    }
    config = TrainerRunConfig(
        device="cpu",
        model=ModelConfig(config=model),
        megatron_training=MegatronTraining(train_iters=STEPS, global_batch_size=2),
        rl_config=RLConfig(n_samples_per_prompt=2),
        actor_config=ActorConfig(micro_batch_size=2, lr=1e-2),
        generate_config=GenerateConfig(sampling_config=SamplingConfig(max_tokens=3)),
    )
    random.seed(5)
    np.random.seed(6)
    trainer = Trainer(config, probe, Ranks(torch.device("cpu")))
    seen: list[Any] = []
    trainer._updaters["actor"].optimizer.register_step_pre_hook(lambda *_: seen.append(gradients(trainer._actor)))
    trainer.train()
    return {
        "weights": exact(trainer._actor.state_dict()),
        "reference": exact(trainer._reference.state_dict()),
        "optimizer": exact(trainer._updaters["actor"].optimizer.state_dict()),
        "gradients": seen,
        "random states": random_states(),
        "sampling": exact(trainer._random.sampling.get_state()),
    }


def test_a_grpo_run_with_the_probe_is_the_one_without(opened: Opened, tmp_path: Path) -> None:
    plain = grpo(opened("none"))
    assert len(plain["gradients"]) == STEPS
    assert plain["gradients"][0] != plain["gradients"][1]
    for key_data in [*KEY_DATA, *TRACED]:
        probe = opened(key_data)
        recorded = grpo(probe)
        assert [name for name in plain if recorded[name] != plain[name]] == []
        probe.close()
        dump = read_dump(probe._folder)
        assert (dump.complete, dump.steps_finished) == (True, STEPS)
        tags = {record.tag for record in dump.records.get(0, [])}
        assert {"prompts", "responses", "log_prob", "weights"} <= tags if key_data != "off" else not tags
    _assert_equal_traces(tmp_path, steps=STEPS)


# ---- a trainer of somebody else's ----


class Model(torch.nn.Module):
    """Parameters of several dtypes and layouts, dropout, batch statistics, and operations in place on what is saved."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe
        self.embedding = torch.nn.Embedding(11, 8)
        self.narrow = torch.nn.Linear(8, 8).to(torch.bfloat16)
        self.norm = torch.nn.BatchNorm1d(8)
        self.dropout = torch.nn.Dropout(0.3)
        self.wide = torch.nn.Linear(8, 4).to(torch.float64)
        self.transposed = torch.nn.Parameter(torch.randn(4, 3).t())
        self.single = torch.nn.Parameter(torch.ones(7)[::7])
        self.phase = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.count += 1
        hidden = self.embedding(tokens)
        self.probe.save({"prompts": tokens, "hidden": hidden}, mask=mask)
        x = self.narrow(hidden.to(torch.bfloat16))
        self.probe.save({"half": x, "view": x.transpose(1, 2)[:, ::2]})
        x = x.float()
        self.probe.save({"log_prob": x}, mask=mask)
        x.mul_(2)
        x = self.norm(x.flatten(0, 1))
        before = torch.nn.functional.relu(x, inplace=True)
        self.probe.save({"values": before[:3]})
        x = self.dropout(before).to(torch.float64)
        y = self.wide(x) * self.single.double()
        turned = (self.phase * (1 + 2j)).conj()
        self.probe.save({"phase": {"conjugate": turned, "negative": turned.imag, "all": [self.phase, 3, "text"]}})
        y = y + turned.real.sum().double() * turned.imag.prod().double()
        self.probe.save({"advantages": y})
        y.clamp_(min=-3)  # after the save, in place, with a gradient through it
        result: torch.Tensor = y @ self.transposed.t().double()
        return result


def plain_loop(probe: Probe) -> dict[str, Any]:
    """Twenty steps of AdamW on it, saving wherever somebody might."""
    torch.manual_seed(1)
    random.seed(2)
    np.random.seed(3)
    model = Model(probe)
    probe.attach(actor=model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    seen: list[Any] = []
    for step in range(STEPS):
        tokens = torch.randint(0, 11, (4, 6)) if random.random() < 0.9 else torch.zeros(4, 6, dtype=torch.int64)
        noise = np.random.rand(4, 6).astype(np.float32)
        mask = torch.rand(4, 6) < 0.8
        probe.save({"rewards": {"noise": noise, "step": step}}, mask=mask)
        noise += 1
        with probe.stage("actor_update"):
            out = model(tokens, mask.bfloat16())
            loss = (out * torch.from_numpy(noise.reshape(-1, 1)).double()).square().mean()
            probe.save({"loss": loss})
            loss.backward()
            probe.save({"grads": [parameter.grad for parameter in model.parameters()]})
            probe.save({"grad_norm": torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)})
            seen.append(gradients(model))
            optimizer.step()
            with torch.no_grad():
                model.embedding.weight.data[0].fill_(0)
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        mask.logical_not_()
        schedule.step()
        probe.step()
    return {
        "weights": exact(model.state_dict()),
        "optimizer": exact(optimizer.state_dict()),
        "gradients": seen,
        "random states": random_states(),
        "modes": (model.training, torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()),
        "hooks": [len(module._forward_hooks) + len(module._backward_hooks) for module in model.modules()],
        "strides": [(parameter.stride(), parameter._version) for parameter in model.parameters()],
    }


def test_any_run_with_the_probe_is_the_one_without(opened: Opened, tmp_path: Path) -> None:
    plain = plain_loop(opened("none"))
    assert len({str(each) for each in plain["gradients"]}) == STEPS
    for key_data in [*KEY_DATA, *TRACED]:
        probe = opened(key_data)
        recorded = plain_loop(probe)
        assert [name for name in plain if recorded[name] != plain[name]] == []
        probe.close()
        dump = read_dump(probe._folder)
        assert (dump.complete, dump.steps_finished) == (True, STEPS)
        if key_data != "off":
            assert len(dump.records[0]) > STEPS * 30
    _assert_equal_traces(tmp_path, steps=STEPS)


def _assert_equal_traces(folder: Path, steps: int) -> None:
    one, other = ((folder / name / "trace/rank0.jsonl").read_bytes() for name in TRACED)
    assert one == other
    assert one.count(b'"name":"actor:weights"') == steps


def test_a_random_state_that_moved_or_one_other_bit_would_be_seen() -> None:
    """What the tests above would notice."""
    before = random_states()
    torch.rand(1)
    assert random_states() != before
    one, other = torch.zeros(2), torch.zeros(2)
    other[1] = -0.0
    assert exact({"x": [one]}) != exact({"x": [other]})
