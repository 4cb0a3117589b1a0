"""Forward passes over responses: log-probabilities of the policy, values of the critic.

Shapes: B responses, T response tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch

from probe.trainer.rollout import Rollout


def token_log_probs(model: Any, rollout: Rollout, temperature: float) -> torch.Tensor:
    """Log-probability of every response token; float32 [B, T].

    Args:
        model: A transformers causal language model.
        rollout: Prompts and responses.
        temperature: Divides the logits, as it did when the tokens were drawn.
    """
    return log_probs_and_entropy(model, rollout, temperature, entropy=False)[0]


def log_probs_and_entropy(
    model: Any, rollout: Rollout, temperature: float, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probability of every response token and, if asked for, the entropy of its distribution; float32 [B, T]."""
    output = model(**_inputs(rollout), logits_to_keep=rollout.responses.shape[1] + 1, use_cache=False)
    logits = output.logits[:, :-1].float() / temperature  # [B, T, V]
    distribution = torch.log_softmax(logits, dim=-1)
    chosen = distribution.gather(2, rollout.responses.unsqueeze(2)).squeeze(2)
    return chosen, -(distribution.exp() * distribution).sum(dim=-1) if entropy else None


def token_values(critic: Any, rollout: Rollout) -> torch.Tensor:
    """The critic's value of the state in which each response token is chosen; float32 [B, T].

    Args:
        critic: A ``ValueModel``, or what shares it among ranks.
        rollout: Prompts and responses.
    """
    values: torch.Tensor = critic(**_inputs(rollout))  # [B, L + T]
    length = rollout.responses.shape[1]
    return values[:, -length - 1 : -1].float()


def _inputs(rollout: Rollout) -> dict[str, torch.Tensor]:
    mask = rollout.attention_mask
    return {
        "input_ids": rollout.sequences,
        "attention_mask": mask,
        "position_ids": (mask.cumsum(dim=1) - 1).clamp(min=0),
    }
