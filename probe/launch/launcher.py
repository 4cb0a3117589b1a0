"""How each kind of trainer is started: behind one Protocol, the integrated trainer and any command."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from probe.config import CommandTrainer, IntegratedTrainer, Profile, ScriptTrainer, TrainerRunConfig, to_yaml
from probe.errors import HangError, TrainerError
from probe.language import recall, tell
from probe.launch.failures import first_failure
from probe.launch.finished import note_finished
from probe.launch.hosts import run_on_all
from probe.launch.observed import forget, notes, problems, why_nothing
from probe.launch.running import Start, run_here
from probe.store import layout
from probe.store.layers import msprobe_missing
from probe.store.notes import keep_notes
from probe.store.writer import mark_incomplete
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
        _run(self._profile, self.start, folder, spec)

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
        _run_with_word(self._profile, self.start, folder, spec)

    def start(self, folder: Path, spec: RunSpec) -> Start:
        """The command, with ``probe`` importable and the spec in its environment. See ``Launcher``."""
        del folder, spec  # both are in the environment
        return Start(_command(self._trainer.command), Path(self._trainer.cwd), self._trainer.variables)


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
        _run_with_word(self._profile, self.start, folder, spec, partial(why_nothing, folder))

    def start(self, folder: Path, spec: RunSpec) -> Start:
        """The command. See ``Launcher``."""
        del folder, spec
        return Start(
            _command(self._trainer.command), Path(self._trainer.cwd), {**self._eager, **self._trainer.variables}
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
    return CommandLauncher(profile, trainer)


def _command(command: list[str]) -> list[str]:
    """A command with its program in place: beside our own interpreter where no search path has it."""
    program, *arguments = command
    if program == "python":
        program = sys.executable
    elif Path(program).name == program and shutil.which(program) is None:
        beside = Path(sys.executable).parent / program
        program = str(beside) if beside.is_file() else program
    return [program, *arguments]


def _no_probe() -> str:
    return "the trainer ended well but recorded nothing; does it call probe.Probe.from_env()?"


def _run_with_word(
    profile: Profile,
    start: Callable[[Path, RunSpec], Start],
    folder: Path,
    spec: RunSpec,
    why_nothing: Callable[[], str] = _no_probe,
) -> None:
    """Runs a trainer whose processes leave word of what was not recorded."""
    try:
        _run(profile, start, folder, spec, why_nothing)
    finally:
        if told := problems(folder):
            mark_incomplete(Path(spec.dump_path), "; ".join(told))
        forget(folder)


def _run(
    profile: Profile,
    start: Callable[[Path, RunSpec], Start],
    folder: Path,
    spec: RunSpec,
    why_nothing: Callable[[], str] = _no_probe,
) -> None:
    here = partial(run_here, profile, start)
    if profile.trainer.nnodes > 1:
        ended = run_on_all(profile.trainer, folder, spec, here)
    else:
        launch = f"{folder.parent.name}-{secrets.token_hex(4)}-{spec.run}"
        ended = here(folder, spec, launch, lambda: None)
    dump = Path(spec.dump_path)
    if ended.error is not None:
        failed = first_failure(ended.failures)
        reason = ended.error if failed is None else failed.sentence
        mark_incomplete(dump, reason)
        kind = HangError if ended.hung else TrainerError
        said = tell("run {run}: {why}", run=spec.run, why=recall(reason))
        raise kind(said, ended.status if failed is None else failed.status, ended.log_tail)
    found = layout.manifests(dump) if dump.is_dir() else {}
    if not found:
        raise TrainerError(tell("run {run}: {why}", run=spec.run, why=why_nothing()))
    started = (profile.trainer.nproc_per_node or 1) * profile.trainer.nnodes
    if started > 1 and len(found) != started:
        mark_incomplete(dump, f"{started} processes were started, {len(found)} recorded; each opens a Probe")
    keep_notes(dump, notes(folder))
    note_finished(folder, spec)
