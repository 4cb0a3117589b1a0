"""The configuration files that a run of MindSpeed-RL is started on: derived from those of the checkout, beside none.

They lie in the check's folder, and hydra is given that as a further place to search (``--config-dir``): the checkout
stays as it is. ``<config>`` has the text of the user's file with some keys set; ``runtime_env.yaml``, where one is
needed, that of the checkout's, whose variables Ray gives its workers. It lies where all runs of a check find it: the
path is part of MindSpeed-RL's configuration, which must not differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from probe.config import MindSpeedRLTrainer, Profile, read_yaml, with_values
from probe.errors import ConfigError
from probe.launch.mindspeed_requirements import ENVIRONMENT, SWITCHES, VARIABLES, requirements
from probe.launch.requirements import Requirement, unmet, value_at
from probe.store.writer import write_atomic
from probe.types import SWITCH_OF_STAGE, RunSpec

CONFIGS = "configs"
"""Hydra's folder in the checkout, as its scripts name it."""
PREFIX = "firstdiff_"
"""Before the name of the user's file: hydra searches the checkout first."""
FOLDER = "hydra"
"""In a run's folder."""
RUNTIME_ENV = "runtime_env.yaml"
_RUNTIME_ENV_OF_THE_CHECKOUT = "configs/envs/runtime_env.yaml"
_RUNTIME_ENV_KEY = "rl_config.runtime_env_path"
SCRIPTS = {"ray_grpo": "cli/train_grpo.py", "ray_ppo": "cli/train_ppo.py", "ray_dapo": "cli/train_dapo.py"}


@dataclass(frozen=True, slots=True)
class Checkout:
    """A configuration in a checkout, as hydra reads it.

    Example:
        >>> Checkout(Path("MindSpeed-RL"), "train_grpo", {"megatron_training": {"stage": "ray_grpo"}}).file.name
        'train_grpo.yaml'
    """

    repo: Path
    config: str
    found: dict[str, Any]
    """What hydra composed, with the variables of the workers as the section ``environment``."""
    runtime_env: Path | None = None
    """The file with the variables that Ray gives the workers; None where the checkout has none."""
    runtime_variables: Mapping[str, str] = field(default_factory=dict)
    """What is in it."""

    @property
    def file(self) -> Path:
        """The user's file."""
        return self.repo / CONFIGS / f"{self.config}.yaml"

    @property
    def stage(self) -> Any:
        """Which algorithm is trained, as the configuration calls it."""
        return value_at(self.found, "megatron_training.stage")

    @property
    def iterations(self) -> int | None:
        """Training steps; None where the configuration does not say."""
        found = value_at(self.found, "megatron_training.train_iters")
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    @property
    def groups(self) -> dict[str, int]:
        """How many processes train the actor, and the critic; empty where the configuration does not say."""
        names = ("actor", "critic") if self.stage == "ray_ppo" else ("actor",)
        sizes = {name: value_at(self.found, f"rl_config.{name}_resource.num_npus") for name in names}
        if any(not isinstance(size, int) or size < 1 for size in sizes.values()):
            return {}
        return sizes


def script_of(trainer: MindSpeedRLTrainer, checkout: Checkout) -> Path:
    """The script that trains.

    Raises:
        ConfigError: There is none, or none that MindSpeed-RL's probe knows.
    """
    relative = trainer.script or SCRIPTS.get(str(checkout.stage))
    if relative is None:
        known = ", ".join(SCRIPTS)
        problem = f"is {checkout.stage}; a check knows the scripts of {known}, others are named by trainer.script"
        raise ConfigError(str(checkout.file), "megatron_training.stage", problem)
    script = checkout.repo / relative
    if not script.is_file():
        raise ConfigError("the profile", "trainer.script", f"no such file: {script}")
    return script


