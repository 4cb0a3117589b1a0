"""Starting MindSpeed-RL: what is refused, what is derived, and one run of a checkout's stand-in."""

from __future__ import annotations

import difflib
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.config import MindSpeedRLTrainer, load_profile
from probe.errors import ConfigError, TrainerError
from probe.launch import dump_folder, is_finished, launcher_for, run_spec
from probe.launch.hydra_compose import compose
from probe.launch.launcher import Launcher
from probe.launch.mindspeed_config import Checkout as Configuration
from probe.launch.mindspeed_requirements import requirements
from probe.launch.requirements import refuse, unmet
from probe.store.reader import read_dump
from probe.types import RunSpec, Target

STAND_IN = Path(__file__).resolve().parents[2] / "mindspeed_stand_in"
OPEN = (
    "megatron_training.seed",
    "megatron_training.npu_deterministic",
    "rl_config.guarantee_order",
    "generate_config.sampling_config.seed",
    "actor_config.save",
)
"""Keys that the checkout's own configuration leaves open."""


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repo = folder / "checkout"
        shutil.copytree(STAND_IN, self.repo, ignore=shutil.ignore_patterns("__pycache__"))

    def launcher(self, config: str, *overrides: str) -> Launcher:
        return launcher_for(self.profile(config, *overrides))

    def profile(self, config: str, *overrides: str) -> Any:
        file = self.folder / "profile.yaml"
        file.write_text(f"trainer: {{kind: mindspeed_rl, repo: checkout, config: {config}}}\n")
        return load_profile(str(file), ["trainer.env.PYTHONDONTWRITEBYTECODE='1'", *overrides])

    def change(self, config: str, old: str, new: str) -> None:
        file = self.repo / f"configs/{config}.yaml"
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    def started(self, config: str, *overrides: str, target: Target | None = None) -> tuple[Any, str, RunSpec]:
        """How a run is started, and its own configuration file."""
        profile = self.profile(config, *overrides)
        dump = dump_folder(self.folder / "check", "a" if target is None else "c")
        dump.parent.mkdir(parents=True, exist_ok=True)
        spec = run_spec(profile, dump.parent.name, dump, target)
        start = launcher_for(profile).start(dump.parent, spec)
        return start, (dump.parent / f"hydra/firstdiff_{config}.yaml").read_text(), spec

    @property
    def digest(self) -> str:
        files = sorted(path for path in self.repo.rglob("*") if path.is_file())
        return hashlib.sha256(b"".join(str(p).encode() + p.read_bytes() for p in files)).hexdigest()


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


# ---- before anything is started ----


def test_a_configuration_as_shipped_is_refused_with_each_key_and_what_it_must_be(
    checkout: Checkout,
) -> None:
    with pytest.raises(ConfigError) as caught:
        checkout.launcher("train_grpo").preflight()
    said = str(caught.value)
    assert said.startswith(f"{checkout.repo}/configs/train_grpo.yaml: megatron_training.seed: is not set, must be a")
    assert "megatron_training.npu_deterministic (not set, must be true)" in said
    assert "rl_config.guarantee_order (false, must be true)" in said
    assert all(key in said for key in OPEN)
    assert "determinism: enforce" in said


def test_what_is_enforced_is_said(checkout: Checkout) -> None:
    said = checkout.launcher("train_grpo", "determinism=enforce").preflight()
    assert [line.split()[1] for line in said if "is set to" in line] == list(OPEN)
    assert "train_grpo: rl_config.guarantee_order is set to true (determinism: enforce)" in " ".join(said)


