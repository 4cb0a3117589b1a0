"""Firstdiff's core: recording inside a trainer, exact comparison, finding the first cause. Knows no Prefect.

``from probe import Probe`` is all that a trainer needs, ``from probe import instrument`` all that one of TRL's or of
transformers' does. Importing this package loads neither torch nor msprobe nor pydantic; the first use of either does
what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe.adapters.hf_trainer import instrument as instrument
    from probe.collect import Probe as Probe

__all__ = ["Probe", "instrument"]


def __getattr__(name: str) -> object:
    if name == "Probe":
        from probe.collect import Probe

        return Probe
    if name == "instrument":
        from probe.adapters.hf_trainer import instrument

        return instrument
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
