"""Runs of verl: samples, and layers of some steps; where to look on, and what the end of two runs shows."""

from __future__ import annotations

from dataclasses import replace

from probe.compare import LayerComparison
from probe.compare.rollouts import Files, in_another_order
from probe.language import tell
from probe.locate.cause import cause_of_layers
from probe.locate.conclude import Conclusion, SecondPair
from probe.locate.first import FirstKeyData
from probe.types import Target

_NOT_DUMPED = {
    "data": tell("the model's first module (its embedding)"),
    "loss": tell("the model's last module (its head)"),
}
"""What else may be the reason where nothing that was dumped comes before a difference."""


def judge_samples(conclusion: Conclusion, first: FirstKeyData | None, a: Files, b: Files) -> Conclusion:
    """The conclusion, where there are samples: where to look on, or that they are the same in another order.

    Args:
        conclusion: What key data and layers say.
        first: The first difference of the key data.
        a: The sample files of one run; none where it is none of verl.
        b: Those of the other.
    """
    if first is None or not a:
        return conclusion
    if conclusion.first is not None and conclusion.first.tag is None:
        return _leading_on(conclusion, first.entry.step)
    if not in_another_order(first.entry, a, b):
        return conclusion
    why = tell("the samples of the step are the same in another order: data order, sampler, or order of results")
    return replace(conclusion, cause=replace(conclusion.cause, kind="data", explanation=why, permutation=True))


def target_before(last: LayerComparison) -> Target | None:
    """Which layers to dump where two runs have the same samples, and at their last step other weights.

    Args:
        last: How the layers of that step compare.

    Returns:
        The step, whose samples come from the steps before it; None where the layers themselves name a module.
    """
    found = cause_of_layers(None, last)
    if found is None or found[1].kind != "weights":
        return None
    return Target(found[0].step, "actor_generate_sequences")


def conclude_of_last(last: LayerComparison, second: SecondPair | None) -> Conclusion:
    """The answer where two runs have the same samples, and other layers at their last step.

    Args:
        last: How the layers of that step compare; they differ.
        second: Two further runs, with the layers of steps before; None where they were not run.
    """
    place, cause = cause_of_layers(None, last, ("a", "b")) or (None, None)
    assert place is not None and cause is not None
    if second is None:
        return _leading_on(Conclusion(place, cause), place.step)
    located = cause_of_layers(None, second.layers, second.runs)
    if located is None:
        note = tell(
            "not reproduced: the layers of runs c and d are the same before that step, the answer is that of a and b"
        )
        return Conclusion(place, cause, reproduced=False, notes=[note])
    return _leading_on(Conclusion(*located, reproduced=True), place.step)


def _leading_on(conclusion: Conclusion, step: int) -> Conclusion:
    """What to say of a difference in layers that were dumped because of a later step."""
    place, cause = conclusion.first, conclusion.cause
    if place is not None and cause.kind == "weights" and 1 < place.step < step:
        note = tell(
            "step {step} began with weights that differed: trainer.look_back={count} or more dumps the steps before it,"
            " too",
            step=place.step,
            count=step - place.step + 1,
        )
        return replace(conclusion, notes=[*conclusion.notes, note])
    if (end := _NOT_DUMPED.get(cause.kind)) is not None:
        why = tell(
            "{explanation}, or {end}, which msprobe leaves out of a dump under verl",
            explanation=cause.explanation,
            end=end,
        )
        return replace(conclusion, cause=replace(cause, explanation=why))
    return conclusion
