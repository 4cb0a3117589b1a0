"""The update of a model, actor or critic: epochs of mini-batches, each an optimizer step over micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from probe import Probe
from probe.config import RLConfig, UpdateConfig
from probe.trainer.batches import micro_batches, mini_batches
from probe.trainer.experience import Experience
from probe.trainer.losses import token_weights
from probe.trainer.parallel import Ranks, Sharing, whole

LossOf = Callable[[Experience, torch.Tensor], tuple[torch.Tensor, dict[str, torch.Tensor]]]
"""From a micro-batch and its tokens' weights (float32 [B, T]) to its loss, and what else is recorded by tag."""


@dataclass(frozen=True)
class Updated:
    """What an update did.

    Example:
        >>> Updated(0.5, 1.0).loss
        0.5
    """

    loss: float
    """Loss over the last pass, summed over its mini-batches; this rank's part of it."""
    grad_norm: float
    """L2 norm of the last gradient, before clipping."""


class Updater:
    """Updates one model.

    Args:
        sharing: The model, and how ranks share it.
        parameters: What is trained.
        config: Optimizer and micro-batches.
        rl_config: Epochs and mini-batches.
        steps: Training steps of the whole run, over which the learning rate decays.
        ranks: The ranks.
    """

    def __init__(
        self,
        sharing: Sharing,
        parameters: list[torch.nn.Parameter],
        config: UpdateConfig,
        rl_config: RLConfig,
        steps: int,
        ranks: Ranks,
    ) -> None:
        self.sharing = sharing
        self._parameters = parameters
        self._config = config
        self._rl_config = rl_config
        self._ranks = ranks
        self.optimizer = torch.optim.AdamW(
            parameters,
            lr=config.lr,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
        )
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: rate(config, step, steps))

    def update(
        self,
        experience: Experience,
        mini_batch_size: int,
        generator: torch.Generator,
        loss_of: LossOf,
        probe: Probe,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> Updated:
        """Trains on a step's responses; ``log_prob`` and the like are recorded for every micro-batch.

        Args:
            experience: This rank's responses.
            mini_batch_size: This rank's responses in one optimizer step.
            generator: Source of the order of responses, on the CPU.
            loss_of: The loss of a micro-batch.
            probe: Records losses and norms.
            autocast: The precision of the forward pass.
        """
        micro_step, loss, norm = 0, 0.0, 0.0
        lengths = experience.rollout.lengths
        self.sharing.model.train()
        for number, rows in enumerate(mini_batches(self._rl_config, len(lengths), mini_batch_size, generator)):
            parts = micro_batches(self._rl_config, rows, lengths, self._config.micro_batch_size, self._ranks)
            loss = 0.0
            for part, weights in self._weighted(experience, rows, parts):
                last = part is parts[-1]
                with self.sharing.accumulating(last):
                    with autocast():
                        total, recorded = loss_of(experience.select(part), weights)
                    (total * self._ranks.count).backward()  # the ranks' gradients are averaged
                mask = experience.rollout.response_mask[part]
                probe.save({**recorded, "loss": total}, mask=mask, micro_step=micro_step)
                micro_step, loss = micro_step + 1, loss + total.item()
            norm = self._step(probe, number)
        self.scheduler.step()
        return Updated(loss, norm)

    def _weighted(
        self, experience: Experience, rows: list[int], parts: list[list[int]]
    ) -> Iterator[tuple[list[int], torch.Tensor]]:
        mask = experience.rollout.response_mask
        tokens = self._ranks.total(mask[rows].sum())
        responses = len(rows) * self._ranks.count
        for part in parts:
            yield part, token_weights(mask[part], self._rl_config.token_level_loss, tokens, responses)

    def _step(self, probe: Probe, number: int) -> float:
        norm = whole(torch.nn.utils.clip_grad_norm_(self._parameters, self._config.clip_grad))
        probe.save({"grad_norm": norm}, micro_step=number)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm.item()


def rate(config: UpdateConfig, step: int, steps: int) -> float:
    """The learning rate of a step, as a share of the highest.

    Args:
        config: Warm-up and decay.
        step: From 0.
        steps: Of the whole run.
    """
    warm_up = int(config.lr_warmup_fraction * steps)
    if step < warm_up:
        return (step + 1) / (warm_up + 1)
    if config.lr_decay_style == "constant":
        return 1.0
    done = min(1.0, (step - warm_up) / max(1, steps - 1 - warm_up))
    left = 1 - done if config.lr_decay_style == "linear" else (1 + math.cos(math.pi * done)) / 2
    lowest = config.min_lr / config.lr
    return lowest + (1 - lowest) * left
