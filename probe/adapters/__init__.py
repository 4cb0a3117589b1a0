"""How trainers are observed that do not call ``probe.Probe``: in their own processes, through that same ``Probe``.

``bootstrap`` is what their Python processes run first; it calls ``install`` of the adapter of a library when that has
been imported (``bootstrap.WATCHED``). ``script`` is the adapter of torch itself: any script, with no edit.
``hf_trainer`` is that of ``transformers.Trainer`` and of TRL's trainers (``training``, ``trl``), to which it gives way
while they train; ``wrapped`` is the table of their methods that are wrapped.
``mindspeed_rl`` stands in for the class through which MindSpeed-RL records; ``ray_workers`` has Ray's workers end
their records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from probe.collect import Probe

__all__ = ["Adapter", "Host"]


class Adapter(Protocol):
    """Observes one kind of training in this process."""

    def step_back(self) -> Probe | None:
        """Observes nothing from now on, and takes away all that it put into the process.

        Returns:
            The probe that it opened and did not close; None where it opened none.
        """
        ...


class Host(Protocol):
    """Where an adapter is at home: ``bootstrap.Finder``, of which a process has one."""

    observer: Any
    """The ``Adapter`` that observes the process. One that comes later takes over with ``taken_over``, or borrows the
    probe for a while (``ScriptObserver.lend``)."""

    def taken_over(self) -> Any:
        """Has the present adapter step back for good; returns its open probe, or None."""
        ...

    def report(self, what: str, text: str = "") -> None:
        """Leaves word for whoever started the script."""
        ...

    def problem(self, text: str) -> None:
        """Leaves word of what keeps the recording from being whole: the check is then not identical."""
        ...
