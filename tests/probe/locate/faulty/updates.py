"""Faults of every kind of event, that no report named: of optimizers, of data, and of the work of several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from further import FAULTS, fault, noise
from reported import entropy
from torch import nn
from training import ROWS, VOCAB, Tensor, Training

# ---- optimizer ----


def optimizing(training: Training, change: Callable[[torch.optim.Optimizer], None], when: str) -> None:
    """Has the actor's optimizer do more, before or after its own step."""
    make = training.optimizer

    def made(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = make(model)
        if model is not training.called["actor"]:
            return optimizer
        kind = type(optimizer)

        class Changed(kind):
            def step(self, closure: Any = None) -> Any:
                if when == "before":
                    change(self)
                result = kind.step.__wrapped__(self, closure)
                if when == "after":
                    change(self)
                return result

        optimizer.__class__ = Changed
        optimizer._patch_step_function()
        return optimizer

    training.optimizer = made


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


@fault
def a_moment(training: Training) -> None:
    def change(optimizer: torch.optim.Optimizer) -> None:
        first = next(iter(optimizer.state.values()))
        local(first["exp_avg_sq"]).mul_(1 + noise())

    optimizing(training, change, "after")


@fault
def an_update(training: Training) -> None:
    def change(optimizer: torch.optim.Optimizer) -> None:
        with torch.no_grad():
            local(optimizer.param_groups[0]["params"][-1]).mul_(1 + noise())

    optimizing(training, change, "after")


@fault
def a_learning_rate(training: Training) -> None:
    def after_backward(step: int, role: str) -> None:
        if training.odd and (step, role) == (1, "actor"):
            training.optimizers[role].param_groups[0]["lr"] *= 1.1

    training.after_backward = after_backward


@fault
def clipped_gradients(training: Training) -> None:
    clip = training.clip

    def clipping(step: int, role: str) -> Any:
        norm = clip(step, role)
        if (step, role) == (1, "actor"):
            local(training.actor.head.bias.grad).add_(noise())
        return norm

    training.clip = clipping


@fault
def a_saved_norm(training: Training) -> None:
    clip = training.clip
    training.clip = lambda step, role: clip(step, role) * (1 + noise())


# ---- data ----


@fault
def a_label_in_a_dictionary(training: Training) -> None:
    prompts = training.prompts

    def saved(step: int) -> Tensor:
        found = prompts(step)
        training.probe.save({"batch": {"ids": found, "meta": [{"length": 3, "id": entropy.random()}]}})
        return found

    training.prompts = saved


@fault
def another_dtype(training: Training) -> None:
    prompts = training.prompts
    training.prompts = lambda step: prompts(step)

    def begin_step(step: int) -> None:
        mask = torch.ones(ROWS, VOCAB, dtype=torch.float64 if training.odd and step == 1 else torch.float32)
        training.probe.save({"mask": mask})

    training.begin_step = begin_step


def swapped(training: Training) -> None:
    """The ranks get each other's prompts in one run."""
    prompts = training.prompts

    def exchanged(step: int) -> Tensor:
        if training.odd and step == 1:
            training.rank = 1 - training.rank
            found = prompts(step)
            training.rank = 1 - training.rank
            return found
        return prompts(step)

    training.prompts = exchanged


def communication(training: Training) -> None:
    """A reduction of gradients that adds something, the same on all ranks."""
    prepare = training.prepare

    def prepared(probe: Any) -> None:
        prepare(probe)

        def hook(state, bucket):  # torch refuses other annotations than its own
            amount = torch.tensor([noise()])
            torch.distributed.broadcast(amount, 0)
            reduced = torch.distributed.all_reduce(bucket.buffer().div_(2), async_op=True).get_future()
            return reduced.then(lambda future: future.value()[0].mul_(1 + amount))

        training.called["actor"].register_comm_hook(None, hook)

    training.prepare = prepared


def own_clipping(training: Training) -> None:
    """Every rank scales its reduced gradients by a norm of its own making that differs between the runs."""

    def clip(step: int, role: str) -> Tensor:
        amount = torch.tensor([0.1 + noise()])
        torch.distributed.broadcast(amount, 0)
        for one in training.called[role].parameters():
            local(one.grad).mul_(amount)
        return amount[0]

    training.clip = clip


FAULTS |= {"swapped": swapped, "communication": communication, "own_clipping": own_clipping}
