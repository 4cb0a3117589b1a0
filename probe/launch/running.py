"""Running a trainer on this host: its environment, torchrun where it has several processes, and what came of it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from probe.adapters.bootstrap import TRAINER
from probe.config import Profile
from probe.errors import DumpError, HangError, TrainerError
from probe.language import join, tell
from probe.launch.devices import devices_in_use
from probe.launch.failures import Failure, read_failures
from probe.launch.gather import gather
from probe.launch.observed import await_word, offered
from probe.launch.process import run_process
from probe.launch.torchrun import PREFIX, torchrun_command
from probe.masking import Masker, secret_values
from probe.store import layout
from probe.store.manifests import read_manifest
from probe.types import STAGES, RunSpec

_output = logging.getLogger("firstdiff.trainer")
MARK = "FIRSTDIFF_SPEC"
"""Variable by which a trainer's processes are known: its value is the path of the run's ``spec.json``."""
_PLACE_OF_A_PROCESS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
"""What a cluster's job may have set for Firstdiff's own process: the trainer is another."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a trainer is started.

    Example:
        >>> Start(["python", "train.py"], Path(".")).env
        {}
    """

    command: list[str]
    """What each process runs."""
    cwd: Path
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the trainer's own."""
    adapter: str | None = None
    """The trainer whose adapter observes its Python processes; None observes those of a script alone."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of a trainer on one host.

    Example:
        >>> Ended().error is None
        True
    """

    error: str | None = None
    """Why the run is no whole one, in one sentence; None when it is."""
    status: int | None = None
    """Exit status of the process that failed."""
    log_tail: str = ""
    failures: list[Failure] = field(default_factory=list)
    """Ranks of this host that failed."""
    told: bool = False
    """Whether it ended because it was told to."""
    hung: bool = False
    """Whether it was ended since it ran too long or made no progress: no failure of a rank is the reason."""


Here = Callable[[Path, RunSpec, str, Callable[[], str | None]], Ended]
"""Runs a trainer on this host: the run's folder, its spec, the launch's name, and what may end it."""


def run_here(
    profile: Profile,
    start: Callable[[Path, RunSpec], Start],
    folder: Path,
    spec: RunSpec,
    launch: str,
    must_end: Callable[[], str | None],
) -> Ended:
    """Runs this host's part of a trainer to its end.

    Args:
        profile: The experiment.
        start: How the trainer is started, given the run's folder and spec.
        folder: Receives ``trainer.log``.
        spec: What to record.
        launch: What the same run is called on every host.
        must_end: As for ``run_process``.
    """
    if profile.trainer.local_dump is None:
        return _run(profile, start(folder, spec), folder, spec, launch, must_end)
    own = Path(profile.trainer.local_dump) / f"{launch}-host{profile.trainer.node_rank}"
    local = replace(spec, dump_path=str(own / layout.DUMP))
    ended = _run(profile, start(folder, local), folder, local, launch, must_end, own)
    try:
        gather(own / layout.DUMP, Path(spec.dump_path))
        shutil.rmtree(own, ignore_errors=True)
    except DumpError as error:
        return ended if ended.error else Ended(str(error))
    return ended


def _run(
    profile: Profile,
    start: Start,
    folder: Path,
    spec: RunSpec,
    launch: str,
    must_end: Callable[[], str | None],
    *own: Path,
) -> Ended:
    spec_file = folder / "spec.json"
    spec_file.write_text(spec.to_json(), encoding="utf-8")
    command, told, script = start.command, False, profile.trainer.kind == "script"
    observed = script or start.adapter is not None
    if profile.trainer.kind != "integrated":
        await_word(folder)

    def asked() -> str | None:
        nonlocal told
        reason = must_end()
        told = reason is not None
        return reason

    with (
        devices_in_use(profile) as locks,
        offered(observed) as path,
        tempfile.TemporaryDirectory(prefix="firstdiff-") as scratch,
    ):
        failures = Path(scratch, "failures.json")
        if profile.trainer.nproc_per_node is not None:
            command = torchrun_command(profile.trainer, command, Path(scratch, "logs"), failures, launch, script)
        python_path = os.pathsep.join(filter(None, [path, start.env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
        env = {
            **{name: value for name, value in os.environ.items() if name not in _PLACE_OF_A_PROCESS},
            "PYTHONFAULTHANDLER": "1",
            **profile.determinism.environment,
            **start.env,
            "PYTHONPATH": python_path,
            "PYTHONUNBUFFERED": "1",
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": PREFIX,
            MARK: str(spec_file),
            "FIRSTDIFF_RUN": spec.run,
            **({} if start.adapter is None else {TRAINER: start.adapter}),
        }
        masker = Masker(secret_values(env, [] if profile.trainer.kind == "integrated" else profile.trainer.secrets))
        try:
            run_process(
                command,
                cwd=start.cwd,
                env=env,
                log_file=folder / "trainer.log",
                on_line=_output.info,
                time_limit=profile.trainer.time_limit,
                stall_seconds=profile.trainer.stall_seconds,
                signs_of_life=_growth_of(Path(spec.dump_path)),
                must_end=asked,
                mark=MARK,
                hold=locks,
                remove=[Path(path), Path(scratch), *own],
                masker=masker,
            )
        except HangError as error:
            reason = join("; ", (str(error), _last_step(Path(spec.dump_path))))
            return Ended(reason, log_tail=error.log_tail, told=told, hung=True)
        except TrainerError as error:
            failed = [replace(each, last_words=masker.text(each.last_words)) for each in read_failures(failures)]
            return Ended(masker.text(str(error)), error.exit_code_of_child, error.log_tail, failed, told)
    return Ended()


def _growth_of(dump: Path) -> Callable[[], object]:
    """What changes with every record, every finished step and every layer that is dumped."""

    def size() -> tuple[float, ...]:
        records = sum(file.stat().st_size for file in (dump / layout.INDEX).glob("*.jsonl"))
        manifests = [file.stat().st_mtime for file in layout.manifests(dump).values()] if dump.is_dir() else []
        layers = [folder.stat().st_mtime for stage in STAGES for folder in dump.glob(f"{stage}/**/dump_tensor_data")]
        return (records, max(manifests, default=0), len(layers), max(layers, default=0))

    def size_now() -> tuple[float, ...]:
        try:
            return size()
        except OSError:
            return ()  # a file was just replaced

    return size_now


def _last_step(dump: Path) -> str:
    """How far a trainer came, for a person."""
    try:
        manifest = read_manifest(dump)
    except DumpError:
        manifest = None
    if manifest is None:
        return tell("it had recorded nothing")
    done = manifest.steps_finished
    return tell("the last step that it finished is {step}", step=done - 1) if done else tell("it had finished no step")
