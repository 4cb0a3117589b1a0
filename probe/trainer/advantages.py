"""What a response was worth: rewards shaped, grouped or discounted into the advantage of every token.

Shapes: B responses, T response tokens. Responses of one prompt lie side by side.
"""

from __future__ import annotations

import torch

from probe.config import RLConfig
from probe.trainer.parallel import Ranks


def group_advantages(rewards: torch.Tensor, samples: int) -> torch.Tensor:
    """Rewards minus their group's mean, over its standard deviation; float32 [B].

    Source: DeepSeekMath (Shao et al. 2024, arXiv:2402.03300), section 4.1.

    Args:
        rewards: float32 [B].
        samples: Responses per prompt.
    """
    groups = rewards.view(-1, samples)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True) + 1e-6)).view(-1)


def mixed_groups(scores: torch.Tensor, samples: int) -> torch.Tensor:
    """Which prompts have responses of different scores, from which something can be learned; bool [B / samples].

    Source: DAPO (Yu et al. 2025, arXiv:2503.14476), section 3.2.
    """
    groups = scores.view(-1, samples)
    return (groups != groups[:, :1]).any(dim=1)


def overlong_penalty(config: RLConfig, lengths: torch.Tensor, longest: int) -> torch.Tensor:
    """What is added to the reward of a long response: 0, then falling over the buffer; float32 [B].

    Source: DAPO (Yu et al. 2025, arXiv:2503.14476), equation 13.

    Args:
        config: Length of the buffer, and the greatest penalty.
        lengths: Tokens of each response; int64 [B].
        longest: Most tokens of a response.
    """
    excess = (lengths - (longest - config.overlong_buffer)).clamp(min=0)
    return -config.overlong_buffer_penalty_factor * excess.float() / config.overlong_buffer


def token_rewards(rewards: torch.Tensor, mask: torch.Tensor, divergence: torch.Tensor | None) -> torch.Tensor:
    """The reward of each token: the response's at its last one, less what it diverges; float32 [B, T].

    Args:
        rewards: Of whole responses; float32 [B].
        mask: 1 for the tokens of a response, which come first; int64 [B, T].
        divergence: Weighted divergence from the reference of every token; float32 [B, T]; None takes nothing off.
    """
    result = torch.zeros(mask.shape, device=mask.device) if divergence is None else -divergence * mask
    last = mask.sum(dim=1, keepdim=True) - 1
    return result.scatter_add(1, last, rewards.unsqueeze(1))


def generalised_advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Generalised advantage estimation; advantages and returns, float32 [B, T] each, 0 outside the mask.

    Source: Schulman et al. 2015, arXiv:1506.02438, equation 16.

    Args:
        rewards: Of each token; float32 [B, T].
        values: Of the state in which each token is chosen; float32 [B, T].
        mask: 1 for the tokens of a response, which come first; int64 [B, T].
        gamma: Discount.
        lam: Weight of later temporal differences.
    """
    advantages = torch.zeros_like(values)
    following, next_value = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for token in reversed(range(values.shape[1])):
        inside = mask[:, token]
        difference = rewards[:, token] + gamma * next_value - values[:, token]
        following = (difference + gamma * lam * following) * inside
        next_value = values[:, token] * inside
        advantages[:, token] = following
    return advantages, (advantages + values) * mask


def whitened(advantages: torch.Tensor, mask: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    """Advantages of mean 0 and standard deviation 1 over all tokens of all ranks; float32 [B, T], 0 outside."""
    count = ranks.total(mask.sum().float())
    mean = ranks.total((advantages * mask).sum()) / count
    variance = ranks.total(((advantages - mean).square() * mask).sum()) / count
    return (advantages - mean) * torch.rsqrt(variance + 1e-8) * mask
