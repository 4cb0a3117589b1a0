"""Profiles as models: what a check sets itself cannot be contradicted, and the schema is the models'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from probe.comparison import compare_dumps
from probe.config import Determinism, Fault, Profile, load_profile, profile_schema, to_yaml
from probe.config.loading import SHIPPED_PROFILES
from probe.errors import ConfigError, UsageError
from probe.types import ROLES_OF_STAGE, STAGES

OF_A_HOST = {"ascend-qwen2.5": r"trainer\.config\.model\.path", "mindspeed-rl": r"trainer\.repo"}
"""Profiles of hosts with weights, or a checkout, of their own: the key that names these."""
SHIPPED = sorted(SHIPPED_PROFILES.glob("*.yaml"))


def integrated(**config: Any) -> dict[str, Any]:
    return {"trainer": {"kind": "integrated", "config": config}}


@pytest.mark.parametrize("trainer", [{"kind": "integrated"}, {"kind": "command", "command": ["python", "train.py"]}])
def test_a_profile_needs_nothing_but_its_trainer(trainer: dict[str, Any]) -> None:
    profile = Profile.model_validate({"trainer": trainer})
    assert profile.record.key_data == "full"
    assert profile.check.steps is None


def test_a_profile_needs_a_trainer() -> None:
    with pytest.raises(ValidationError, match="trainer"):
        Profile.model_validate({})


@pytest.mark.parametrize(
    ("section", "words"),
    [({"msprobe": False}, "msprobe is false"), ({"dump_path": "./msprobe_dump"}, "dump_path")],
)
def test_what_a_check_sets_itself_cannot_be_contradicted(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Profile.model_validate(integrated(msprobe_config=section))


def test_a_profile_may_leave_msprobe_out_or_say_true() -> None:
    Profile.model_validate(integrated(msprobe_config={}))
    Profile.model_validate(integrated(msprobe_config={"msprobe": True, "reference_dump": True}))


def test_a_check_needs_integrated_mode() -> None:
    with pytest.raises(ValidationError, match="use_integrated_worker is false"):
        Profile.model_validate(integrated(rl_config={"use_integrated_worker": False}))


def test_only_the_integrated_trainer_plants_faults() -> None:
    fault = {"role": "actor", "module": "model.norm"}
    Profile.model_validate({**integrated(), "faults": [fault]})
    with pytest.raises(ValidationError, match="only the integrated trainer"):
        Profile.model_validate({"trainer": {"kind": "command", "command": ["x"]}, "faults": [fault]})


@pytest.mark.parametrize("stage", STAGES)
def test_a_fault_takes_every_stage_of_its_model(stage: str) -> None:
    for role in ("actor", "reference", "critic"):
        fault = {"role": role, "module": "model.norm", "stage": stage}
        if role in ROLES_OF_STAGE[stage]:
            assert Fault.model_validate(fault).stage == stage
        else:
            with pytest.raises(ValidationError, match=f"stage {stage} runs no {role}: this fault would never act"):
                Fault.model_validate(fault)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"step": 99}, r"faults\.0\.step: 99 is after the last step, \d+"),
        ({"rank": 7}, r"faults\.0\.rank: 7 is after the last rank, 0"),
        ({"role": "critic"}, r"faults\.0\.role: ray_grpo has no critic"),
        ({"role": "reference", "kind": "gradient_order"}, "the reference has no backward pass"),
        ({"stage": "actor_compute_log_prob", "kind": "gradient_order"}, "actor_compute_log_prob has no backward pass"),
    ],
)
def test_a_fault_that_would_never_act_is_refused(changes: dict[str, Any], problem: str) -> None:
    fault = {"role": "actor", "module": "model.norm", **changes}
    with pytest.raises(ValidationError, match=f"{problem}.*would never act"):
        Profile.model_validate({**integrated(), "faults": [fault]})


def test_a_fault_after_what_is_recorded_is_said() -> None:
    fault = {"role": "actor", "module": "model.norm", "step": 2}
    profile = Profile.model_validate({**integrated(), "faults": [fault], "check": {"steps": 2}})
    assert profile.remarks == ["faults.0.step is 2, the last step that is recorded 1: nobody sees it"]


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_is_finite(value: float) -> None:
    with pytest.raises(ValidationError, match="finite"):
        Profile.model_validate(integrated(actor_config={"lr": value}))


def test_determinism_becomes_the_documented_environment() -> None:
    assert Determinism(num_threads=2).environment == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "HCCL_DETERMINISTIC": "true",
        "LCCL_DETERMINISTIC": "1",
        "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
        "CLOSE_MATMUL_K_SHIFT": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
    }


def test_determinism_leaves_alone_what_is_null() -> None:
    keys = [key for key in Determinism.model_fields if key not in ("enforce", "deterministic_algorithms")]
    assert Determinism.model_validate(dict.fromkeys(keys)).environment == {}


def test_a_script_gets_only_the_variables_that_its_profile_names() -> None:
    trainer = {"kind": "script", "command": ["python", "train.py"], "cwd": "."}
    assert Profile.model_validate({"trainer": trainer}).determinism.environment == {}
    given = Profile.model_validate({"trainer": trainer, "determinism": {"python_hash_seed": 0}})
    assert given.determinism.environment == {"PYTHONHASHSEED": "0"}
    assert Profile.model_validate(given.model_dump()) == given
    enforced = Profile.model_validate({"trainer": trainer, "determinism": "enforce"})
    assert enforced.determinism.environment["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


def test_the_schema_file_is_not_stale() -> None:
    stored = json.loads((SHIPPED_PROFILES / "profile.schema.json").read_text(encoding="utf-8"))
    assert stored == profile_schema(), "run: make schema"


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_profiles_load_and_fit_the_schema(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=profile.schema.json\n")
    jsonschema.Draft202012Validator(profile_schema()).validate(yaml.safe_load(text))
    if (key := OF_A_HOST.get(file.stem)) is not None:
        with pytest.raises(ConfigError, match=rf"{key}: no such folder"):
            load_profile(file.stem)
    else:
        load_profile(file.stem)


@pytest.mark.parametrize(
    "profile",
    [
        {},
        {"trainer": {"kind": "other"}},
        {"trainer": {"kind": "verl", "look_back": 0}},
        {"trainer": {"kind": "verl"}, "determinism": "ensure"},
        {"trainer": {"kind": "command", "command": "python train.py"}},
        {"trainer": {"kind": "command", "command": []}},
        {**integrated(), "chek": {}},
        integrated(msprobe_config={"dump": True}),
        {**integrated(), "check": {"steps": 0}},
    ],
)
def test_the_schema_refuses_what_the_models_refuse(profile: dict[str, Any]) -> None:
    assert not jsonschema.Draft202012Validator(profile_schema()).is_valid(profile)
    with pytest.raises(ValidationError):
        Profile.model_validate(profile)


def test_the_schema_takes_a_configuration_as_a_path() -> None:
    profile = {"trainer": {"kind": "integrated", "config": "grpo.yaml"}}
    jsonschema.Draft202012Validator(profile_schema()).validate(profile)


def test_every_key_of_the_schema_is_described() -> None:
    schema = profile_schema()
    models = {"Profile": schema, **schema["$defs"]}

    def described(field: dict[str, Any]) -> bool:
        section = field.get("$ref", next((child.get("$ref") for child in field.get("anyOf", ())), ""))
        return "description" in field or "description" in schema["$defs"].get(section.removeprefix("#/$defs/"), {})

    def undescribed(name: str, model: dict[str, Any]) -> list[str]:
        return [f"{name}.{key}" for key, field in model.get("properties", {}).items() if not described(field)]

    assert [key for name, model in models.items() for key in undescribed(name, model)] == []


@pytest.mark.parametrize("keep", ["all", {}, {"divergent": 30}, {"divergent": 1, "identical": "digests"}])
def test_what_is_kept_reads_back_as_it_was_written(keep: Any, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    text = {"trainer": {"kind": "command", "command": ["x"]}, "check": {"keep": keep}}
    file.write_text(yaml.safe_dump(text))
    profile = load_profile(str(file))
    jsonschema.Draft202012Validator(profile_schema()).validate(text)
    file.write_text(to_yaml(profile))
    assert load_profile(str(file)) == profile
    assert profile.check.keep.divergent == (keep.get("divergent") if isinstance(keep, dict) else None)


def test_days_that_no_calendar_has_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text("trainer: {kind: command, command: [x]}\ncheck: {keep: {divergent: 999999999999}}\n")
    with pytest.raises(ConfigError, match=r"p\.yaml: check\.keep\.divergent: input should be less than or equal to"):
        load_profile(str(file))


@pytest.mark.parametrize(
    ("trainer", "key"),
    [
        (r'command: [python, "a\0b"]', "trainer.command"),
        (r'command: [python, "\ud800"]', "trainer.command"),
        (r"command: ['']", "trainer.command"),
        (r'command: [x], env: {"A=B": c}', "trainer.env"),
        (r'command: [x], env: {"": c}', "trainer.env"),
        (r'command: [x], env: {"A\0": c}', "trainer.env"),
        (r'command: [x], env: {"\udfff": c}', "trainer.env"),
        (r'command: [x], env: {A: "c\0d"}', "trainer.env.A"),
        (r'command: [x], env: {A: "\ud800"}', "trainer.env.A"),
        (r'command: [x], env: {A: {variable: "B=C"}}', "trainer.env.A"),
        (r'command: [x], env: {A: {variable: "\ud800"}}', "trainer.env.A"),
        (r'command: [x], cwd: "a\0b"', "trainer.cwd"),
        (r'command: [x], cwd: "\ud800"', "trainer.cwd"),
        (r'command: [x], secrets: ["\ud800"]', "trainer.secrets"),
        (r'command: [x], local_dump: "a\0b"', "trainer.local_dump"),
    ],
)
def test_what_no_process_can_be_given_is_refused_when_it_is_read(trainer: str, key: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(f"trainer: {{kind: command, {trainer}}}\n")
    with pytest.raises(ConfigError) as error:
        load_profile(str(file))
    sentence = str(error.value)
    assert sentence.startswith(f"{file}: trainer") and sentence.isprintable()
    assert key in sentence.replace("trainer: ", "trainer.")
    assert sentence.encode()


def test_links_in_a_circle_and_folders_that_may_not_be_read_are_wrong_paths(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("loop/p.yaml", "loop.yaml/p.yaml"):
        with pytest.raises(UsageError, match="p.yaml: "):
            load_profile(str(tmp_path / name))
    file = tmp_path / "p.yaml"
    file.write_text("trainer: {kind: command, command: [x], cwd: loop}\n")
    with pytest.raises(ConfigError, match=r"trainer\.cwd: no such folder"):
        load_profile(str(file))
    for path in ('"a\\0b"', '"\\ud800"', "loop"):
        file.write_text(f"trainer: {{kind: integrated, config: {{megatron_training: {{data_path: {path}}}}}}}\n")
        with pytest.raises(ConfigError, match=r"megatron_training\.data_path"):
            load_profile(str(file))
    with pytest.raises(UsageError, match="loop"):
        compare_dumps(tmp_path / "loop", tmp_path / "loop", tmp_path / "loop")


def test_a_check_does_not_go_on_from_what_its_first_run_saved(tmp_path: Path) -> None:
    (tmp_path / "ck/step3").mkdir(parents=True)
    training = {"load": "ck", "save": "ck", "save_interval": 1}
    profile = {"trainer": {"kind": "integrated", "config": {"megatron_training": training}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(profile))
    with pytest.raises(ConfigError, match="run b would go on from what run a saves"):
        load_profile(str(tmp_path / "mine.yaml"))
    assert load_profile(str(tmp_path / "mine.yaml"), ["trainer.config.megatron_training.load=ck/step3"])


def test_a_profile_of_nothing_but_a_trainer_records_traces(tmp_path):
    (tmp_path / "mine.yaml").write_text("trainer: {kind: command, command: [python, train.py]}\n")
    profile = load_profile(str(tmp_path / "mine.yaml"))
    assert (profile.record.trace, profile.record.key_data, profile.check.replay) == (True, "full", True)
    assert not load_profile(str(tmp_path / "mine.yaml"), ["record.trace=false"]).record.trace


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED_PROFILES.glob("*.yaml")))
def test_no_shipped_profile_turns_traces_off(name):
    assert "trace" not in yaml.safe_load((SHIPPED_PROFILES / f"{name}.yaml").read_text()).get("record", {})


def test_enforce_alone_is_a_determinism_section() -> None:
    profile = Profile.model_validate({"trainer": {"kind": "integrated"}, "determinism": "enforce"})
    assert profile.determinism == Determinism(enforce=True)
    with pytest.raises(ValidationError, match="must be enforce, or a mapping"):
        Profile.model_validate({"trainer": {"kind": "integrated"}, "determinism": "strict"})
