"""Firstdiff's core: recording inside a trainer, exact comparison, finding the first cause. Knows no Prefect.

``from probe import Probe`` is all that a trainer needs. Importing this package loads neither torch nor msprobe nor
pydantic; the first use of ``Probe`` does what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.collect import Probe as Probe

__all__ = ["Probe"]


def __getattr__(name: str) -> object:
    if name == "Probe":
        from probe.collect import Probe

        return Probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