def read_runtime_env(repo: Path, found: Mapping[str, Any]) -> tuple[Path | None, dict[str, str]]:
    """The file whose variables Ray gives the workers, and those variables.

    Raises:
        ConfigError: It is no YAML mapping.
    """
    named = value_at(found, _RUNTIME_ENV_KEY)
    file = repo / str(named or _RUNTIME_ENV_OF_THE_CHECKOUT)
    if not file.is_file():
        return None, {}
    variables = read_yaml(file).get("env_vars")
    if not isinstance(variables, dict):
        return file, {}
    return file, {str(name): str(value) for name, value in variables.items()}


def lacking(checkout: Checkout, check: Path) -> list[Requirement]:
    """What keeps two runs of a configuration from being the same.

    Args:
        checkout: The configuration.
        check: The check's folder; checkpoints go there where they would overwrite what is loaded.
    """
    return unmet(checkout.found, requirements(checkout.found, str(check / "checkpoints")))


def settings(profile: Profile, trainer: MindSpeedRLTrainer, spec: RunSpec, held: list[Requirement]) -> dict[str, Any]:
    """The keys that a run's file differs in from the user's, but for those of the run's environment.

    Args:
        profile: The experiment.
        trainer: Its trainer.
        spec: What the run records.
        held: Requirements that are set, not refused.
    """
    values: dict[str, Any] = {
        requirement.key: requirement.value for requirement in held if not requirement.key.startswith(f"{ENVIRONMENT}.")
    }
    if profile.check.steps is not None:
        values["megatron_training.train_iters"] = profile.check.steps
    by_msprobe = trainer.depth == "dumps"
    dumped = {SWITCH_OF_STAGE[stage] for stage in spec.dump_stages} if by_msprobe else set()
    return {
        **values,
        "msprobe_config.msprobe": True,
        "msprobe_config.dump_path": spec.dump_path,
        "msprobe_config.key_data_dump": True,
        "msprobe_config.configurations_dump": by_msprobe and spec.configurations,
        **{f"msprobe_config.{switch}": switch in dumped for switch in SWITCHES},
        "msprobe_config.token_range_start": spec.token_range[0],
        "msprobe_config.token_range_end": spec.token_range[1],
        "msprobe_config.step_start": spec.step_start,
        "msprobe_config.step_end": spec.step_end,
    }


def variables_to_set(held: list[Requirement]) -> dict[str, str]:
    """The variables of the workers among requirements that are set."""
    names = {f"{ENVIRONMENT}.{name}": name for name in VARIABLES}
    return {names[one.key]: str(one.value) for one in held if one.key in names}


def write_runtime_env(checkout: Checkout, check: Path, variables: Mapping[str, str]) -> Path:
    """Writes the variables that Ray gives the workers of a run; returns the file.

    Args:
        checkout: The configuration.
        check: The check's folder.
        variables: What is set beside, and in place of, what the checkout's own file has.
    """
    text = "" if checkout.runtime_env is None else checkout.runtime_env.read_text(encoding="utf-8")
    goal = check / RUNTIME_ENV
    named = {f"env_vars.{name}": value for name, value in variables.items()}
    write_atomic(goal, with_values(str(checkout.runtime_env or goal), text, named).encode())
    return goal


def write_config(checkout: Checkout, folder: Path, values: Mapping[str, Any]) -> tuple[Path, str]:
    """Writes a run's own file; returns the folder for hydra to search, and the file's hydra name.

    Args:
        checkout: The configuration.
        folder: The run's folder.
        values: Keys that are set.

    Raises:
        ConfigError: The user's file cannot be read.
    """
    try:
        text = checkout.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(str(checkout.file), "", f"cannot be read ({error})") from error
    place = PurePosixPath(checkout.config)
    name = str(place.with_name(f"{PREFIX}{place.name}"))
    goal = folder / FOLDER / f"{name}.yaml"
    goal.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(goal, with_values(str(checkout.file), text, values).encode())
    return folder / FOLDER, name


def runtime_env_setting(file: Path) -> dict[str, str]:
    """The key of the configuration that names the file with the workers' variables."""
    return {_RUNTIME_ENV_KEY: str(file)}
