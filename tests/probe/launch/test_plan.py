"""What each of the four runs records."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.config import load_profile
from probe.launch import run_spec
from probe.types import STAGES, SWITCH_OF_STAGE, RunSpec, Target


@pytest.fixture
def profile(tmp_path):
    """Makes a profile of an integrated trainer; sections below ``trainer.config`` and beside ``trainer``."""

    def make(config: str = "{}", rest: str = ""):
        (tmp_path / "config.yaml").write_text(config)
        trainer = "trainer: {kind: integrated, config: config.yaml}"
        (tmp_path / "profile.yaml").write_text(f"{trainer}\n{rest}")
        return load_profile(str(tmp_path / "profile.yaml"))

    return make


def test_key_data_runs_dump_no_layers_and_train_to_the_end(profile):
    spec = run_spec(profile(), "a", Path("/a/dump"))
    assert (spec.run, spec.dump_path, spec.key_data) == ("a", "/a/dump", "full")
    assert (spec.dump_stages, spec.last_step, spec.configurations) == ((), None, True)


def test_check_steps_ends_a_run(profile):
    assert run_spec(profile(rest="check: {steps: 4}"), "a", Path("d")).last_step == 3


@pytest.mark.parametrize("stage", STAGES)
def test_layer_runs_turn_on_the_switch_of_the_stage_at_its_step_and_stop_there(stage, profile):
    spec = run_spec(profile(), "c", Path("d"), Target(step=2, stage=stage))
    assert set(spec.dump_stages) == {name for name in STAGES if SWITCH_OF_STAGE[name] == SWITCH_OF_STAGE[stage]}
    assert (spec.step_start, spec.step_end, spec.last_step) == (2, 2, 2)
    assert (spec.task, spec.level) == ("tensor", "L0")


def test_a_target_beyond_check_steps_is_still_reached(profile):
    target = Target(step=0, stage="actor_update")
    assert run_spec(profile(rest="check: {steps: 4}"), "c", Path("d"), target).last_step == 0


def test_generation_is_dumped_up_to_the_target_s_token(profile):
    spec = run_spec(profile(), "c", Path("d"), Target(step=1, stage="actor_generate_sequences", token=5))
    assert spec.token_range == (0, 5)


def test_switches_steps_and_tokens_that_the_profile_sets_are_kept(profile):
    switches = "reference_dump: true, actor_infer_dump: true"
    ranges = "step_start: 1, step_end: 3, token_range_start: 2, token_range_end: 4"
    spec = run_spec(profile(f"msprobe_config: {{{switches}, {ranges}}}"), "a", Path("d"))
    assert spec.dump_stages == ("actor_generate_sequences", "reference_compute_log_prob")
    assert (spec.step_start, spec.step_end, spec.token_range) == (1, 3, (2, 4))


def test_the_profile_s_switches_are_kept_beside_the_target_s(profile):
    spec = run_spec(profile("msprobe_config: {reference_dump: true}"), "c", Path("d"), Target(2, "actor_update"))
    assert spec.dump_stages == ("actor_compute_log_prob", "reference_compute_log_prob", "actor_update")


def test_what_is_recorded_and_how_comes_from_the_profile(profile):
    rest = "record: {key_data: digests, digest: device, on_error: continue}\ndeterminism: {num_threads: 3}"
    made = profile(rest=rest)
    spec = run_spec(made, "b", Path("d"))
    assert spec.digest == "device"
    assert (spec.key_data, spec.on_error, spec.determinism["num_threads"]) == ("digests", "continue", 3)
    assert spec.configuration == made.model_dump(mode="json")


@pytest.mark.parametrize("target", [None, Target(2, "actor_generate_sequences", 3)])
def test_a_spec_survives_its_way_to_the_trainer(target, profile):
    spec = run_spec(profile(), "c", Path("d"), target)
    assert RunSpec.from_json(spec.to_json()) == spec


def test_a_command_has_the_target_s_switches_alone(tmp_path):
    (tmp_path / "profile.yaml").write_text("trainer: {kind: command, command: [python, train.py]}")
    made = load_profile(str(tmp_path / "profile.yaml"))
    assert run_spec(made, "a", Path("d")).dump_stages == ()
    assert run_spec(made, "c", Path("d"), Target(1, "actor_update")).dump_stages == (
        "actor_compute_log_prob",
        "actor_update",
    )