def test_a_deterministic_configuration_passes(checkout: Checkout) -> None:
    said = checkout.launcher("deterministic_grpo", "check.steps=2").preflight()
    assert said[0] == "deterministic_grpo: megatron_training.train_iters is 2 (check.steps)"
    assert not any("float32" in line for line in said)
    assert any("float32" in line for line in checkout.launcher("deterministic_grpo", "trainer.depth=dumps").preflight())


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rl_config.guarantee_order", False, "is false, must be true"),
        ("rl_config.filter_groups_enable", True, "is true, must be false"),
        ("rl_config.partial_rollout_max_split", 2, "is 2, must be 1"),
        ("rl_config.use_integrated_worker", False, "is false, must be true"),
        ("rl_config.use_integrated_worker", None, None),
        ("megatron_training.npu_deterministic", None, "is not set, must be true"),
        ("megatron_training.full_shuffle_instruction_dataset", True, "is true, must be false"),
        ("megatron_training.seed", None, None),  # one of a seed and no_shuffle is enough
        ("megatron_training.no_shuffle", False, None),
        ("generate_config.sampling_config.seed", None, "is not set, must be a number"),
        ("generate_config.sampling_config.seed", True, "is true, must be a number"),
        ("actor_config.save", "./ckpt", "is './ckpt', must be another folder than ./ckpt"),
        ("actor_config.load", None, None),
        ("environment.LCCL_DETERMINISTIC", "0", "is '0', must be 1"),
        ("environment.ATB_MATMUL_SHUFFLE_K_ENABLE", None, "is not set, must be 0"),
    ],
)
def test_each_requirement(key: str, value: Any, said: str | None) -> None:
    environment = {"HCCL_DETERMINISTIC": "True", "LCCL_DETERMINISTIC": "1", "CLOSE_MATMUL_K_SHIFT": "1",
                   "ATB_MATMUL_SHUFFLE_K_ENABLE": "0"}  # fmt: skip
    own = yaml.safe_load((STAND_IN / "configs/deterministic_grpo.yaml").read_text())
    configuration = {**own, "environment": environment}
    assert unmet(configuration, requirements(configuration, "elsewhere")) == []
    *sections, last = key.split(".")
    place = configuration
    for section in sections:
        place = place[section]
    place[last] = value
    lacking = unmet(configuration, requirements(configuration, "elsewhere"))
    assert [one.key for one in lacking] == ([] if said is None else [key])
    if said is not None:
        with pytest.raises(ConfigError) as caught:
            refuse("x.yaml", configuration, lacking)
        assert f"{key}: {said}" in str(caught.value)
        place[last] = lacking[0].value
        assert unmet(configuration, requirements(configuration, "elsewhere")) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("stage: ray_grpo", "stage: ray_dpo", "megatron_training.stage: is ray_dpo"),
        ("- tiny", "- huge", "hydra does not take it"),
        (
            "    seed: 11",
            "    seed: ${oc.env:NO_SUCH_VARIABLE}",
            "sampling_config.seed: is '${oc.env:NO_SUCH_VARIABLE}'",
        ),
    ],
)
def test_what_hydra_makes_of_a_file_is_looked_at(checkout: Checkout, old: str, new: str, said: str) -> None:
    checkout.change("deterministic_grpo", old, new)
    with pytest.raises(ConfigError) as caught:
        checkout.launcher("deterministic_grpo").preflight()
    assert said in str(caught.value)


def test_what_a_default_or_an_override_says_counts(checkout: Checkout) -> None:
    overrides = 'trainer.overrides=["rl_config.guarantee_order=false"]'
    with pytest.raises(ConfigError, match="rl_config.guarantee_order: is false"):
        checkout.launcher("deterministic_grpo", overrides).preflight()


@pytest.mark.parametrize("where", ["profile", "runtime_env"])
def test_variables_of_the_workers(checkout: Checkout, where: str) -> None:
    """Those of the repository's ``runtime_env.yaml`` override what the profile asks for."""
    overrides = []
    if where == "profile":
        overrides = ["determinism.hccl_deterministic=null"]
    else:
        file = checkout.repo / "configs/envs/runtime_env.yaml"
        file.write_text(f"{file.read_text()}  HCCL_DETERMINISTIC: 'false'\n")
    with pytest.raises(ConfigError, match="environment.HCCL_DETERMINISTIC: is .*, must be true"):
        checkout.launcher("deterministic_grpo", *overrides).preflight()
    start, text, _ = checkout.started("deterministic_grpo", *overrides, "determinism.enforce=true")
    if where == "profile":
        assert start.env["HCCL_DETERMINISTIC"] == "true"
        assert "runtime_env_path" not in text
        return
    derived = Path(yaml.safe_load(text)["rl_config"]["runtime_env_path"])
    assert yaml.safe_load(derived.read_text())["env_vars"]["HCCL_DETERMINISTIC"] == "true"
    assert set(file.read_text().splitlines()) - set(derived.read_text().splitlines()) == {
        "  HCCL_DETERMINISTIC: 'false'"
    }


