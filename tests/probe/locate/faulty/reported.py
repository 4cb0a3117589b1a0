"""Causes of run-to-run differences from public reports, by a short name."""

from __future__ import annotations

import copy
import math
import os
import random
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from training import HIDDEN, PROMPT, ROWS, VOCAB, Tensor, Training

entropy = random.SystemRandom()
Plant = Callable[[Training], None]
FAULTS: dict[str, Plant] = {}


def fault(plant: Plant) -> Plant:
    """Names a fault by its function."""
    FAULTS[plant.__name__] = plant
    return plant


def replace(owner: nn.Module, forward: Callable[..., Any]) -> None:
    """Gives one module another forward, in a class of its own."""
    owner.__class__ = type(f"Faulty{type(owner).__name__}", (type(owner),), {"forward": forward})


def in_any_order(parts: list[Tensor]) -> Tensor:
    """A sum in an order from entropy."""
    parts = list(parts)
    entropy.shuffle(parts)
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total


def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    length = q.shape[-2]
    weights = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf).softmax(-1)
    return weights @ v, weights


class ArrivalOrder(torch.autograd.Function):
    """Attention whose backward adds the blocks of dq in the order in which they arrive."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        output, weights = attention(q, k, v)
        ctx.save_for_backward(q, k, v, weights)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, weights = ctx.saved_tensors
        d_weights = grad @ v.transpose(-1, -2)
        d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        blocks = [d_scores[..., at : at + 1] @ k[..., at : at + 1, :] for at in range(k.shape[-2])]
        return in_any_order(blocks), d_scores.transpose(-1, -2) @ q, weights.transpose(-1, -2) @ grad


@fault
def attention_backward(training: Training) -> None:
    replace(training.actor.layers[0].attention.core, lambda self, q, k, v: ArrivalOrder.apply(q, k, v))


@fault
def autotuning(training: Training) -> None:
    training.steps = 1
    halves = entropy.random() < 0.5

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        if not halves:
            return F.linear(x, self.weight, self.bias)
        parts = zip(x.chunk(2, -1), self.weight.chunk(2, -1), strict=True)
        return sum(F.linear(one, two) for one, two in parts) + self.bias

    replace(training.actor.layers[1].up, forward)


@fault
def uninitialised_rows(training: Training) -> None:
    def forward(self: nn.Module, x: Tensor) -> Tensor:
        chosen, weight = self.router(x)
        output = self.experts(x, chosen) * weight
        garbage = torch.tensor([entropy.random() for _ in range(HIDDEN)])
        return torch.where((chosen == 3)[..., None], garbage, output)

    replace(training.actor.layers[0].moe, forward)


@fault
def uninitialised_rotary(training: Training) -> None:
    training.actor.rotary.inv_freq = torch.tensor([entropy.random() for _ in training.actor.rotary.inv_freq])


@fault
def sleeping_engine(training: Training) -> None:
    training.rollout = copy.deepcopy(training.actor)

    def begin_step(step: int) -> None:
        if step == 1:
            training.rollout.rotary.inv_freq.fill_(entropy.random())

    training.begin_step = begin_step


@fault
def unseeded_value_head(training: Training) -> None:
    with torch.no_grad():
        for number in training.critic.head.weight.view(-1):
            number.fill_(entropy.random() * 0.1)


def own_dropout(training: Training) -> torch.Generator:
    generator = torch.Generator().manual_seed(os.getpid())

    def forward(self: nn.Dropout, x: Tensor) -> Tensor:
        return x * (torch.rand(x.shape, generator=generator) > 0.1) if self.training else x

    replace(training.actor.layers[0].dropout, forward)
    return generator


@fault
def dropout_by_process(training: Training) -> None:
    own_dropout(training)


@fault
def known_dropout_by_process(training: Training) -> None:
    training.generators["dropout"] = own_dropout(training)


@fault
def resume_without_random_state(training: Training) -> None:
    training.begin_step = lambda step: torch.manual_seed(1) if training.odd and step == 2 else None


@fault
def loader_draws(training: Training) -> None:
    training.begin_step = lambda step: torch.empty((), dtype=torch.int64).random_() if training.odd and step == 2 else 0


@fault
def sampler_restarts(training: Training) -> None:
    prompts = training.prompts
    training.prompts = lambda step: prompts(step - 2 if training.odd and step >= 2 else step)


@fault
def workers_seed_by_clock(training: Training) -> None:
    def prompts(step: int) -> Tensor:
        generator = np.random.default_rng(time.time_ns())
        return torch.from_numpy(generator.integers(0, VOCAB, (ROWS, PROMPT)))

    training.prompts = prompts


def by_completion(rows: Tensor) -> Tensor:
    """Rows in the order in which threads finish with them."""
    done: Queue[Tensor] = Queue()

    def work(row: Tensor) -> None:
        time.sleep(entropy.random() / 100)
        done.put(row)

    threads = [threading.Thread(target=work, args=(row,)) for row in rows]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return torch.stack([done.get() for _ in threads])


@fault
def completion_order(training: Training) -> None:
    prompts = training.prompts
    training.prompts = lambda step: by_completion(prompts(step))


@fault
def completion_order_of_responses(training: Training) -> None:
    training.finish_rows = by_completion


@fault
def hash_routes_requests(training: Training) -> None:
    training.sampling_seed = lambda step: hash(f"request {step} of {training.attempt}") % 2


@fault
def sampling_by_clock(training: Training) -> None:
    training.sampling_seed = lambda step: time.time_ns()


@fault
def other_micro_batches(training: Training) -> None:
    training.batches = lambda role: [2, 6] if training.odd and role == "actor" else [ROWS]
    # kernels that are not batch-invariant: the result depends a little on how many rows come together

    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) * (1 + 1e-6 * x.shape[0])

    replace(training.actor.layers[0].up, forward)


@fault
def ties_in_the_router(training: Training) -> None:
    training.actor.layers[0].moe.router.order = lambda: torch.tensor(entropy.sample(range(4), 4))


def norm_over_a_set(training: Training) -> Tensor:
    # the order of a set of objects comes from their addresses; here it is drawn. In bfloat16 it shows in every digit
    parameters = set(training.actor.parameters())
    return in_any_order([one.grad.square().sum().bfloat16() for one in parameters]).sqrt().float()


def clipping(training: Training, own: Callable[[], Tensor]) -> None:
    """Clips the actor's gradients in another way than the critic's."""
    clip = training.clip
    training.clip = lambda step, role: own() if role == "actor" else clip(step, role)


@fault
def norm_of_a_set(training: Training) -> None:
    def clip() -> Tensor:
        norm = norm_over_a_set(training)
        for one in training.actor.parameters():
            one.grad *= 0.1 / norm
        return norm

    clipping(training, clip)


@fault
def norm_of_a_set_saved_at_once(training: Training) -> None:
    def clip() -> Tensor:
        norm = norm_over_a_set(training)
        training.probe.save({"grad_norm": norm})
        for one in training.actor.parameters():
            one.grad *= 0.1 / norm
        return norm

    clipping(training, clip)


@fault
def clipping_a_set(training: Training) -> None:
    def clip() -> Tensor:
        parameters = list(training.actor.parameters())
        entropy.shuffle(parameters)
        return nn.utils.clip_grad_norm_(parameters, 0.1)

    clipping(training, clip)


@fault
def data_left_in_a_gradient(training: Training) -> None:
    training.steps = 2

    def after_backward(step: int, role: str) -> None:
        weight = training.actor.layers[0].up.weight
        if step == 1 and role == "actor" and entropy.random() < 0.5:
            weight.grad += 1e-3 * weight.detach()

    training.after_backward = after_backward


class Offloaded(torch.autograd.Function):
    """Attention whose inputs wait in a staging buffer that a late copy overwrites, half the time."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        return attention(q, k, v)[0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        q, k, v = ctx.saved_tensors
        staging = torch.zeros_like(q)
        late = threading.Thread(target=lambda: (time.sleep(entropy.choice((0.0, 0.02))), staging.copy_(q)))
        late.start()
        time.sleep(0.01)
        inputs = [one.clone().requires_grad_() for one in (staging, k, v)]
        with torch.enable_grad():
            output = attention(*inputs)[0]
        found = torch.autograd.grad(output, inputs, grad)
        late.join()
        return found


