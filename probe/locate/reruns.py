"""What the second pair of runs says: whether the difference came back, and with which of the first two they side."""

from __future__ import annotations

from dataclasses import dataclass

from probe.compare import KeyDataComparison, LayerComparison
from probe.locate.first import FirstKeyData
from probe.store.reader import Dump


@dataclass(frozen=True, slots=True)
class Reruns:
    """How runs ``c`` and ``d`` relate to ``a`` and ``b``.

    Example:
        >>> Reruns(reproduced=False, usable=True, sides_with="a").sides_with
        'a'
    """

    reproduced: bool
    """Whether ``c`` and ``d`` differ from each other, at the place where ``a`` and ``b`` first did or in the layers."""
    usable: bool
    """Whether the layers of ``c`` and ``d`` speak of that place: false when the two differ before its stage already."""
    sides_with: str | None
    """Where ``c`` and ``d`` agree: ``a`` or ``b``, whichever has the same first record."""


def judge_reruns(
    first: FirstKeyData, pair: KeyDataComparison, layers: LayerComparison, a: Dump, b: Dump, c: Dump
) -> Reruns:
    """Judges the second pair.

    Args:
        first: The first difference of ``a`` and ``b``.
        pair: Key data of ``c`` against ``d``.
        layers: Layers of ``c`` against ``d``.
        a: Run a.
        b: Run b.
        c: Run c.
    """
    dumped = (first.entry.step, first.stage)  # what differs in that stage, the layers show from its start
    earlier = any(
        entry.order < first.entry.order and (entry.step, FirstKeyData(entry, ()).stage) != dumped
        for entry in pair.differing
    )
    reproduced = bool(layers.differences) or any(entry.order <= first.entry.order for entry in pair.differing)
    side = None if reproduced else _side(first, a, b, c)
    return Reruns(reproduced, usable=not earlier, sides_with=side)


def _side(first: FirstKeyData, a: Dump, b: Dump, c: Dump) -> str | None:
    """Which of ``a`` and ``b`` has what ``c`` has at the first difference."""
    step, rank, key = first.entry.step, first.entry.rank, first.entry.record.key
    found = [None if (record := dump.find(rank, step, key)) is None else record.digest for dump in (a, b, c)]
    return next((name for name, digest in zip("ab", found[:2], strict=True) if digest == found[2]), None)
