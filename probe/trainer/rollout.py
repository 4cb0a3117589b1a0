"""Sampling responses with transformers' generation and a generator of its own.

Shapes: P prompts, n samples each, B = P·n responses, L prompt tokens, T response tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from probe.config import SamplingConfig
from probe.trainer.tokenizer import Tokenizer


@dataclass(frozen=True)
class Rollout:
    """Responses with their prompts, all on the training device.

    Example:
        >>> Rollout(*[torch.zeros(1, 1)] * 5).sequences.shape
        torch.Size([1, 2])
    """

    prompts: torch.Tensor
    """Token ids, padded on the left; int64 [B, L]."""
    prompt_mask: torch.Tensor
    """1 where a prompt has a token; int64 [B, L]."""
    responses: torch.Tensor
    """Token ids, padded on the right; int64 [B, T]."""
    response_mask: torch.Tensor
    """1 up to and with the end token; int64 [B, T]."""
    log_probs: torch.Tensor
    """Log-probability under which each token was drawn, 0 outside the mask; float32 [B, T]."""

    @property
    def sequences(self) -> torch.Tensor:
        """Prompts and responses; int64 [B, L + T]."""
        return torch.cat([self.prompts, self.responses], dim=1)

    @property
    def attention_mask(self) -> torch.Tensor:
        """1 where a sequence has a token; int64 [B, L + T]."""
        return torch.cat([self.prompt_mask, self.response_mask], dim=1)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence, without padding."""
        return [int(length) for length in self.attention_mask.sum(dim=1).tolist()]

    def select(self, rows: list[int]) -> Rollout:
        """Some responses, in the order given."""
        return Rollout(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def join(cls, parts: list[Rollout], pad: int) -> Rollout:
        """All responses of several rollouts; prompts are padded to the longest.

        Args:
            parts: The rollouts.
            pad: The padding token.
        """
        longest = max(part.prompts.shape[1] for part in parts)
        names = ("responses", "response_mask", "log_probs")
        return cls(
            torch.cat([_widened(part.prompts, longest, pad) for part in parts]),
            torch.cat([_widened(part.prompt_mask, longest, 0) for part in parts]),
            *(torch.cat([getattr(part, name) for part in parts]) for name in names),
        )


def _widened(rows: torch.Tensor, width: int, value: int) -> torch.Tensor:
    """Rows padded on the left to a width."""
    return torch.nn.functional.pad(rows, (width - rows.shape[1], 0), value=value)


class SeededSampler:
    """A logits processor that draws each token itself: the Gumbel-max trick with an own generator.

    Transformers samples from the global random state. Adding Gumbel noise to the log-probabilities and taking the
    largest draws from the same distribution (Gumbel 1954; Maddison et al. 2014), and greedy generation does the rest.

    Args:
        config: Temperature, top-k, top-p.
        generator: Source of the noise, on the device of the logits.
    """

    def __init__(self, config: SamplingConfig, generator: torch.Generator) -> None:
        from transformers import TopKLogitsWarper, TopPLogitsWarper

        self._temperature = config.temperature
        self._generator = generator
        self._warpers: list[Any] = []
        if config.top_k > 0:
            self._warpers.append(TopKLogitsWarper(config.top_k))
        if config.top_p < 1:
            self._warpers.append(TopPLogitsWarper(config.top_p))
        self.log_probs: list[torch.Tensor] = []
        """Log-probability of each drawn token; float32 [B], one entry a token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Perturbed log-probabilities whose largest is the token that is drawn; float32 [B, V]."""
        scores = scores.float() / self._temperature
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        log_probs = torch.log_softmax(scores, dim=-1)
        uniform = torch.rand(scores.shape, generator=self._generator, device=scores.device)
        perturbed = log_probs - torch.log(-torch.log(uniform))
        drawn = perturbed.argmax(dim=-1, keepdim=True)
        self.log_probs.append(log_probs.gather(1, drawn).squeeze(1))
        return perturbed


def pad_left(rows: list[list[int]], pad: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask of rows of different lengths; int64 [rows, longest] each."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], dtype=torch.int64, device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], dtype=torch.int64, device=device)
    return ids, mask


@torch.no_grad()
def generate(
    model: Any,
    prompts: torch.Tensor,
    prompt_mask: torch.Tensor,
    config: SamplingConfig,
    tokenizer: Tokenizer,
    generator: torch.Generator,
    wait_for_all: bool = False,
) -> Rollout:
    """Draws one response for each prompt row.

    Args:
        model: A transformers causal language model.
        prompts: int64 [B, L], padded on the left.
        prompt_mask: int64 [B, L].
        config: Length and distribution.
        tokenizer: For the end and padding tokens.
        generator: Source of randomness, on the model's device.
        wait_for_all: Go on until every rank has ended: each forward pass needs all of them.
    """
    from transformers import GenerationConfig, LogitsProcessorList

    sampler = SeededSampler(config, generator)
    settings = GenerationConfig(
        max_new_tokens=config.max_tokens,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    sequences = model.generate(
        input_ids=prompts,
        attention_mask=prompt_mask,
        generation_config=settings,
        logits_processor=LogitsProcessorList([sampler]),
        synced_gpus=wait_for_all,
    )
    drawn = sequences[:, prompts.shape[1] :]
    responses = torch.full((len(prompts), config.max_tokens), tokenizer.pad_token_id, device=prompts.device)
    responses[:, : drawn.shape[1]] = drawn
    log_probs = torch.zeros(responses.shape, device=prompts.device)
    log_probs[:, : drawn.shape[1]] = torch.stack(sampler.log_probs, dim=1)
    ended = (responses == tokenizer.eos_token_id).long()
    before_end = ended.cumsum(dim=1) - ended == 0
    within = torch.arange(config.max_tokens, device=prompts.device) < drawn.shape[1]
    mask = (before_end & within).long()
    return Rollout(
        prompts, prompt_mask, responses.masked_fill(mask == 0, tokenizer.pad_token_id), mask, log_probs * mask
    )


def rollout_of(
    prompts: torch.Tensor,
    prompt_mask: torch.Tensor,
    responses: list[list[int]],
    log_probs: list[list[float]],
    longest: int,
    pad: int,
) -> Rollout:
    """A rollout of responses that came as lists, with their end tokens.

    Args:
        prompts: int64 [B, L], padded on the left.
        prompt_mask: int64 [B, L].
        responses: Token ids of each response.
        log_probs: Log-probability of each of them.
        longest: T, tokens that every row is padded to.
        pad: The padding token.
    """
    device = prompts.device
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in responses], dtype=torch.int64, device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in responses], device=device)
    drawn = torch.tensor([row + [0.0] * (longest - len(row)) for row in log_probs], device=device)
    return Rollout(prompts, prompt_mask, ids, mask, drawn)
