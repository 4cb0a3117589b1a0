"""How each kind of trainer is started: behind one Protocol, the integrated trainer and any command."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from probe.config import CommandTrainer, IntegratedTrainer, Profile, TrainerRunConfig, to_yaml
from probe.errors import TrainerError
from probe.launch.failures import first_failure, read_failures
from probe.launch.process import run_process
from probe.launch.torchrun import PREFIX, torchrun_command
from probe.store import layout
from probe.store.layers import msprobe_missing
from probe.store.writer import mark_incomplete
from probe.types import SWITCH_OF_STAGE, RunSpec

_output = logging.getLogger("firstdiff.trainer")
_PLACE_OF_A_PROCESS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""What a cluster's job may have set for Firstdiff's own process: the trainer is another."""


class Launcher(Protocol):
    """Starts one kind of trainer."""

    def cannot_dump_layers(self) -> str | None:
        """Why this trainer cannot dump layers here; None when it can, or when only trying will tell."""
        ...

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Runs the trainer to its end.

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

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Writes the run's own trainer file and starts the trainer on it. See ``Launcher``."""
        config_file = folder / "trainer.yaml"
        config_file.write_text(to_yaml(self._run_config(spec)), encoding="utf-8")
        command = [sys.executable, "-m", "probe.trainer", "--config", str(config_file)]
        _run(command, folder, spec, self._profile, cwd=folder, extra={})

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

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Starts the command with ``probe`` importable and the spec in its environment. See ``Launcher``."""
        program, *arguments = self._trainer.command
        command = [sys.executable if program == "python" else program, *arguments]
        _run(command, folder, spec, self._profile, cwd=Path(self._trainer.cwd), extra=self._trainer.env)


def launcher_for(profile: Profile) -> Launcher:
    """The launcher of a profile's trainer."""
    trainer = profile.trainer
    if isinstance(trainer, IntegratedTrainer):
        return IntegratedLauncher(profile, trainer)
    return CommandLauncher(profile, trainer)


def _run(
    command: list[str], folder: Path, spec: RunSpec, profile: Profile, *, cwd: Path, extra: dict[str, str]
) -> None:
    spec_file = folder / "spec.json"
    spec_file.write_text(spec.to_json(), encoding="utf-8")
    with _folder_with_only_probe() as path, tempfile.TemporaryDirectory(prefix="firstdiff-") as scratch:
        failures = Path(scratch, "failures.json")
        if profile.trainer.nproc_per_node is not None:
            name = f"{folder.parent.name}-{spec.run}"
            command = torchrun_command(profile.trainer, command, Path(scratch, "logs"), failures, name)
        python_path = os.pathsep.join(filter(None, [path, extra.get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
        env = {
            **{name: value for name, value in os.environ.items() if name not in _PLACE_OF_A_PROCESS},
            **profile.determinism.environment,
            **extra,
            "PYTHONPATH": python_path,
            "PYTHONUNBUFFERED": "1",
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": PREFIX,
            "FIRSTDIFF_SPEC": str(spec_file),
            "FIRSTDIFF_RUN": spec.run,
        }
        try:
            run_process(
                command,
                cwd=cwd,
                env=env,
                log_file=folder / "trainer.log",
                on_line=_output.info,
                time_limit=profile.trainer.time_limit,
                stall_seconds=profile.trainer.stall_seconds,
                signs_of_life=_growth_of(Path(spec.dump_path)),
                mark="FIRSTDIFF_SPEC",
            )
        except TrainerError as error:
            failed = first_failure(read_failures(failures))
            reason = str(error) if failed is None else failed.sentence
            status = error.exit_code_of_child if failed is None else failed.status
            mark_incomplete(Path(spec.dump_path), reason)
            raise TrainerError(f"run {spec.run}: {reason}", status, error.log_tail) from error
    if not _recorded(Path(spec.dump_path)):
        raise TrainerError(
            f"run {spec.run}: the trainer ended well but recorded nothing; does it call probe.Probe.from_env()?"
        )


def _recorded(dump: Path) -> bool:
    return dump.is_dir() and bool(layout.manifests(dump))


def _growth_of(dump: Path) -> Callable[[], int]:
    """Bytes in a dump's indexes: they grow with every record."""

    def size() -> int:
        return sum(file.stat().st_size for file in (dump / layout.INDEX).glob("*.jsonl"))

    return size


@contextmanager
def _folder_with_only_probe() -> Iterator[str]:
    """A folder for ``PYTHONPATH`` that makes ``probe`` importable and nothing else."""
    package = Path(__file__).resolve().parent.parent
    folder = tempfile.mkdtemp(prefix="firstdiff-")
    try:
        Path(folder, package.name).symlink_to(package, target_is_directory=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
