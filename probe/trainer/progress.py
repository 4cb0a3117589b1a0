"""Where the trainer is: the step and the stage that run now."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Progress:
    """Kept up to date by the loop, read by planted faults.

    Example:
        >>> Progress().step
        0
    """

    step: int = 0
    stage: str | None = None
