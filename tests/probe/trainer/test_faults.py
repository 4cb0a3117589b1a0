"""Planted faults: real differences, where and when they were asked for, and nowhere else."""

from __future__ import annotations

import pytest
import torch

from probe.config import Fault
from probe.errors import ConfigError
from probe.trainer.faults import plant
from probe.trainer.progress import Progress

CALLS = 6
"""Orders of 16 parts that are drawn; that all of them round the same is as good as impossible."""
LINEAR = "model.layers.1.mlp.down_proj"
MODULES = [LINEAR, "model.layers.0.self_attn.q_proj", "model.norm", "model.layers.0", "model.embed_tokens", "lm_head",
    "model.layers.1.self_attn", "model.layers.0.mlp", "model.rotary_emb", "model"]  # fmt: skip


@pytest.fixture
def planted(models):
    """Plants a fault in the actor; returns its progress and what tells how many different outputs some calls have."""
    ids = torch.arange(40, 60)[None]

    def plant_one(module: str = LINEAR, role: str = "actor", **when):
        progress = Progress()
        roles = {"actor": models.actor, "reference": models.reference}
        plant([Fault(role=role, module=module, **when)], roles, progress)

        def outputs(which: str = role) -> int:
            with torch.no_grad():
                return len({roles[which](input_ids=ids).logits.numpy().tobytes() for _ in range(CALLS)})

        return progress, outputs

    return plant_one


@pytest.mark.parametrize("module", MODULES)
def test_a_fault_makes_calls_differ_and_only_in_its_last_bits(module, planted, models):
    ids = torch.arange(40, 60)[None]
    with torch.no_grad():
        before = models.actor(input_ids=ids).logits
        _, outputs = planted(module)
        assert outputs() > 1
        assert torch.allclose(models.actor(input_ids=ids).logits, before, atol=1e-3)


def test_the_other_model_stays_as_it_is(planted):
    _, outputs = planted(role="reference")
    assert (outputs("reference") > 1, outputs("actor")) == (True, 1)


def test_a_fault_acts_at_its_step_alone(planted, models):
    ids = torch.arange(40, 60)[None]
    with torch.no_grad():
        untouched = models.actor(input_ids=ids).logits
    progress, outputs = planted(step=2)
    for step, differs in ((0, False), (1, False), (2, True), (3, False)):
        progress.step = step
        assert (outputs() > 1) is differs
    with torch.no_grad():
        assert torch.equal(models.actor(input_ids=ids).logits, untouched)


def test_a_fault_acts_in_its_stage_alone(planted):
    progress, outputs = planted(stage="actor_update", step=1)
    progress.step = 1
    for stage, differs in ((None, False), ("actor_compute_log_prob", False), ("actor_update", True)):
        progress.stage = stage
        assert (outputs() > 1) is differs


def test_gradients_flow_through_a_fault(planted, models):
    planted()
    models.actor(input_ids=torch.arange(40, 60)[None]).logits.sum().backward()
    assert models.actor.get_submodule(LINEAR).weight.grad.abs().sum() > 0


def test_names_of_modules_and_parameters_stay(planted, models):
    before = [name for name, _ in models.actor.named_modules()], list(models.actor.state_dict())
    planted()
    assert ([name for name, _ in models.actor.named_modules()], list(models.actor.state_dict())) == before
    assert isinstance(models.actor.get_submodule(LINEAR), torch.nn.Linear)


def test_two_faults_can_sit_in_one_module(models):
    progress = Progress()
    faults = [Fault(role="actor", module=LINEAR, step=step) for step in (1, 2)]
    plant(faults, {"actor": models.actor}, progress)
    seen = []
    for step in range(4):
        progress.step = step
        with torch.no_grad():
            outputs = {
                models.actor(input_ids=torch.arange(40, 60)[None]).logits.numpy().tobytes() for _ in range(CALLS)
            }
        seen.append(len(outputs) > 1)
    assert seen == [False, True, True, False]


def test_a_fault_works_under_autocast(planted, models):
    planted("model.norm")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = {
            models.actor(input_ids=torch.arange(40, 60)[None]).logits.float().numpy().tobytes() for _ in range(CALLS)
        }
    assert len(outputs) > 1


@pytest.mark.parametrize("module", ["model.layers.9", "nothing", "model.layers.0.", "", "weight", "lm_head.weight"])
def test_a_module_that_is_not_there_is_named(module, models):
    faults = [Fault(role="actor", module=LINEAR), Fault(role="reference", module=module)]
    with pytest.raises(ConfigError) as caught:
        plant(faults, {"actor": models.actor, "reference": models.reference}, Progress())
    assert caught.value.key == "faults.1.module"
    assert "module" in caught.value.problem


def test_a_module_of_almost_that_name_is_proposed(models):
    with pytest.raises(ConfigError, match=f"did you mean {LINEAR}"):
        plant([Fault(role="actor", module="layers.1.mlp.down_proj")], {"actor": models.actor}, Progress())
