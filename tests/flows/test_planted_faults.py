"""A planted fault in any stage that runs a model is located to its module: every algorithm, one rank and two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

MODULE = "model.layers.1.mlp.down_proj"
FORWARD = {
    "actor_generate_sequences": "actor",
    "actor_compute_log_prob": "actor",
    "reference_compute_log_prob": "reference",
    "critic_compute_values": "critic",
    "actor_update": "actor",
    "critic_update": "critic",
}

pytestmark = pytest.mark.slow


def _cases() -> list[tuple[str, str, str]]:
    cases = []
    for algorithm in ("grpo", "ppo", "dapo"):
        for stage, role in FORWARD.items():
            if role == "critic" and algorithm != "ppo":
                continue
            for kind in ("sum_order", "gradient_order") if stage.endswith("update") else ("sum_order",):
                cases.append((algorithm, stage, kind))
    return cases


def _fault(role: str, stage: str, kind: str, rank: str) -> tuple[str, str]:
    """The option that plants a fault, and the module's name in the answer."""
    module = MODULE.replace("model.", "backbone.", 1) if role == "critic" else MODULE
    fault = f"{{kind: {kind}, role: {role}, module: {module}, step: 1, stage: {stage}{rank}}}"
    return f"faults=[{fault}]", f"{role}.{module}"


def _assert_located(document: Any, stage: str, kind: str, name: str, ranks: list[int]) -> None:
    assert document["verdict"] == "divergent"
    first, cause = document["first"], document["cause"]
    assert (first["step"], first["stage"], first["rank"]) == (1, stage, ranks), (first, cause)
    expected = "module_forward" if kind == "sum_order" else "module_backward"
    assert (cause["kind"], cause["name"]) == (expected, name), (first, cause)


@pytest.mark.parametrize(("algorithm", "stage", "kind"), _cases())
def test_one_rank(check: Callable[..., Any], algorithm: str, stage: str, kind: str) -> None:
    option, name = _fault(FORWARD[stage], stage, kind, "")
    done = check(algorithm, "--set", "check.steps=3", "--set", option)
    assert done.status == 1, done.stderr
    _assert_located(done.document, stage, kind, name, [0])


@pytest.mark.parametrize(("algorithm", "stage", "kind"), _cases())
def test_two_ranks_of_which_one_has_it(check: Callable[..., Any], algorithm: str, stage: str, kind: str) -> None:
    option, name = _fault(FORWARD[stage], stage, kind, ", rank: 1")
    done = check(f"{algorithm}-2ranks", "--set", "check.steps=3", "--set", option)
    assert done.status == 1, done.stderr
    _assert_located(done.document, stage, kind, name, [1])