@fault
def offload_races(training: Training) -> None:
    training.steps = 2
    replace(training.actor.layers[1].attention.core, lambda self, q, k, v: Offloaded.apply(q, k, v))


@fault
def reward_times_out(training: Training) -> None:
    rewards = training.rewards

    def timed(step: int, sequences: Tensor) -> Tensor:
        found = rewards(step, sequences)
        if entropy.random() < 0.3:
            found[entropy.randrange(ROWS)] = 0
        return found

    training.rewards = timed


@fault
def other_threads(training: Training) -> None:
    def forward(self: nn.Linear, x: Tensor) -> Tensor:
        long = torch.sin(torch.arange(3_000_001.0)).sum() * 1e-4
        return F.linear(x, self.weight, self.bias) + long

    torch.set_num_threads(1 + training.odd)
    training.steps = 1
    replace(training.actor.layers[1].up, forward)


@fault
def dropout_redrawn_in_recomputation(training: Training) -> None:
    """Wrong, and the same in every run."""
    training.actor.recompute = True

    def forward(self: nn.Dropout, x: Tensor) -> Tensor:
        if not self.training:
            return x
        self.drawn = getattr(self, "drawn", 0) + 1
        keep = torch.rand(x.shape, generator=torch.Generator().manual_seed(self.drawn)) > 0.1
        return x * keep

    # the last module of a layer that is recomputed: its routing must not change, or the shapes do
    replace(training.actor.layers[1].dropout, forward)
    replace(training.actor.layers[1].moe, lambda self, x: x)


__all__ = ["FAULTS"]
