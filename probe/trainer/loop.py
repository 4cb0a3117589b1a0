"""The training loop: rollout, rewards, log-probabilities, advantages, update; each under its stage of the probe.

Shapes: P prompts, n samples each, B = P·n responses, L prompt tokens, T response tokens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from probe import Probe
from probe.config import TrainerRunConfig
from probe.errors import ConfigError
from probe.trainer import faults
from probe.trainer.algorithm import group_advantages, grpo_loss, token_log_probs
from probe.trainer.data import Question, load_questions
from probe.trainer.device import make_deterministic, pick_device, sampling_generator
from probe.trainer.models import build_models
from probe.trainer.progress import Progress
from probe.trainer.rewards import score
from probe.trainer.rollout import Rollout, generate, pad_left

log = logging.getLogger("firstdiff.trainer")


class GRPOTrainer:
    """Group relative policy optimisation on one device.

    Args:
        config: The whole configuration.
        probe: Records the run, or is inert.

    Raises:
        ConfigError: The model, the data or a planted fault cannot be made.
        UsageError: The device is not there.
    """

    def __init__(self, config: TrainerRunConfig, probe: Probe) -> None:
        self._config = config
        self._probe = probe
        self._progress = Progress()
        self._device = pick_device(config.device)
        seed = config.megatron_training.seed
        make_deterministic(config.determinism, seed, self._device)
        models = build_models(config.model, self._device)
        self._actor, self._reference, self._tokenizer = models.actor, models.reference, models.tokenizer
        self._questions = load_questions(config.megatron_training)
        sampling_seed = config.generate_config.sampling_config.seed
        self._generator = sampling_generator(seed if sampling_seed is None else sampling_seed, self._device)
        actor_config = config.actor_config
        self._optimizer = torch.optim.AdamW(
            self._actor.parameters(),
            lr=actor_config.lr,
            betas=(actor_config.adam_beta1, actor_config.adam_beta2),
            eps=actor_config.adam_eps,
            weight_decay=actor_config.weight_decay,
        )
        roles: dict[str, torch.nn.Module] = {"actor": self._actor, "reference": self._reference}
        faults.plant(config.faults, roles, self._progress)
        probe.attach(**roles)

    def train(self) -> None:
        """Trains until the configured step, or until the probe has what it needs."""
        for step in range(self._config.megatron_training.train_iters):
            self._progress.step = step
            metrics = self._train_step(step)
            log.info(json.dumps({"step": step, **metrics}))
            self._probe.step()
            if self._probe.finished:
                break

    def _train_step(self, step: int) -> dict[str, float]:
        questions = self._questions.batch(step)
        rollout = self._generate(questions)
        rewards = self._score(questions, rollout)
        old_log_probs = self._log_probs("actor_compute_log_prob", self._actor, "old_log_prob", rollout)
        ref_log_probs = self._log_probs("reference_compute_log_prob", self._reference, "ref_log_prob", rollout)
        advantages = group_advantages(rewards, self._config.rl_config.n_samples_per_prompt)
        self._probe.save({"advantages": advantages})
        loss, grad_norm = self._update(rollout, old_log_probs, ref_log_probs, advantages)
        return {"reward": rewards.mean().item(), "loss": loss, "grad_norm": grad_norm}

    def _generate(self, questions: list[Question]) -> Rollout:
        """Samples n responses for each question, the samples of one question side by side."""
        encoded = [self._tokenizer.encode(question.prompt) for question in questions]
        longest = self._config.rl_config.max_prompt_length
        for question, ids in zip(questions, encoded, strict=True):
            if not 0 < len(ids) <= longest:
                problem = f"the prompt {question.prompt[:40]!r} has {len(ids)} tokens; allowed are 1 to {longest}"
                raise ConfigError("", "rl_config.max_prompt_length", problem)
        rows = [ids for ids in encoded for _ in range(self._config.rl_config.n_samples_per_prompt)]
        prompts, mask = pad_left(rows, self._tokenizer.pad_token_id, self._device)
        self._probe.save({"prompts": prompts}, mask=mask)
        self._actor.eval()
        parts: list[Rollout] = []
        size = self._config.generate_config.max_num_seqs
        for index, (ids, ids_mask) in enumerate(zip(prompts.split(size), mask.split(size), strict=True)):
            with self._stage("actor_generate_sequences", index), self._autocast():
                part = generate(
                    self._actor,
                    ids,
                    ids_mask,
                    self._config.generate_config.sampling_config,
                    self._tokenizer,
                    self._generator,
                )
                tag = {"tokens": part.responses, "log_probs": part.log_probs}
                self._probe.save({"responses": tag}, mask=part.response_mask)
            parts.append(part)
        return Rollout.join(parts)

    def _score(self, questions: list[Question], rollout: Rollout) -> torch.Tensor:
        """Rule rewards; float32 [B]."""
        samples = self._config.rl_config.n_samples_per_prompt
        ended = (rollout.responses == self._tokenizer.eos_token_id).any(dim=1).tolist()
        rewards = [
            score(self._config.rl_config, self._tokenizer.decode(ids), questions[row // samples].answer, ended[row])
            for row, ids in enumerate(rollout.responses.tolist())
        ]
        result = torch.tensor(rewards, dtype=torch.float32, device=self._device)
        self._probe.save({"rewards": result})
        return result

    @torch.no_grad()
    def _log_probs(self, stage: str, model: Any, tag: str, rollout: Rollout) -> torch.Tensor:
        """Log-probabilities of the responses in micro-batches; float32 [B, T]."""
        config = self._config.rl_config
        size = (
            config.actor_forward_micro_batch_size
            if stage == "actor_compute_log_prob"
            else config.ref_forward_micro_batch_size
        )
        parts = []
        with self._stage(stage), self._autocast():
            for index, part in enumerate(rollout.split(size)):
                parts.append(token_log_probs(model, part, self._temperature))
                self._probe.save({tag: parts[-1]}, mask=part.response_mask, micro_step=index)
        return torch.cat(parts)

    def _update(
        self,
        rollout: Rollout,
        old_log_probs: torch.Tensor,
        ref_log_probs: torch.Tensor,
        advantages: torch.Tensor,
    ) -> tuple[float, float]:
        """One optimizer step over all micro-batches; returns the loss and the gradient's L2 norm."""
        size = self._config.actor_config.micro_batch_size
        tokens = rollout.response_mask.sum()
        parts = zip(
            rollout.split(size),
            old_log_probs.split(size),
            ref_log_probs.split(size),
            advantages.split(size),
            strict=True,
        )
        self._actor.train()
        total = 0.0
        with self._stage("actor_update"):
            for index, (part, old, ref, advantage) in enumerate(parts):
                mask = part.response_mask
                with self._autocast():
                    log_probs = token_log_probs(self._actor, part, self._temperature)
                loss = grpo_loss(self._config.rl_config, log_probs, old, ref, advantage, mask, tokens)
                loss.total.backward()
                self._probe.save(
                    {"log_prob": log_probs, "kl_loss": loss.kl, "loss": loss.total}, mask=mask, micro_step=index
                )
                total += loss.total.item()
            norm = torch.nn.utils.clip_grad_norm_(self._actor.parameters(), self._config.actor_config.clip_grad)
            self._probe.save({"grad_norm": norm})
            self._optimizer.step()
            self._optimizer.zero_grad()
        return total, norm.item()

    @property
    def _temperature(self) -> float:
        return self._config.generate_config.sampling_config.temperature

    @contextmanager
    def _stage(self, name: str, micro_step: int | None = None) -> Iterator[None]:
        self._progress.stage = name
        try:
            with self._probe.stage(name, micro_step=micro_step):
                yield
        finally:
            self._progress.stage = None

    def _autocast(self) -> torch.autocast:
        enabled = self._config.megatron_training.bf16
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=enabled)
