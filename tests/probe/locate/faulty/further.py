"""Faults of every kind of event, that no report named."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from reported import Plant, entropy, replace
from torch import nn
from training import PROMPT, ROWS, Tensor, Training

FAULTS: dict[str, Plant] = {}


def fault(plant: Plant) -> Plant:
    """Names a fault by its function. Of several ranks, the last alone has it."""

    def planted(training: Training) -> None:
        if training.rank == max(0, int(torch.distributed.is_initialized())):
            plant(training)

    FAULTS[plant.__name__] = planted
    return plant


def noise() -> float:
    return entropy.uniform(0.5, 1.0) * 1e-3


class Noise(torch.autograd.Function):
    """Passes a value and its gradient on, a little changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: bool, backward: bool) -> Tensor:
        ctx.backward_too = backward
        return x * (1 + noise()) if forward else x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        return (grad * (1 + noise()) if ctx.backward_too else grad), None, None


class OwnGradient(torch.autograd.Function):
    """A projection whose weight alone gets another gradient in each run."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.flatten(0, 1).T @ x.flatten(0, 1) * (1 + noise())


# ---- stages and calls ----


@fault
def a_stage_left_out(training: Training) -> None:
    evaluate = training.evaluate

    def skipping(step: int, stage: str, role: str, sequences: Tensor) -> Tensor | None:
        skip = training.odd and step == 1 and role == "reference"
        return None if skip else evaluate(step, stage, role, sequences)

    training.evaluate = skipping


@fault
def a_stage_entered_again(training: Training) -> None:
    def after_backward(step: int, role: str) -> None:
        if training.odd and step == 1 and role == "critic":
            with training.probe.stage("critic_compute_values"):
                pass

    training.after_backward = after_backward


@fault
def a_value_saved_after_its_stage(training: Training) -> None:
    """One run saves ``ref_log_prob`` once more, when the stage has ended."""
    evaluate = training.evaluate

    def saving(step: int, stage: str, role: str, sequences: Tensor) -> Tensor:
        result = evaluate(step, stage, role, sequences)
        if training.odd and (step, role) == (1, "reference"):
            training.probe.save({"ref_log_prob": result})
        return result

    training.evaluate = saving


@fault
def a_cached_reference(training: Training) -> None:
    evaluate, cache = training.evaluate, {}

    def cached(step: int, stage: str, role: str, sequences: Tensor) -> Tensor:
        if not (training.odd and step == 1 and role == "reference"):
            cache[role] = evaluate(step, stage, role, sequences)
            return cache[role]
        with training.probe.stage(stage):
            training.probe.save({"ref_log_prob": cache[role]})
        return cache[role]

    training.evaluate = cached


@fault
def a_module_called_twice(training: Training) -> None:
    def between(self: Any, x: Tensor) -> Tensor:
        if training.odd and self.training:
            self.norm(x)
        return x

    layer = training.actor.layers[1]
    layer.between = between.__get__(layer)


@fault
def a_module_whose_inside_one_run_hides(training: Training) -> None:
    if training.odd:
        up = training.actor.layers[1].up
        up.forward = lambda x: F.linear(x, up.weight, up.bias)


# ---- weights, buffers, random states ----


@fault
def a_weight_sync_left_out(training: Training) -> None:
    training.rollout = copy.deepcopy(training.actor)
    sync = training.sync
    training.sync = lambda step: sync(step) if not (training.odd and step == 2) else None


@fault
def a_weight_written_by_numpy(training: Training) -> None:
    def between_stages(step: int, following: str) -> None:
        if (step, following) == (1, "reference_compute_log_prob"):
            training.reference.layers[1].up.weight.detach().numpy()[3, 2] += noise()

    training.between_stages = between_stages


@fault
def a_weight_changed_before_the_update(training: Training) -> None:
    def between_stages(step: int, following: str) -> None:
        if (step, following) == (1, "actor_update"):
            weight = training.actor.layers[0].up.bias.data
            getattr(weight, "to_local", lambda: weight)().add_(noise())

    training.between_stages = between_stages


@fault
def a_weight_changed_inside_a_stage(training: Training) -> None:
    """Between two calls of the model."""
    training.batches = lambda role: (ROWS // 2, ROWS // 2)
    calls: list[str] = []

    def options(role: str) -> dict[str, object]:
        calls.append(role)
        if calls.count("actor") == 2 and role == "actor":
            training.actor.layers[0].up.bias += noise()
        return {}

    training.options = options


@fault
def a_buffer_that_moves(training: Training) -> None:
    training.critic.rotary.register_buffer("seen", torch.zeros(2))

    def after_backward(step: int, role: str) -> None:
        if (step, role) == (0, "critic"):
            training.critic.rotary.seen += noise()

    training.after_backward = after_backward


@fault
def an_augmentation_draws(training: Training) -> None:
    def rewards(step: int, sequences: Tensor) -> Tensor:
        if training.odd and step == 1:
            np.random.rand()
        return (sequences[:, PROMPT:] % 3).float().mean(-1)

    training.rewards = rewards


@fault
def a_generator_of_its_own(training: Training) -> None:
    own = training.generators["sampler"] = random.Random(5)

    def between_stages(step: int, following: str) -> None:
        if (step, following) == (1, "critic_update") and training.odd:
            own.random()

    training.between_stages = between_stages


# ---- forward ----


@fault
def code_between_modules(training: Training) -> None:
    layer = training.actor.layers[1]
    layer.between = lambda x: Noise.apply(x, layer.training, False)


@fault
def an_option_of_the_model(training: Training) -> None:
    training.options = lambda role: {"scale": entropy.random()} if role == "critic" else {}


@fault
def a_module(training: Training) -> None:
    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        return Noise.apply(F.linear(x, self.weight, self.bias), self.training, False)

    replace(training.actor.layers[1].up, forward)


@fault
def a_recomputed_module(training: Training) -> None:
    """Only when gradient checkpointing runs it again."""
    training.actor.recompute = True

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight, self.bias)
        again = torch._C._current_graph_task_id() != -1
        return Noise.apply(y, again, False)

    replace(training.actor.layers[1].up, forward)


@fault
def code_after_the_model(training: Training) -> None:
    training.loss = lambda step, log_prob, advantages: -(log_prob.mean(-1) * advantages).mean() * (1 + noise())


@fault
def host_code_between(training: Training) -> None:
    training.advantages = lambda rewards, values: (rewards - rewards.mean()) * (1 + noise())


@fault
def cached_generation(training: Training) -> None:
    """One run gives the model the last token alone, as with a cache."""
    training.shown = lambda rows: rows[:, -1:] if training.odd and rows.shape[1] > PROMPT else rows


# ---- backward ----


@fault
def the_loss_backward(training: Training) -> None:
    def loss(step: int, log_prob: Tensor, advantages: Tensor) -> Tensor:
        return -(Noise.apply(log_prob, False, True).mean(-1) * advantages).mean()

    training.loss = loss


@fault
def code_between_modules_backward(training: Training) -> None:
    training.actor.layers[1].between = lambda x: Noise.apply(x, False, True)


@fault
def a_module_backward(training: Training) -> None:
    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(Noise.apply(x, False, True), self.weight, self.bias)

    replace(training.actor.layers[1].up, forward)


@fault
def a_weight_gradient(training: Training) -> None:
    replace(training.actor.layers[0].attention.v, lambda self, x: OwnGradient.apply(x, self.weight))


@fault
def a_gradient_hook(training: Training) -> None:
    training.critic.head.bias.register_hook(lambda grad: grad * (1 + noise()))