def test_what_is_not_there_is_named(checkout: Checkout) -> None:
    with pytest.raises(ConfigError, match="trainer.config.*no nope.yaml in .*deterministic_grpo, train_grpo"):
        checkout.launcher("nope").preflight()
    with pytest.raises(ConfigError, match=r"trainer.script.*no such file.*cli/train_x\.py"):
        checkout.launcher("deterministic_grpo", "trainer.script=cli/train_x.py").preflight()
    with pytest.raises(ConfigError, match="trainer.python.*/no/python cannot be started"):
        checkout.launcher("deterministic_grpo", "trainer.python=/no/python").preflight()
    bare = checkout.folder / "python"
    bare.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'hydra'\" >&2\nexit 1\n")
    bare.chmod(0o755)
    with pytest.raises(ConfigError, match="has no hydra"):
        checkout.launcher("deterministic_grpo", f"trainer.python={bare}").preflight()


# ---- what a run is started on ----


def test_the_derived_file_differs_in_msprobe_config_alone(checkout: Checkout) -> None:
    before = checkout.digest
    start, text, spec = checkout.started("deterministic_grpo")
    own = (checkout.repo / "configs/deterministic_grpo.yaml").read_text()
    changed = [line for line in difflib.ndiff(own.splitlines(), text.splitlines()) if line[0] in "+-"]
    keys = {line[1:].split(":")[0].strip() for line in changed}
    section = yaml.safe_load(text)["msprobe_config"]
    assert keys == set(section)
    switches = ("actor_infer_dump", "actor_train_dump", "reference_dump", "critic_train_dump")
    numbers = ("token_range_start", "token_range_end", "step_start", "step_end")
    assert section == {
        **dict.fromkeys(switches, False),
        **dict.fromkeys(numbers, 0),
        "msprobe": True,
        "key_data_dump": True,
        "configurations_dump": False,
        "dump_path": spec.dump_path,
    }
    assert spec.dump_path.startswith(str(checkout.folder / "check/a/"))
    assert "# of a run by hand" in text
    assert start.command[2:6] == ["--config-dir", str(checkout.folder / "check/a/hydra"), "--config-name",
                                  "firstdiff_deterministic_grpo"]  # fmt: skip
    assert (start.cwd, start.adapter, start.env["RAY_ADDRESS"]) == (checkout.repo, "mindspeed_rl", "local")
    assert checkout.digest == before


def test_of_the_second_pair_it_dumps_the_layers_of_the_stage(checkout: Checkout) -> None:
    target = Target(2, "actor_generate_sequences", token=3)
    start, text, _ = checkout.started("deterministic_grpo", "trainer.depth=dumps", target=target)
    section = yaml.safe_load(text)["msprobe_config"]
    assert section["actor_infer_dump"] is True
    assert [section[key] for key in ("actor_train_dump", "reference_dump", "critic_train_dump")] == [False] * 3
    assert [section[key] for key in ("step_start", "step_end", "token_range_start", "token_range_end")] == [2, 2, 0, 3]
    assert start.adapter is None


def test_hydra_makes_of_it_what_was_enforced_whatever_overrides_say(checkout: Checkout) -> None:
    given = 'trainer.overrides=["rl_config.guarantee_order=false", "actor_config.lr=0.5"]'
    start, text, _ = checkout.started("train_grpo", "determinism=enforce", given)
    assert "stage: ray_grpo        # what is trained" in text
    overrides = start.command[6:]
    assert overrides[:2] == ["rl_config.guarantee_order=false", "actor_config.lr=0.5"]
    folder = checkout.folder / "check/a/hydra"
    search = f"hydra.searchpath=[file://{checkout.repo}/configs]"
    found = compose(start.command[0], folder, "firstdiff_train_grpo", [*overrides, search], {})
    assert found["rl_config"]["guarantee_order"] is True
    assert (found["actor_config"]["lr"], found["megatron_training"]["seed"]) == (0.5, 1234)
    assert found["actor_config"]["save"] == str(checkout.folder / "check/checkpoints/actor")
    assert found["model"]["tiny"]["hidden_size"] == 32  # a default of the checkout


