"""Running a trainer on this host: its environment, torchrun where it has several processes, and what came of it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from probe.config import Profile
from probe.errors import DumpError, TrainerError
from probe.launch.failures import Failure, read_failures
from probe.launch.gather import gather
from probe.launch.process import run_process
from probe.launch.torchrun import PREFIX, torchrun_command
from probe.masking import Hidden
from probe.store import layout
from probe.types import RunSpec

_output = logging.getLogger("firstdiff.trainer")
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
    ended = _run(profile, start(folder, local), folder, local, launch, must_end)
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
) -> Ended:
    spec_file = folder / "spec.json"
    spec_file.write_text(spec.to_json(), encoding="utf-8")
    command, told = start.command, False

    def asked() -> str | None:
        nonlocal told
        reason = must_end()
        told = reason is not None
        return reason

    with _folder_with_only_probe() as path, tempfile.TemporaryDirectory(prefix="firstdiff-") as scratch:
        failures = Path(scratch, "failures.json")
        if profile.trainer.nproc_per_node is not None:
            command = torchrun_command(profile.trainer, command, Path(scratch, "logs"), failures, launch)
        python_path = os.pathsep.join(filter(None, [path, start.env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
        env = {
            **{name: value for name, value in os.environ.items() if name not in _PLACE_OF_A_PROCESS},
            **profile.determinism.environment,
            **start.env,
            "PYTHONPATH": python_path,
            "PYTHONUNBUFFERED": "1",
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": PREFIX,
            "FIRSTDIFF_SPEC": str(spec_file),
            "FIRSTDIFF_RUN": spec.run,
        }
        hidden = Hidden.of(env, profile.secret_names)
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
                mark="FIRSTDIFF_SPEC",
                hidden=hidden,
            )
        except TrainerError as error:
            return Ended(
                str(error), error.exit_code_of_child, error.log_tail, _without(hidden, read_failures(failures)), told
            )
    return Ended()


def _without(hidden: Hidden, failures: list[Failure]) -> list[Failure]:
    return [replace(failure, last_words=hidden.text(failure.last_words)) for failure in failures]


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
