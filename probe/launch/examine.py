"""Starting a trainer's worker processes only to ask them what is in effect there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from probe.config import IntegratedTrainer, Profile
from probe.errors import InconclusiveError
from probe.launch.launcher import launcher_for
from probe.launch.plan import dump_folder, run_spec
from probe.launch.running import Start, run_here
from probe.types import RunSpec

_ASK = "from probe import Probe; Probe.from_env().close()"
_SECONDS = 300.0
"""How long workers may take to come up."""


def examine_workers(profile: Profile, folder: Path) -> Path:
    """Starts the worker processes of a profile as a check does; each writes what is in effect, and ends.

    The integrated trainer sets everything up and takes no step. Of a command, its interpreter is asked in its
    environment, before anything that the script itself sets. Of several hosts, this one alone is asked.

    Args:
        profile: The experiment.
        folder: New and empty; receives the log and the dump.

    Returns:
        The dump folder that holds the environment of every worker.

    Raises:
        InconclusiveError: They cannot be started, or their command is no Python.
    """
    dump = dump_folder(folder, "a")
    dump.parent.mkdir(parents=True)
    trainer = profile.trainer.model_copy(
        update={"nnodes": 1, "node_rank": 0, "rdzv_endpoint": None, "local_dump": None, "time_limit": _SECONDS}
    )
    alone = profile.model_copy(update={"trainer": trainer})
    spec = replace(run_spec(alone, "a", dump), key_data="off", trace=False, dump_stages=())
    ended = run_here(alone, _start_of(alone), dump.parent, spec, "examine", lambda: None)
    if ended.error is not None:
        last = ended.log_tail.strip().rpartition("\n")[2]
        raise InconclusiveError(f"the workers cannot be asked: {ended.error}{f' ({last})' if last else ''}")
    return dump


def _start_of(profile: Profile) -> Callable[[Path, RunSpec], Start]:
    """How the profile's own launcher starts it, but for what is run."""
    integrated, launcher = isinstance(profile.trainer, IntegratedTrainer), launcher_for(profile)

    def start(folder: Path, spec: RunSpec) -> Start:
        own = launcher.start(folder, spec)
        if integrated:
            return replace(own, command=[*own.command, "--examine"])
        if not Path(own.command[0]).name.startswith("python"):
            raise InconclusiveError(f"the workers cannot be asked: {own.command[0]} is no Python interpreter")
        return replace(own, command=[own.command[0], "-c", _ASK])

    return start
