"""The training loop: rollout, rewards, log-probabilities, values, advantages, updates; each under its stage.

GRPO, PPO and DAPO are settings of this one loop. Shapes: P prompts of this rank, n samples each, B = P·n responses,
L prompt tokens, T response tokens.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from probe import Probe
from probe.config import TrainerRunConfig
from probe.errors import ConfigError
from probe.trainer import faults
from probe.trainer.advantages import (
    generalised_advantages,
    group_advantages,
    mixed_groups,
    overlong_penalty,
    token_rewards,
    whitened,
)
from probe.trainer.batches import micro_batches
from probe.trainer.checkpoints import Checkpoints, Position
from probe.trainer.data import Question, load_questions
from probe.trainer.device import RandomStates, make_deterministic, pick_device
from probe.trainer.engines import make_engine
from probe.trainer.experience import Experience
from probe.trainer.forward import log_probs_and_entropy, token_log_probs, token_values
from probe.trainer.losses import divergence, policy_loss, value_loss
from probe.trainer.models import build_models, decoder_layers
from probe.trainer.parallel import Ranks, Sharing, process_group
from probe.trainer.progress import Progress
from probe.trainer.rewards import scores
from probe.trainer.rollout import Rollout, pad_left
from probe.trainer.update import Updated, Updater

log = logging.getLogger("firstdiff.trainer")


def train(config: TrainerRunConfig, probe: Probe) -> None:
    """Trains as this process's rank of the training.

    Args:
        config: The whole configuration.
        probe: Records the run, or is inert.

    Raises:
        ConfigError: The model, the data, a checkpoint or a planted fault cannot be had.
        UsageError: The device is not there.
    """
    with process_group(pick_device(config.device)) as ranks:
        Trainer(config, probe, ranks).train()


def examine(config: TrainerRunConfig, probe: Probe) -> None:
    """Sets this process up as for a training, and takes no step: what is in effect then is what a training has.

    Args:
        config: As for ``train``.
        probe: Is attached to the models.

    Raises:
        ConfigError: As for ``train``.
        UsageError: The device is not there.
    """
    with process_group(pick_device(config.device)) as ranks:
        Trainer(config, probe, ranks)
        probe.close()


class Trainer:
    """Policy optimisation with one actor, its frozen reference and, for PPO, a critic.

    Args:
        config: The whole configuration.
        probe: Records the run, or is inert.
        ranks: The ranks that train together, each on its device.

    Raises:
        ConfigError: The model, the data, a checkpoint or a planted fault cannot be had.
    """

    def __init__(self, config: TrainerRunConfig, probe: Probe, ranks: Ranks) -> None:
        self._config = config
        self._probe = probe
        self._ranks = ranks
        self._progress = Progress()
        training, sampling = config.megatron_training, config.generate_config.sampling_config
        make_deterministic(config.determinism, training.seed, ranks.device)
        models = build_models(config, ranks.device)
        self._tokenizer = models.tokenizer
        self._questions = load_questions(training)
        self._prompts = _share(training.global_batch_size, ranks, "megatron_training.global_batch_size")
        mini = config.rl_config.mini_batch_size or training.global_batch_size
        self._mini_batch = _share(mini, ranks, "rl_config.mini_batch_size") * config.rl_config.n_samples_per_prompt
        roles = {"actor": models.actor, "reference": models.reference, "critic": models.critic}
        present: dict[str, torch.nn.Module] = {role: model for role, model in roles.items() if model is not None}
        faults.plant(config.faults, present, self._progress, ranks.rank)
        kind = training.data_parallel
        trained = models.trained
        shared = {
            role: Sharing(model, decoder_layers(model), trained[role], kind, ranks) for role, model in present.items()
        }
        self._actor, self._reference, self._critic = models.actor, models.reference, models.critic
        self._random = RandomStates(training.seed if sampling.seed is None else sampling.seed, training.seed, ranks)
        make = partial(Updater, rl_config=config.rl_config, steps=training.train_iters, ranks=ranks)
        trained = models.trained  # shards are new parameters
        configs = {"actor": config.actor_config, "critic": config.critic_config}
        self._updaters = {role: make(shared[role], trained[role], configs[role]) for role in configs if trained[role]}
        self._engine = make_engine(config, shared["actor"], self._tokenizer, self._random.sampling)
        self._position = Position()
        self._checkpoints = Checkpoints(training, self._updaters, self._random, ranks)
        if training.load is not None:
            self._position = self._checkpoints.load(training.load)
        probe.resume(self._position.step)
        probe.attach(**present)
        probe.attach_rng(sampling=self._random.sampling, shuffling=self._random.shuffling)

    def train(self) -> None:
        """Trains until the configured step, or until the probe has what it needs."""
        self._engine.update_weights()
        last = self._config.megatron_training.train_iters
        if self._position.step >= last and self._ranks.rank == 0:
            log.warning(
                "nothing is left to train: %d of %d steps are done in the checkpoint", self._position.step, last
            )
        for step in range(self._position.step, last):
            self._progress.step = step
            metrics = self._train_step()
            if self._ranks.rank == 0:
                log.info(json.dumps({"step": step, **metrics}))
            self._probe.step()
            self._position.step = step + 1
            self._checkpoints.save_if_due(self._position)
            if self._probe.finished:
                break

    def _train_step(self) -> dict[str, float]:
        rollout, rewards = self._collect()
        old = self._log_probs("actor_compute_log_prob", self._actor, "old_log_prob", rollout)
        reference = self._log_probs("reference_compute_log_prob", self._reference, "ref_log_prob", rollout)
        experience = self._estimate(rollout, rewards, old, reference, self._values(rollout))
        self._probe.save({"advantages": experience.advantages}, mask=rollout.response_mask)
        metrics = {"reward": self._ranks.total(rewards.mean()).item() / self._ranks.count}
        updated = self._update("actor", experience)
        metrics |= {"loss": updated.loss, "grad_norm": updated.grad_norm}
        if self._critic is not None:
            metrics["value_loss"] = self._update("critic", experience).loss
        self._engine.update_weights()
        return metrics

    # ---- responses and rewards ----

    def _collect(self) -> tuple[Rollout, torch.Tensor]:
        """This rank's responses and their rewards, float32 [B]; with dynamic sampling, of several batches."""
        config, samples = self._config.rl_config, self._config.rl_config.n_samples_per_prompt
        kept: list[tuple[Rollout, torch.Tensor]] = []
        left_out: list[tuple[Rollout, torch.Tensor]] = []
        missing, batch, part = self._prompts, 0, 0
        while self._ranks.largest(missing) > 0 and batch < config.filter_groups_max_batches:
            questions = self._own_questions()
            rollout, part = self._generate(questions, batch, part)
            rewards, metric = self._score(questions, rollout, batch)
            wanted = torch.ones(self._prompts, dtype=torch.bool)
            if config.filter_groups_enable:
                wanted = mixed_groups(metric, samples).cpu()
            for group in range(self._prompts):
                rows = list(range(group * samples, (group + 1) * samples))
                target = kept if wanted[group] else left_out
                target.append((rollout.select(rows), rewards[rows]))
            batch, missing = batch + 1, self._prompts - len(kept)
        if missing > 0:
            log.info("rank %d: %d groups of equal rewards fill the step up", self._ranks.rank, missing)
        groups = [*kept, *left_out][: self._prompts]
        joined = Rollout.join([group for group, _ in groups], self._tokenizer.pad_token_id)
        return joined, torch.cat([rewards for _, rewards in groups])

    def _own_questions(self) -> list[Question]:
        """This rank's part of the next batch of prompts."""
        questions = self._questions.batch(self._position.batches)
        self._position.batches += 1
        first = self._ranks.rank * self._prompts
        return questions[first : first + self._prompts]

    def _generate(self, questions: list[Question], batch: int, part: int) -> tuple[Rollout, int]:
        """Samples n responses for each question, the samples of one question side by side.

        Args:
            questions: The prompts.
            batch: Which batch of the step this is.
            part: Parts that were generated in this step before.

        Returns:
            The responses, and how many parts were generated in this step by now.
        """
        encoded = [self._tokenizer.encode(question.prompt) for question in questions]
        longest = self._config.rl_config.max_prompt_length
        for question, ids in zip(questions, encoded, strict=True):
            if not 0 < len(ids) <= longest:
                problem = f"the prompt {question.prompt[:40]!r} has {len(ids)} tokens; allowed are 1 to {longest}"
                raise ConfigError("", "rl_config.max_prompt_length", problem)
        rows = [ids for ids in encoded for _ in range(self._config.rl_config.n_samples_per_prompt)]
        prompts, mask = pad_left(rows, self._tokenizer.pad_token_id, self._ranks.device)
        self._probe.save({"prompts": prompts}, mask=mask, micro_step=batch)
        self._actor.eval()
        parts: list[Rollout] = []
        size = self._config.generate_config.max_num_seqs
        for ids, ids_mask in zip(prompts.split(size), mask.split(size), strict=True):
            with self._stage("actor_generate_sequences", part), self._autocast():
                rollout = self._engine.generate(ids, ids_mask)
                tag = {"tokens": rollout.responses, "log_probs": rollout.log_probs}
                self._probe.save({"responses": tag}, mask=rollout.response_mask)
            parts.append(rollout)
            part += 1
        return Rollout.join(parts, self._tokenizer.pad_token_id), part

    def _score(self, questions: list[Question], rollout: Rollout, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rule rewards, and the scores by which groups are chosen; float32 [B] each."""
        config = self._config.rl_config
        ended = (rollout.responses == self._tokenizer.eos_token_id).any(dim=1).tolist()
        answers = [question.answer for question in questions for _ in range(config.n_samples_per_prompt)]
        texts = [self._tokenizer.decode(ids) for ids in rollout.responses.tolist()]
        found = [scores(config, *row) for row in zip(texts, answers, ended, strict=True)]
        make = partial(torch.tensor, dtype=torch.float32, device=self._ranks.device)
        rewards = make([sum(rules.values()) for rules in found])
        if config.overlong_buffer_enable:
            lengths, longest = rollout.response_mask.sum(dim=1), rollout.responses.shape[1]
            rewards = rewards + overlong_penalty(config, lengths, longest)
        self._probe.save({"rewards": rewards}, micro_step=batch)
        metric = config.filter_groups_metric
        return rewards, rewards if metric is None else make([rules[metric] for rules in found])

    # ---- what the models say of them ----

    def _log_probs(self, stage: str, model: Any, tag: str, rollout: Rollout) -> torch.Tensor:
        """Log-probabilities of the responses; float32 [B, T]."""
        config = self._config.rl_config
        of_actor = stage == "actor_compute_log_prob"
        size = config.actor_forward_micro_batch_size if of_actor else config.ref_forward_micro_batch_size
        return self._forward(stage, tag, rollout, size, partial(token_log_probs, model, temperature=self._temperature))

    def _values(self, rollout: Rollout) -> torch.Tensor | None:
        """The critic's values of the responses' tokens; float32 [B, T]; None without a critic."""
        if self._critic is None:
            return None
        self._critic.eval()
        size = self._config.rl_config.critic_forward_micro_batch_size
        return self._forward("critic_compute_values", "values", rollout, size, partial(token_values, self._critic))

    @torch.no_grad()
    def _forward(self, stage: str, tag: str, rollout: Rollout, size: int, compute: Any) -> torch.Tensor:
        parts = []
        lengths = rollout.lengths
        rows = micro_batches(self._config.rl_config, list(range(len(lengths))), lengths, size, self._ranks)
        with self._stage(stage), self._autocast():
            for index, part in enumerate(rows):
                chosen = rollout.select(part)
                parts.append(compute(rollout=chosen))
                self._probe.save({tag: parts[-1]}, mask=chosen.response_mask, micro_step=index)
        return torch.cat(parts)

    def _estimate(
        self,
        rollout: Rollout,
        rewards: torch.Tensor,
        old: torch.Tensor,
        reference: torch.Tensor,
        values: torch.Tensor | None,
    ) -> Experience:
        """Advantages, and with a critic what its values should be."""
        config, mask = self._config.rl_config, rollout.response_mask
        if values is None:
            advantages = group_advantages(rewards, config.n_samples_per_prompt).unsqueeze(1) * mask
            return Experience(rollout, old, reference, advantages)
        taken_off = None
        if config.use_kl_in_reward:
            taken_off = config.init_kl_coef * divergence(config.kl_penalty, old, reference)
        per_token = token_rewards(rewards, mask, taken_off)
        advantages, returns = generalised_advantages(per_token, values, mask, config.gamma, config.lam)
        if config.advantage_whiten:
            advantages = whitened(advantages, mask, self._ranks)
        return Experience(rollout, old, reference, advantages, values, returns)

    # ---- updates ----

    def _update(self, role: str, experience: Experience) -> Updated:
        with self._stage(f"{role}_update"):
            return self._updaters[role].update(
                experience,
                self._mini_batch,
                self._random.shuffling,
                self._policy_loss if role == "actor" else self._value_loss,
                self._probe,
                self._autocast,
            )

    def _policy_loss(self, part: Experience, weights: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        config = self._config.rl_config
        log_probs, entropy = log_probs_and_entropy(
            self._updaters["actor"].sharing.trained, part.rollout, self._temperature, config.entropy_coeff > 0
        )
        loss = policy_loss(config, log_probs, part.old_log_probs, part.ref_log_probs, part.advantages, weights, entropy)
        return loss.total, {"log_prob": log_probs, "kl_loss": loss.kl}

    def _value_loss(self, part: Experience, weights: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        assert part.values is not None and part.returns is not None
        values = token_values(self._updaters["critic"].sharing.trained, part.rollout)
        clip = self._config.rl_config.cliprange_value
        return value_loss(values, part.values, part.returns, clip, weights), {}

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
        return torch.autocast(self._ranks.device.type, dtype=torch.bfloat16, enabled=enabled)


def _share(count: int, ranks: Ranks, key: str) -> int:
    """This rank's part of so many prompts."""
    if count % ranks.count:
        raise ConfigError("", key, f"{count} prompts cannot be shared evenly by {ranks.count} ranks")
    return count // ranks.count
