"""From comparisons to the answer: the first difference, its cause, and the verdict."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from probe.compare import KeyDataComparison, LayerComparison, TraceComparison
from probe.language import tell
from probe.locate.cause import Cause, First, cause_of_key_data, cause_of_layers
from probe.locate.first import FirstKeyData
from probe.locate.reruns import judge_reruns
from probe.locate.trace import TraceAnswer, is_earliest, locate_trace
from probe.store.reader import Dump

_NOT_REPRODUCED = tell("not reproduced: runs c and d are the same, the answer is that of a and b")


@dataclass(frozen=True)
class SecondPair:
    """Runs ``c`` and ``d`` and how they compare.

    Example:
        >>> SecondPair(KeyDataComparison(), LayerComparison(), Dump(Path("c"))).layers.compared
        0
    """

    key_data: KeyDataComparison
    layers: LayerComparison
    c: Dump
    traces: TraceComparison = field(default_factory=TraceComparison)
    runs: tuple[str, str] = ("c", "d")
    """What the two are called."""


@dataclass(frozen=True)
class Conclusion:
    """The answer.

    Example:
        >>> Conclusion(None, Cause("none", None, "no difference was found")).reproduced is None
        True
    """

    first: First | None
    cause: Cause
    reproduced: bool | None = None
    """Whether the second pair differed too; None when it was not run."""
    sides_with: str | None = None
    notes: list[str] = field(default_factory=list)


def conclude(
    first: FirstKeyData | None,
    comparison: KeyDataComparison,
    a: Dump,
    b: Dump,
    second: SecondPair | None = None,
    answer: TraceAnswer | None = None,
) -> Conclusion:
    """Names the first difference and its cause.

    Args:
        first: The first difference of the key data.
        comparison: Key data of ``a`` against ``b``.
        a: Run a.
        b: Run b.
        second: The second pair; None when it was not run.
        answer: The first difference of the traces of ``a`` and ``b``. It counts, unless the key data differs at an
            earlier step.

    Raises:
        DumpError: A trace cannot be read any more.
    """
    if answer is not None and is_earliest(answer, first):
        return _by_traces(answer, first, a, b, second)
    if first is None:
        return Conclusion(None, Cause("none", None, tell("no difference was found")))
    if second is None:
        place, cause = cause_of_key_data(first, comparison, a, b, layers_equal=False)
        return Conclusion(place, _since_the_last_event(place, cause, answer))
    reruns = judge_reruns(first, second.key_data, second.layers, a, b, second.c)
    notes: list[str] = []
    if not reruns.usable:
        notes.append(
            tell("runs c and d differ before the first difference of a and b: their layers do not speak of it")
        )
    elif (located := cause_of_layers(first, second.layers, second.runs)) is not None:
        return Conclusion(*located, reproduced=True)
    seen_equal = reruns.reproduced and reruns.usable and second.layers.compared > 0 and not second.layers.problems
    place, cause = cause_of_key_data(first, comparison, a, b, layers_equal=seen_equal)
    cause = _since_the_last_event(place, cause, answer)
    if not reruns.reproduced:
        notes.append(_NOT_REPRODUCED)
    return Conclusion(place, cause, reruns.reproduced, reruns.sides_with, notes)


def _since_the_last_event(place: First, cause: Cause, answer: TraceAnswer | None) -> Cause:
    """Weights at a step's end that no traced event of the step shows: when they changed, and what they are."""
    if answer is None or place.tag != "weights" or answer.cause.kind not in ("weights", "buffers"):
        return cause
    if answer.cause.name != cause.name:
        return cause
    what = tell("the parameter") if answer.cause.kind == "weights" else tell("the buffer")
    why = tell(
        "every traced event of step {step} is the same, {what} at its end is not: it changed behind the last"
        " event that shows it: in its module's own forward, or by code of no module",
        step=place.step,
        what=what,
    )
    return replace(cause, kind=answer.cause.kind, explanation=why)


def _by_traces(
    answer: TraceAnswer, first: FirstKeyData | None, a: Dump, b: Dump, second: SecondPair | None
) -> Conclusion:
    """The answer of the traces, and whether the second pair differs there, too."""
    if second is None:
        return Conclusion(answer.first, answer.cause)
    again = locate_trace(second.traces)
    if second.layers.differences or (again is not None and again.first.place == answer.first.place):
        return Conclusion(answer.first, answer.cause, reproduced=True)
    side = None if first is None else judge_reruns(first, second.key_data, second.layers, a, b, second.c).sides_with
    note = _NOT_REPRODUCED if again is None else tell("not reproduced: runs c and d differ first at another place")
    return Conclusion(answer.first, answer.cause, reproduced=False, sides_with=side, notes=[note])
