"""Running a trainer to its end on all hosts, and what a run that is not whole is told to be."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from probe.config import Profile
from probe.errors import HangError, TrainerError
from probe.language import recall, tell
from probe.launch.failures import first_failure
from probe.launch.finished import note_finished
from probe.launch.hosts import run_on_all
from probe.launch.observed import forget, notes, problems
from probe.launch.running import Ended, Start, run_here
from probe.store import layout
from probe.store.notes import keep_notes
from probe.store.writer import mark_incomplete
from probe.types import RunSpec


def found_command(command: list[str]) -> list[str]:
    """A command with its program in place: beside our own interpreter where no search path has it.

    Args:
        command: Program and arguments; ``python`` is the interpreter that runs Firstdiff.
    """
    program, *arguments = command
    if program == "python":
        program = sys.executable
    elif Path(program).name == program and shutil.which(program) is None:
        beside = Path(sys.executable).parent / program
        program = str(beside) if beside.is_file() else program
    return [program, *arguments]


def _no_probe() -> str:
    return "the trainer ended well but recorded nothing; does it call probe.Probe.from_env()?"


def run_whole(
    profile: Profile,
    start: Callable[[Path, RunSpec], Start],
    folder: Path,
    spec: RunSpec,
    why_nothing: Callable[[], str] = _no_probe,
    closing: Callable[[Ended], None] = lambda ended: None,
) -> None:
    """Runs a trainer to its end, and looks at what it recorded, and at what its processes left word of.

    Args:
        profile: The experiment.
        start: How the trainer is started on this host.
        folder: The run's folder.
        spec: What to record.
        why_nothing: Says why a trainer that ended well recorded nothing.
        closing: Completes what was recorded, however the trainer ended, before anything looks at it.

    Raises:
        TrainerError: It failed, or recorded nothing.
    """
    here = partial(run_here, profile, start)
    try:
        if profile.trainer.nnodes > 1:
            ended = run_on_all(profile.trainer, folder, spec, here)
        else:
            launch = f"{folder.parent.name}-{secrets.token_hex(4)}-{spec.run}"
            ended = here(folder, spec, launch, lambda: None)
        closing(ended)
        _require_whole(profile, Path(spec.dump_path), spec, ended, why_nothing)
        keep_notes(Path(spec.dump_path), notes(folder))
        note_finished(folder, spec)
    finally:
        if told := problems(folder):
            mark_incomplete(Path(spec.dump_path), "; ".join(told))
        forget(folder)


def _require_whole(profile: Profile, dump: Path, spec: RunSpec, ended: Ended, why_nothing: Callable[[], str]) -> None:
    """Raises where a trainer failed, or recorded nothing; marks what is not whole."""
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
