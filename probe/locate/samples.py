"""Samples of verl: the same ones in another order are a matter of the data, whichever of their columns differs first."""

from __future__ import annotations

from dataclasses import replace

from probe.compare.rollouts import Files, in_another_order
from probe.locate.conclude import Conclusion
from probe.locate.first import FirstKeyData


def judge_samples(conclusion: Conclusion, first: FirstKeyData | None, a: Files, b: Files) -> Conclusion:
    """The conclusion, where the samples of the step of its first difference are the same in another order.

    Args:
        conclusion: What key data and layers say.
        first: The first difference of the key data.
        a: The sample files of one run; none where it is none of verl.
        b: Those of the other.
    """
    by_layers = conclusion.first is not None and conclusion.first.tag is None
    if first is None or by_layers or not a or not in_another_order(first.entry, a, b):
        return conclusion
    why = "the samples of the step are the same in another order: data order, sampler, or order of results"
    return replace(conclusion, cause=replace(conclusion.cause, kind="data", explanation=why, permutation=True))
