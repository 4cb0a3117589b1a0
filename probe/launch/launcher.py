"""How each kind of trainer is started: behind one Protocol, the integrated trainer and any command."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Protocol

from probe.config import (
    CommandTrainer,
    IntegratedTrainer,
    MindSpeedRLTrainer,
    Profile,
    ScriptTrainer,
    TrainerRunConfig,
    VerlTrainer,
    to_yaml,
)
from probe.language import tell
from probe.launch.mindspeed_rl import MindSpeedRLLauncher
from probe.launch.observed import why_nothing
from probe.launch.running import Start
from probe.launch.verl import VerlLauncher
from probe.launch.whole import found_command, run_whole
from probe.store.layers import msprobe_missing
from probe.types import SWITCH_OF_STAGE, RunSpec

_NO_COMPILE = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")


class Launcher(Protocol):
    """Starts one kind of trainer."""

    def cannot_dump_layers(self) -> str | None:
        """Why this trainer cannot dump layers here; None when it can, or when only trying will tell."""
        ...

    def preflight(self) -> list[str]:
        """Looks at the trainer's own configuration before anything is started.

        Returns:
            What to say beside the verdict: what was set for the check, and what cannot be ensured.

        Raises:
            ConfigError: Two runs of it cannot be the same.
        """
        ...

    def start(self, folder: Path, spec: RunSpec) -> Start:
        """How the trainer is started on this host.

        Args:
            folder: The run's folder on this host.
            spec: What to record.
        """
        ...

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Runs the trainer to its end, on all hosts.

        Args:
            folder: The run's folder, new and empty; receives ``trainer.log`` and the dump.
            spec: What to record.

        Raises:
            TrainerError: The trainer failed; carries the end of its log.
        """
        ...


class IntegratedLauncher:
    """Starts ``python -m probe.trainer``.

    Args:
        profile: The experiment; its trainer is an integrated one.
        trainer: That trainer's section.
    """

    def __init__(self, profile: Profile, trainer: IntegratedTrainer) -> None:
        self._profile = profile
        self._trainer = trainer

    def cannot_dump_layers(self) -> str | None:
        """It runs in this environment: without msprobe here there is none there. See ``Launcher``."""
        return msprobe_missing()

    def preflight(self) -> list[str]:
        """Its configuration was checked when the profile was read. See ``Launcher``."""
        return []

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Runs the trainer to its end. See ``Launcher``."""
        run_whole(self._profile, self.start, folder, spec)

    def start(self, folder: Path, spec: RunSpec) -> Start:
        """Writes the run's own trainer file, on which the trainer is started. See ``Launcher``."""
        config_file = folder / "trainer.yaml"
        config_file.write_text(to_yaml(self._run_config(spec)), encoding="utf-8")
        return Start([sys.executable, "-m", "probe.trainer", "--config", str(config_file)], folder)

    def _run_config(self, spec: RunSpec) -> TrainerRunConfig:
        """The profile's trainer file with the ``msprobe_config`` that this run amounts to."""
        config = self._trainer.config
        section = config.msprobe_config.model_copy(
            update={
                "msprobe": True,
                "dump_path": spec.dump_path,
                "key_data_dump": spec.key_data != "off",
                "configurations_dump": spec.configurations,
                "step_start": spec.step_start,
                "step_end": spec.step_end,
                "token_range_start": spec.token_range[0],
                "token_range_end": spec.token_range[1],
                **{SWITCH_OF_STAGE[stage]: True for stage in spec.dump_stages},
            }
        )
        fields = {name: getattr(config, name) for name in type(config).model_fields}
        return TrainerRunConfig(
            **{**fields, "msprobe_config": section},
            determinism=self._profile.determinism,
            faults=self._profile.faults,
        )


class CommandLauncher:
    """Starts any script that uses ``probe.Probe``.

    Args:
        profile: The experiment; its trainer is a command.
        trainer: That trainer's section.
    """

    def __init__(self, profile: Profile, trainer: CommandTrainer) -> None:
        self._profile = profile
        self._trainer = trainer

    def cannot_dump_layers(self) -> str | None:
        """The command's environment is its own: only trying will tell. See ``Launcher``."""
        return None

    def preflight(self) -> list[str]:
        """Nothing is known of a command's own configuration. See ``Launcher``."""
        return []

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Runs the command to its end. See ``Launcher``."""
        run_whole(self._profile, self.start, folder, spec)

    def start(self, folder: Path, spec: RunSpec) -> Start:
        """The command, with ``probe`` importable and the spec in its environment. See ``Launcher``."""
        del folder, spec  # both are in the environment
        return Start(found_command(self._trainer.command), Path(self._trainer.cwd), self._trainer.variables)


class ScriptLauncher:
    """Starts any PyTorch script, which knows nothing of ``probe``.

    Args:
        profile: The experiment; its trainer is a script.
        trainer: That trainer's section.
    """

    def __init__(self, profile: Profile, trainer: ScriptTrainer) -> None:
        self._profile = profile
        self._trainer = trainer

    def cannot_dump_layers(self) -> str | None:
        """Msprobe knows the six stages of a PPO-like step; a script's are others. See ``Launcher``."""
        return tell(
            "msprobe dumps the stages of a PPO-like step, and a script has others; its traces have every module"
        )

    def preflight(self) -> list[str]:
        """Nothing is known of a script's own configuration. See ``Launcher``."""
        return []

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Runs the command to its end. See ``Launcher``."""
        run_whole(self._profile, self.start, folder, spec, partial(why_nothing, folder))

    def start(self, folder: Path, spec: RunSpec) -> Start:
        """The command. See ``Launcher``."""
        del folder, spec
        return Start(
            found_command(self._trainer.command), Path(self._trainer.cwd), {**self._eager, **self._trainer.variables}
        )

    @property
    def _eager(self) -> dict[str, str]:
        """Variables that turn ``torch.compile`` off."""
        return dict.fromkeys(_NO_COMPILE, "1") if self._trainer.compile == "eager" else {}


def launcher_for(profile: Profile) -> Launcher:
    """The launcher of a profile's trainer."""
    trainer = profile.trainer
    if isinstance(trainer, IntegratedTrainer):
        return IntegratedLauncher(profile, trainer)
    if isinstance(trainer, ScriptTrainer):
        return ScriptLauncher(profile, trainer)
    if isinstance(trainer, VerlTrainer):
        return VerlLauncher(profile, trainer)
    if isinstance(trainer, MindSpeedRLTrainer):
        return MindSpeedRLLauncher(profile, trainer)
    return CommandLauncher(profile, trainer)
