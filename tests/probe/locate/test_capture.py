"""Which call is captured for which answer of the traces."""

from __future__ import annotations

from typing import Any

import pytest

from probe.locate import Cause, First, TraceAnswer, capture_of_answer, why_no_capture
from probe.types import CaptureRequest, RunSpec


def answer(event: str, name: str, kind: str, module: str, call: int = 0, **difference: Any) -> TraceAnswer:
    first = First(2, "actor_update", (1,), 3, event, name, None, 9)
    return TraceAnswer(first, Cause(kind, module, ""), 1, 7, difference=difference, call=call)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (answer("forward_output", "actor.a", "module_forward", "actor.a", 4), ("actor.a", 4, False, None)),
        (answer("grad_input", "actor.a", "module_backward", "actor.a", 4), ("actor.a", 4, True, None)),
        (answer("grad_output", "actor.a.b", "module_backward", "actor.a", 4), ("actor.a", 4, True, None)),
        (answer("forward_input", "actor.a.b", "module_input", "actor.a", 2), ("actor.a", 2, False, None)),
        (answer("param_grad", "actor.a.weight", "gradient", "actor.a.weight"), ("actor.a", 0, True, "weight")),
    ],
)
def test_what_is_captured(given, expected):
    made = capture_of_answer(given)
    name, call, backward, parameter = expected
    assert made == CaptureRequest(name, 2, "actor_update", 1, 3, call, backward, parameter)
    spec = RunSpec(run="c", dump_path="c", capture=made)
    assert RunSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    "given",
    [
        answer("weights", "actor", "weights", "actor.a.weight"),
        answer("optimizer", "actor:gradients", "gradient", "actor.a.weight"),
        answer("param_grad", "actor.a.weight", "gradient", "actor.a.weight", note="reduced"),
    ],
)
def test_what_is_no_modules_is_not(given):
    assert capture_of_answer(given) is None
    assert given.cause.kind in ("weights", "gradient")
    assert why_no_capture(given, traced=True).partition(" ")[2].startswith(("weights differ", "gradient is changed"))
    assert "record.trace" in why_no_capture(None, traced=False)
