"""GRPO: log-probabilities, group-normalised advantages, the clipped loss.

Source: DeepSeekMath (Shao et al. 2024, arXiv:2402.03300). Shapes: B responses, T response tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from probe.config import RLConfig
from probe.trainer.rollout import Rollout


def token_log_probs(model: Any, rollout: Rollout, temperature: float) -> torch.Tensor:
    """Log-probability of every response token; float32 [B, T].

    Args:
        model: A transformers causal language model.
        rollout: Prompts and responses.
        temperature: Divides the logits, as it did when the tokens were drawn.
    """
    mask = rollout.attention_mask
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    length = rollout.responses.shape[1]
    output = model(
        input_ids=rollout.sequences,
        attention_mask=mask,
        position_ids=positions,
        logits_to_keep=length + 1,
        use_cache=False,
    )
    logits = output.logits[:, :-1].float() / temperature  # [B, T, V]
    return torch.log_softmax(logits, dim=-1).gather(2, rollout.responses.unsqueeze(2)).squeeze(2)


def group_advantages(rewards: torch.Tensor, samples: int) -> torch.Tensor:
    """Rewards minus their group's mean, over its standard deviation; float32 [B].

    Args:
        rewards: float32 [B], the samples of one prompt side by side.
        samples: Responses per prompt.
    """
    groups = rewards.view(-1, samples)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + 1e-6)).view(-1)


@dataclass(frozen=True)
class Loss:
    """A micro-batch's part of the loss.

    Example:
        >>> Loss(torch.tensor(1.0), torch.tensor(0.5)).total.item()
        1.0
    """

    total: torch.Tensor
    """What is differentiated: float32 scalar, its tokens' sum over the step's token count."""
    kl: torch.Tensor
    """Divergence from the reference of every token; float32 [B, T]."""


def grpo_loss(
    config: RLConfig,
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    tokens_in_step: torch.Tensor,
) -> Loss:
    """The clipped policy loss plus the weighted divergence from the reference.

    Args:
        config: Clip range and weight of the divergence.
        log_probs: Under the policy that is trained; float32 [B, T].
        old_log_probs: Under the policy that drew the tokens; float32 [B, T].
        ref_log_probs: Under the reference; float32 [B, T].
        advantages: float32 [B].
        mask: Tokens that count; int64 [B, T].
        tokens_in_step: How many tokens count in all micro-batches of the step together; int64 scalar.
    """
    ratio = torch.exp(log_probs - old_log_probs)
    clipped = ratio.clamp(1 - config.clip_ratio, 1 + config.clip_ratio)
    weight = advantages.unsqueeze(1)
    policy = -torch.minimum(ratio * weight, clipped * weight)
    log_ratio = ref_log_probs - log_probs
    kl = torch.exp(log_ratio) - log_ratio - 1  # k3 of http://joschu.net/blog/kl-approx.html
    total = ((policy + config.init_kl_coef * kl) * mask).sum() / tokens_in_step
    return Loss(total, kl)
