"""When a training step of any script is over: the optimizers that there are, and the updates that they make."""

from __future__ import annotations

import weakref

import torch


class Steps:
    """Tells when a training step is over, from the optimizers that there are and from those that made an update."""

    def __init__(self) -> None:
        self._made: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._rare: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Those that do not make an update in each step, or none at all."""
        self._updated: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._ever: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._again: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        """Those with an update in this step, and a call of a module behind it."""
        self._any = False
        self._calls = 0

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """There is a new optimizer."""
        self._any = True
        self._made.add(optimizer)

    def called(self) -> None:
        """A model was called."""
        self._calls += 1
        self._again.update(self._updated)

    def updated(self, optimizer: torch.optim.Optimizer) -> bool:
        """An optimizer has made an update. One that does so twice, while others wait, does not wait for them.

        Returns:
            Whether it is its first.
        """
        self.made(optimizer)
        first = optimizer not in self._ever
        self._ever.add(optimizer)
        if optimizer in self._again:
            self._rare.update(self._waited_for())
        self._rare.discard(optimizer)
        self._updated.add(optimizer)
        return first

    def over(self, kind: str) -> bool:
        """Whether a step is over when a module is called now.

        Args:
            kind: ``optimizer``: by updates; ``call``: by calls; ``auto``: by calls as long as there is no optimizer.
        """
        if kind == "call" or (kind == "auto" and not self._any):
            return self._calls > 0
        return bool(self._updated) and not self._waited_for()

    def ended(self) -> None:
        """A new step begins."""
        self._updated.clear()
        self._again.clear()
        self._calls = 0

    def taken_back(self) -> None:
        """Another adapter has observed a training: none of the optimizers that there are now is waited for."""
        self._rare.update(self._made)

    def _waited_for(self) -> set[torch.optim.Optimizer]:
        return set(self._made) - set(self._rare) - set(self._updated)
