"""Which call of a module is captured, so that it can be run again alone; and why none is."""

from __future__ import annotations

from probe.language import tell
from probe.locate.trace import TraceAnswer
from probe.types import CaptureRequest

_FORWARD = ("module_forward", "module_input")
"""``module_input``: the code that differs is the enclosing module's own, between its children."""
_WHY = {
    "weights": tell("the weights differ before the stage begins, and no module of it made them"),
    "buffers": tell("the buffers differ before the stage begins, and no module of it made them"),
    "rng": tell("a random state differs before any module runs"),
    "data": tell("code outside the models made the value that differs"),
    "sampling": tell("the token is drawn by code behind the model, which gave the same"),
    "rewards": tell("host code made the rewards, no module"),
    "advantages": tell("host code made the advantages, no module"),
    "loss": tell("the code behind the model is no module's"),
    "gradient": tell("the gradient is changed behind the backward, by a reduction over ranks or code of no module"),
    "optimizer": tell("an optimizer's step is no module's call"),
    "calls": tell("which calls there are is decided by the control flow around the modules, and not in one of them"),
    "none": tell("no module is named"),
}


def capture_of_answer(answer: TraceAnswer) -> CaptureRequest | None:
    """The call of the module that the traces name; None where they name none.

    Args:
        answer: The first difference of the traces.
    """
    first, cause = answer.first, answer.cause
    if first.stage is None or cause.name is None or cause.kind not in (*_FORWARD, "module_backward", "gradient"):
        return None
    name, parameter = cause.name, None
    if cause.kind == "gradient":
        if first.event != "param_grad" or answer.difference.get("note"):
            return None  # what the ranks reduce is no module's
        name, _, parameter = name.rpartition(".")
    backward = cause.kind not in _FORWARD
    return CaptureRequest(
        name, first.step, first.stage, answer.rank, first.micro_step, answer.call, backward, parameter
    )


def why_no_capture(answer: TraceAnswer | None, traced: bool) -> str:
    """Why no call of a module can be captured and run again alone: one sentence without its full stop.

    Args:
        answer: The first difference of the traces, where it counts.
        traced: Whether there are traces.
    """
    if not traced:
        return tell("there is no trace that names a call of a module (record.trace)")
    if answer is None:
        return tell("no traced event shows the first difference, so no call of a module is named")
    if answer.first.stage is None and answer.cause.kind not in _WHY:
        return tell("the module ran outside of any stage")
    return _WHY.get(answer.cause.kind, _WHY["none"])