def test_on_a_running_cluster_the_workers_get_their_variables_from_ray(checkout: Checkout) -> None:
    overrides = ["trainer.ray_address=auto", "trainer.env.MY_TOKEN=hidden", "trainer.env.MINE=seen"]
    start, text, spec = checkout.started("deterministic_grpo", *overrides)
    file = Path(yaml.safe_load(text)["rl_config"]["runtime_env_path"])
    variables = yaml.safe_load(file.read_text())["env_vars"]
    assert file == checkout.folder / "check/runtime_env.yaml"  # the same for all runs
    assert variables["FIRSTDIFF_SPEC"] == str(Path(spec.dump_path).parent / "spec.json")
    assert (variables["FIRSTDIFF_TRAINER"], variables["MINE"]) == ("mindspeed_rl", "seen")
    assert (variables["HCCL_DETERMINISTIC"], variables["HCCL_BUFFSIZE"]) == ("true", "256")
    assert "hidden" not in file.read_text()
    first = Path(variables["PYTHONPATH"].split(":")[0])
    assert (first / "sitecustomize.py").is_file()
    assert start.env["RAY_ADDRESS"] == "auto"


@pytest.mark.parametrize(
    ("stage", "resources", "groups"),
    [
        ("ray_grpo", {"actor": 8}, {"actor": 8}),
        ("ray_dapo", {"actor": 8, "critic": 4}, {"actor": 8}),
        ("ray_ppo", {"actor": 8, "critic": 4}, {"actor": 8, "critic": 4}),
        ("ray_ppo", {"actor": 8}, {}),  # nobody knows
        ("ray_grpo", {"actor": None}, {}),
    ],
)
def test_the_groups_of_workers_are_those_of_the_configuration(
    stage: str, resources: dict[str, Any], groups: dict[str, int]
) -> None:
    section = {f"{name}_resource": {"num_npus": size} for name, size in resources.items()}
    found = {"megatron_training": {"stage": stage, "train_iters": 5}, "rl_config": section}
    known = Configuration(Path("repo"), "x", found)
    assert (known.groups, known.iterations) == (groups, 5)


# ---- one run ----


def test_a_run_at_trace_depth_records_every_step_and_leaves_the_checkout_as_it_was(checkout: Checkout) -> None:
    before = checkout.digest
    profile = checkout.profile("deterministic_grpo", "check.steps=1", "determinism.num_threads=1")
    dump = dump_folder(checkout.folder / "check", "a")
    dump.parent.mkdir(parents=True)
    spec = run_spec(profile, "a", dump)
    launcher_for(profile).run(dump.parent, spec)
    found = read_dump(dump)
    assert (found.complete, found.steps_finished, found.problems) == (True, 1, [])
    assert is_finished(dump.parent, spec)
    tags = {record.tag for record in found.records[0]}
    assert {"prompts", "responses", "ref_log_prob", "old_log_prob", "log_prob", "loss", "weights"} <= tags
    events = [json.loads(line) for line in (dump / "trace/rank0.jsonl").read_text().splitlines()]
    stages = [event["stage"] for event in events if event["kind"] == "stage_start"]
    assert stages == [
        "actor_generate_sequences",
        "reference_compute_log_prob",
        "actor_compute_log_prob",
        "actor_update",
    ]
    assert checkout.digest == before


@pytest.mark.slow
def test_a_run_that_fails_or_records_nothing_says_why(checkout: Checkout) -> None:
    worker = checkout.repo / "mindspeed_rl/workers/integrated_worker.py"
    profile = checkout.profile("deterministic_grpo", "trainer.depth=dumps", "check.steps=2")
    spec = run_spec(profile, "a", dump_folder(checkout.folder / "check", "a"))
    folder = Path(spec.dump_path).parent
    folder.mkdir(parents=True)
    whole = worker.read_text()
    worker.write_text(whole.replace("self.iteration += 1", "self.iteration += 1\n        raise SystemExit(3)"))
    with pytest.raises(TrainerError, match="exit status 3"):
        launcher_for(profile).run(folder, spec)
    left = read_dump(Path(spec.dump_path))
    assert (left.complete, left.steps_finished) == (False, 1)
    assert "saved nothing in step 1" in left.problems[0]
    shutil.rmtree(folder)
    folder.mkdir()
    worker.write_text(whole.replace("MsProbe.config_init", "str"))
    script = checkout.repo / "cli/train_grpo.py"
    script.write_text(script.read_text().replace("MsProbe.config_init", "str"))
    with pytest.raises(TrainerError, match="its class MsProbe saved no key data"):
        launcher_for(profile).run(folder, spec)


def test_no_mention_in_the_schema_is_forgotten() -> None:
    schema = json.loads((STAND_IN.parent.parent / "profiles/profile.schema.json").read_text())
    assert set(schema["$defs"]["MindSpeedRLTrainer"]["properties"]) >= set(MindSpeedRLTrainer.model_fields) - {"cwd"}
