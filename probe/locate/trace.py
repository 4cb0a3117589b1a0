"""The first event in execution order that differs: in each rank, then across ranks; and what it means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.compare.trace_found import EventDifference, RankTrace, TraceComparison
from probe.locate.cause import Cause, First
from probe.locate.first import ALL_TOKENS, FirstKeyData
from probe.locate.trace_cause import GENERATION, cause_of_event
from probe.locate.trace_context import Context, context_of
from probe.locate.trace_items import changed_items
from probe.types import Target

_ITEMS_SHOWN = 5
_INSIDE = ("module_forward", "module_backward", "module_input", "gradient")
"""Causes that lie inside a model: its layers show more of them."""
Order = tuple[int, int, int, int]
"""Step, the stage's place in it, 1 for what comes between that stage and the next, position there."""


@dataclass(frozen=True)
class TraceAnswer:
    """The first difference of two traces.

    Example:
        >>> place = First(2, None, (0,), 0, "rng", "torch.cpu", None, 0)
        >>> TraceAnswer(place, Cause("rng", "torch.cpu", "another seed"), 0, 17).index
        17
    """

    first: First
    cause: Cause
    rank: int
    """The lowest of the ranks that have it: the following is of its trace."""
    index: int
    """Position of the event."""
    before: list[dict[str, Any]] = field(default_factory=list)
    """The events before it, oldest first."""
    after: list[dict[str, Any]] = field(default_factory=list)
    """The differing events after it, with how they differ."""
    hidden: list[dict[str, Any]] = field(default_factory=list)
    """Events that could not be observed in the same stage before it, and the range that each hides."""
    difference: dict[str, Any] = field(default_factory=dict)
    """The event itself, with how it differs."""
    call: int = 0
    """Which call of the module that the cause names it is."""

    def as_dict(self) -> dict[str, Any]:
        """What lies around the event, for ``verdict.json``."""
        return {"rank": self.rank, "event": self.difference, "before": self.before, "after": self.after,
                "hidden": self.hidden}  # fmt: skip


def locate_trace(comparison: TraceComparison) -> TraceAnswer | None:
    """Names the first difference of the traces of all ranks; None when they do not differ.

    Raises:
        DumpError: A trace cannot be read any more.
    """
    differing = [found for found in comparison.ranks.values() if found.first is not None]
    if not differing:
        return None
    step = min(_event(found).step for found in differing)
    early = [found for found in differing if _event(found).step == step]
    contexts = {found.rank: context_of(found) for found in early}
    stages = _stages(comparison, early, step)
    orders = {found.rank: _order(found, contexts[found.rank], stages) for found in early}
    winner = min(early, key=lambda found: (orders[found.rank], found.rank))
    event = _event(winner)
    sharing = [
        found
        for found in early
        if orders[found.rank] == orders[winner.rank]
        and (_event(found).key, _event(found).call) == (event.key, event.call)
    ]
    around = contexts[winner.rank]
    place = First(
        event.step,
        event.stage,
        tuple(found.rank for found in sharing),
        event.micro_step or 0,
        event.kind,
        event.label,
        event.name if event.kind == "data" else None,
        event.call or 0,
    )
    assert winner.first is not None and winner.first_index is not None
    cause = cause_of_event(winner, around, sharing)
    return TraceAnswer(
        place,
        cause,
        winner.rank,
        winner.first_index,
        before=[earlier.as_dict() for earlier in around.before],
        after=[_described(later) for later in winner.following],
        hidden=[
            {"from": hidden.index, "to": winner.first_index, "name": hidden.label, "note": hidden.note}
            for hidden in around.hidden
        ],
        difference=_described(winner.first),
        call=(event.call if cause.name == event.label else around.enclosing_call) or 0,
    )


def target_of_answer(answer: TraceAnswer, by_key_data: Target | None) -> Target | None:
    """Which layers to dump to look inside the cause; None where it lies in no model.

    Args:
        answer: The first difference of the traces.
        by_key_data: What the key data alone would have dumped: it knows the first token that differs.
    """
    place = answer.first
    if place.stage is None or answer.cause.kind not in _INSIDE:
        return None
    if by_key_data is not None and (by_key_data.step, by_key_data.stage) == (place.step, place.stage):
        return by_key_data
    return Target(place.step, place.stage, ALL_TOKENS if place.stage == GENERATION else 0)


def is_earliest(answer: TraceAnswer, first: FirstKeyData | None) -> bool:
    """Whether the traces show the first difference, rather than key data of an earlier step that they do not have."""
    return first is None or answer.first.step <= first.entry.step


def _event(found: RankTrace) -> Any:
    assert found.first is not None
    return found.first.event


def _stages(comparison: TraceComparison, early: Sequence[RankTrace], step: int) -> list[str]:
    """The stages of a step as the lowest rank enters them first; needed only where ranks differ in several."""
    file = comparison.ranks[min(comparison.ranks)].file
    if len(early) < 2 or file is None:
        return []
    return file.stages_of(step)


def _order(found: RankTrace, around: Context, stages: list[str]) -> Order:
    event = _event(found)
    stage = event.stage or around.stage_before
    if stage is None:
        place = -1
    else:
        place = stages.index(stage) if stage in stages else len(stages)
    return (event.step, place, int(event.stage is None), around.position)


def _described(difference: EventDifference) -> dict[str, Any]:
    changed = changed_items(difference)
    items = [
        {"path": path, **{run: item and {"dtype": item[1], "shape": list(item[2]), "digest": item[3]}
                          for run, item in (("a", one), ("b", two))}}
        for path, one, two in changed[:_ITEMS_SHOWN]
    ]  # fmt: skip
    return {**difference.event.as_dict(), "status": difference.status, "items": items, "items_in_all": len(changed)}
