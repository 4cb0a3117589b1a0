"""``firstdiff check`` with the ``verl`` trainer: a stand-in for verl on real hydra, msprobe and Ray."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STAND_IN = Path(__file__).resolve().parents[1] / "verl_stand_in"
pytestmark = pytest.mark.slow


@pytest.fixture
def check_verl(firstdiff: Callable[..., Any], prefect_api: str, tmp_path: Path) -> Callable[..., Any]:
    """Checks the stand-in, in an empty folder."""

    def check(fault: str = "", look_back: int = 1, ray: bool = False) -> Any:
        env = {"STAND_IN_FAULT": fault, **({"STAND_IN_RAY": "1", "RAY_USAGE_STATS_ENABLED": "0"} if ray else {})}
        trainer = {"kind": "verl", "look_back": look_back, "env": env}
        profile = {"trainer": trainer, "check": {"steps": 4}, "determinism": "enforce"}
        (tmp_path / "verl.yaml").write_text(json.dumps(profile))
        out = tmp_path / "out"
        return firstdiff("check", "verl.yaml", "--json", "--out", str(out), cwd=tmp_path, PREFECT_API_URL=prefect_api,
                         PYTHONPATH=f"{STAND_IN}:{Path(__file__).resolve().parents[2]}")  # fmt: skip

    return check


@pytest.mark.parametrize("ray", [False, True])
def test_equal_trainings_are_identical_and_what_is_not_enforced_is_said(
    check_verl: Callable[..., Any], ray: bool
) -> None:
    done = check_verl(ray=ray)
    assert done.document["verdict"] == "identical", done.stderr
    assert done.document["certainty"]["level"] == "exact"
    assert done.document["cost"]["trainer_steps"] == 8
    notes = "\n".join(done.document["notes"])
    assert "actor_rollout_ref.rollout.full_determinism=true is added (determinism: enforce)" in notes
    assert "warn_only=True" in notes
    assert "the layers of step 4, the last one" in notes


def test_a_module_that_differs_two_steps_before_the_samples_is_named(check_verl: Callable[..., Any]) -> None:
    done = check_verl("ref", look_back=3)
    assert (done.status, done.document["verdict"]) == (1, "divergent"), done.stderr
    first = done.document["first"]
    assert (first["step"], first["stage"], first["rank"]) == (2, "reference_compute_log_prob", [0])
    assert (first["name"], done.document["cause"]["kind"]) == ("reference.layers.1.down", "module_forward")
    assert done.document["layers"]["reproduced"] is True
    assert done.document["certainty"]["level"] == "exact"


def test_weights_that_differ_before_what_was_dumped_say_how_to_look_further_back(
    check_verl: Callable[..., Any],
) -> None:
    done = check_verl("weights")
    assert (done.document["key_data"]["different"], done.document["verdict"]) == (0, "divergent"), done.stderr
    cause, first = done.document["cause"], done.document["first"]
    assert (cause["kind"], cause["name"], first["step"]) == ("weights", "actor.layers.0.up.weight", 3)
    assert done.document["layers"]["reproduced"] is True
    assert any("trainer.look_back=2 or more" in note for note in done.document["notes"])


def test_a_module_of_the_update_is_named(check_verl: Callable[..., Any]) -> None:
    done = check_verl("actor", look_back=3)
    first = done.document["first"]
    assert (first["step"], first["stage"], first["name"]) == (2, "actor_update", "actor.layers.1.down"), done.stderr


def test_data_in_another_order_is_data(check_verl: Callable[..., Any]) -> None:
    done = check_verl("order")
    assert (done.status, done.document["cause"]["kind"]) == (1, "data"), done.stderr
    assert (done.document["first"]["step"], done.document["first"]["tag"]) == (1, "prompts")


def test_a_rollout_that_draws_otherwise_from_the_start_is_said_to_do_so(check_verl: Callable[..., Any]) -> None:
    done = check_verl("rollout")
    assert (done.status, done.document["first"]["tag"], done.document["first"]["step"]) == (1, "responses", 1)
    notes = "\n".join(done.document["notes"])
    assert "no layers were compared: the samples of step 1 differ before anything was trained" in notes
    assert "responses of sample 0: from character" in notes
