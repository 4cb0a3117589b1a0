"""What a first difference in gradients, in the optimizer or in its update means."""

from __future__ import annotations

from probe.compare.trace_found import EventDifference, RankTrace
from probe.language import tell
from probe.locate.cause import Cause
from probe.locate.trace_context import last_items
from probe.locate.trace_items import and_more, changed_items
from probe.locate.trace_saved import saved_later
from probe.store.trace_events import TraceEvent

_SHOWN = 3
"""Most missing and extra names that an explanation lists."""


def cause_of_first_gradient(name: str, found: RankTrace) -> Cause:
    """A first gradient that differs: what is saved of the stage later tells the loss from its backward."""
    later = saved_later(found)
    same = ", ".join(later.same[:_SHOWN])
    if later.different:
        tag = later.different[0]
        but = (
            tell("{same} is the same, {tag} is not", same=same, tag=tag)
            if same
            else tell("{tag} is not the same", tag=tag)
        )
        why = tell(
            "the forward pass is the same, the first gradient is not; of what is saved later, {but}: code after the"
            " model that makes {tag}",
            but=but, tag=tag,
        )  # fmt: skip
        return Cause("loss", tag, why)
    if same:
        why = tell(
            "the forward pass is the same, the first gradient is not; {same}, saved later, is the same: the backward of"
            " the code after the model",
            same=same,
        )
        return Cause("loss", name, why)
    why = tell("the forward pass is the same, the first gradient is not: code after the model, or its backward")
    return Cause("loss", name, why)


def cause_of_parameter_gradient(event: TraceEvent, found: RankTrace) -> Cause:
    """A module whose backward gives several gradients may have the parameter's first."""
    module = event.label.rpartition(".")[0]
    others, passed_on = 0, False
    for later in found.following:
        same_place = (later.event.step, later.event.stage, later.event.micro_step) == (
            event.step,
            event.stage,
            event.micro_step,
        )
        if not same_place or (later.event.kind, later.event.name) == ("grad_output", module):
            break
        if (later.event.kind, later.event.name, later.status) == ("grad_input", module, "different"):
            return Cause(
                "module_backward", module, tell("same gradient arrived, different ones came out of its backward")
            )
        others += later.event.kind == "param_grad" and later.event.label.rpartition(".")[0] != module
        passed_on |= later.event.kind in ("grad_output", "grad_input")
    if others and not passed_on:
        why = tell(
            "this parameter's gradient and {others} of other modules differ, none that is passed on does: what they"
            " held before (zero_grad), accumulation, or their backward alike",
            others=others,
        )
        return Cause("gradient", event.label, why)
    why = tell("the gradients before it are the same, this parameter's is not: its module's backward, or accumulation")
    return Cause("gradient", event.label, why)


def _after_backward(difference: EventDifference, found: RankTrace, parameter: str) -> Cause:
    """Gradients that were the same when the backward ended: which run's optimizer got them as they were tells why."""
    changed = changed_items(difference)
    assert found.file is not None
    left = last_items(found.file, found.offset, "param_grad", parameter)
    after = [None if item is None else item[3] for item in changed[0][1:]] if changed else []
    if left is None or not changed:
        why = tell(
            "the gradients seen before are the same, what the optimizer got is not: a reduction, or code between"
        )
        return Cause("gradient", parameter, why)
    as_left = [run for run, digest in zip("ab", after, strict=True) if digest == left[0][3]]
    if not as_left and len(changed) > 1:
        why = tell(
            "the backward left the same gradients, then both runs changed them, and {count} are not the same: their"
            " norm, clipping or scaling",
            count=len(changed),
        )
        return Cause("optimizer", f"{difference.event.role}.grad_norm", why)
    run = "b" if as_left == ["a"] else "a"
    why = tell(
        "the backward left the same gradients; {only} something changed this one{more} before the optimizer",
        only=tell("in {run} alone", run=run) if as_left else tell("differently in both runs"),
        more=and_more(len(changed)),
    )
    return Cause("gradient", parameter, why)


def cause_of_optimizer(difference: EventDifference, found: RankTrace, parameter: str) -> Cause:
    """What a step of an optimizer that differs means: by which of its events does first."""
    event = difference.event
    role, _, what = event.label.partition(":")
    match what:
        case "gradients":
            return _after_backward(difference, found, parameter)
        case "grad_norm":
            why = tell("the gradients are the same, their norm is not: the reduction over them")
            return Cause("optimizer", f"{role}.grad_norm", why)
        case "clipped":
            return Cause("optimizer", parameter, tell("the gradients are the same before clipping, not after it"))
        case "state":
            why = tell(
                "the gradients are the same, the optimizer's state after them is not: this step, or what wrote to the"
                " state or its settings since the one before"
            )
            return Cause("optimizer", parameter, why)
        case "weights":
            why = tell("the gradients and the optimizer's state are the same, the weights after the update are not")
            return Cause("optimizer", parameter, why)
        case _:
            return Cause("optimizer", event.label, tell("the gradients before it are the same, the optimizer is not"))
