"""msprobe's SingleSave as a contender: MindSpeed-RL's wrapper around it, in the shape of our probe.

SingleSave is a singleton of its process: this module is imported in a benchmark's own process only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from msprobe.core import SingleSave

from probe import Probe


class SingleSaveProbe(Probe):
    """Hands every tag to SingleSave, as MindSpeed-RL's class ``MsProbe`` does with ``key_data_dump``.

    Args:
        folder: Receives the dump. The first instance in a process decides; its steps are counted on by later ones.

    Example:
        >>> probe = SingleSaveProbe(Path("msprobe_dump"))
        >>> probe.save({"loss": torch.tensor(0.5)})
        >>> probe.step()
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(None)
        self._saver = SingleSave(str(folder))

    def save(
        self,
        data: dict[str, Any],
        mask: torch.Tensor | None = None,
        rank: int | None = None,
        micro_step: int | None = None,
    ) -> None:
        """Writes the values at once; masks, ranks and micro-steps have no place in SingleSave.

        Args:
            data: Tag to tensor, or to a dict of tensors.
            mask: Not used.
            rank: Not used.
            micro_step: Not used: SingleSave counts how often a tag was saved in the step.
        """
        self._saver.save(data)

    def step(self, last: bool = False) -> None:
        """Ends a training step.

        Args:
            last: Not used.
        """
        self._saver.step()
