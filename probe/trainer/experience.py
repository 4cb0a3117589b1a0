"""What a step learned from: responses with their log-probabilities, values and advantages."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from probe.trainer.rollout import Rollout


@dataclass(frozen=True)
class Experience:
    """Responses and all that an update needs of them; B responses, T tokens.

    Example:
        >>> rollout = Rollout(*[torch.zeros(2, 1)] * 5)
        >>> Experience(rollout, *[torch.zeros(2, 1)] * 3).select([1]).advantages.shape
        torch.Size([1, 1])
    """

    rollout: Rollout
    old_log_probs: torch.Tensor
    """Under the policy that drew the tokens; float32 [B, T]."""
    ref_log_probs: torch.Tensor
    """Under the reference; float32 [B, T]."""
    advantages: torch.Tensor
    """float32 [B, T]."""
    values: torch.Tensor | None = None
    """Of the critic before the update; float32 [B, T]; None without a critic."""
    returns: torch.Tensor | None = None
    """What the critic's values should be; float32 [B, T]; None without a critic."""

    def select(self, rows: list[int]) -> Experience:
        """Those of some responses, in the order given."""
        return Experience(
            self.rollout.select(rows),
            self.old_log_probs[rows],
            self.ref_log_probs[rows],
            self.advantages[rows],
            None if self.values is None else self.values[rows],
            None if self.returns is None else self.returns[rows],
        )
