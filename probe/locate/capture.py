"""Which call of a module is captured, so that it can be run again alone."""

from __future__ import annotations

from probe.locate.trace import TraceAnswer
from probe.types import CaptureRequest


def capture_of_answer(answer: TraceAnswer) -> CaptureRequest | None:
    """The call of the module that the traces name; None where they name none.

    Args:
        answer: The first difference of the traces.
    """
    first, cause = answer.first, answer.cause
    if first.stage is None or cause.name is None or cause.kind not in ("module_forward", "module_backward", "gradient"):
        return None
    name, parameter = cause.name, None
    if cause.kind == "gradient":
        if first.event != "param_grad" or answer.difference.get("note"):
            return None  # what the ranks reduce is no module's
        name, _, parameter = name.rpartition(".")
    call = first.call if first.name == name else 0
    backward = cause.kind != "module_forward"
    return CaptureRequest(name, first.step, first.stage, answer.rank, first.micro_step, call, backward, parameter)
