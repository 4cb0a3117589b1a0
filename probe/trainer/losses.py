"""The losses of the policy and of the value function: one for GRPO, PPO and DAPO.

Shapes: B responses, T response tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from probe.config import RLConfig


@dataclass(frozen=True)
class Loss:
    """A micro-batch's part of the policy's loss.

    Example:
        >>> Loss(torch.tensor(1.0), torch.tensor(0.5)).total.item()
        1.0
    """

    total: torch.Tensor
    """What is differentiated; float32 scalar."""
    kl: torch.Tensor
    """Divergence from the reference of every token; float32 [B, T]."""


def divergence(estimator: str, log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    """How far the policy is from the reference, token by token; float32 [B, T].

    Source: http://joschu.net/blog/kl-approx.html.

    Args:
        estimator: ``kl`` (k1), ``k3`` or ``low_var_kl`` (k3 as well).
        log_probs: Under the policy; float32 [B, T].
        ref_log_probs: Under the reference; float32 [B, T].
    """
    log_ratio = ref_log_probs - log_probs
    return -log_ratio if estimator == "kl" else torch.exp(log_ratio) - log_ratio - 1


def token_weights(mask: torch.Tensor, token_level: bool, tokens: torch.Tensor, responses: int) -> torch.Tensor:
    """What each token counts in a mini-batch's loss, whose weights sum to 1 over all ranks; float32 [B, T].

    Args:
        mask: Tokens that count; int64 [B, T].
        token_level: Every token counts the same; otherwise every response does.
        tokens: Tokens that count in the whole mini-batch, on all ranks; int64 scalar.
        responses: Responses in the whole mini-batch, on all ranks.
    """
    if token_level:
        return mask / tokens
    return mask / mask.sum(dim=1, keepdim=True) / responses


def policy_loss(
    config: RLConfig,
    log_probs: torch.Tensor,
    old_log_probs: torch.Tensor,
    ref_log_probs: torch.Tensor,
    advantages: torch.Tensor,
    weights: torch.Tensor,
    entropy: torch.Tensor | None = None,
) -> Loss:
    """The clipped policy loss, plus the weighted divergence, less the weighted entropy.

    Source: PPO (Schulman et al. 2017, arXiv:1707.06347), equation 7; with another range above than below it is DAPO's
    (Yu et al. 2025, arXiv:2503.14476), with advantages of groups and the divergence in the loss GRPO's
    (Shao et al. 2024, arXiv:2402.03300).

    Args:
        config: Clip range, weights of divergence and entropy.
        log_probs: Under the policy that is trained; float32 [B, T].
        old_log_probs: Under the policy that drew the tokens; float32 [B, T].
        ref_log_probs: Under the reference; float32 [B, T].
        advantages: float32 [B, T].
        weights: What each token counts; float32 [B, T].
        entropy: Of the distribution of each token; float32 [B, T]; None where its weight is 0.
    """
    low, high = config.clip_range
    ratio = torch.exp(log_probs - old_log_probs)
    loss = -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    kl = divergence(config.kl_penalty, log_probs, ref_log_probs)
    loss = loss + config.kl_in_loss * kl
    if entropy is not None:
        loss = loss - config.entropy_coeff * entropy
    return Loss((loss * weights).sum(), kl)


def value_loss(
    values: torch.Tensor, old_values: torch.Tensor, returns: torch.Tensor, clip: float, weights: torch.Tensor
) -> torch.Tensor:
    """Half the squared error of the values, where they move too far that of the clipped ones; float32 scalar.

    Source: PPO2 of https://github.com/openai/baselines.

    Args:
        values: Of the critic that is trained; float32 [B, T].
        old_values: Before the update; float32 [B, T].
        returns: What they should be; float32 [B, T].
        clip: How far a value may move.
        weights: What each token counts; float32 [B, T].
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    error = torch.maximum((values - returns).square(), (clipped - returns).square())
    return 0.5 * (error * weights).sum()
