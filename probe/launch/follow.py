"""What ``firstdiff check`` does on every host but host 0: its part of each run, then host 0's verdict."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from probe.config import Profile
from probe.errors import InconclusiveError, TrainerError, UsageError
from probe.launch.devices import devices_reserved
from probe.launch.hosts import FOLDER, POLL_SECONDS, Hosts, told, wait
from probe.launch.launcher import launcher_for
from probe.launch.plan import dump_folder
from probe.launch.running import Ended, run_here
from probe.masking import masked_profile
from probe.store import layout
from probe.types import RunSpec

_OWN_KEYS = ("node_rank", "local_dump", "cwd", "env")
"""Keys of ``trainer`` that may be another on each host."""
_log = logging.getLogger("firstdiff")


def follow(profile: Profile, folder: Path) -> dict[str, Any]:
    """Takes part in a check that host 0 leads.

    Args:
        profile: The experiment, with this host's own ``trainer.node_rank``.
        folder: The check's folder, which host 0 makes.

    Returns:
        The content of ``verdict.json``, which host 0 wrote.

    Raises:
        UsageError: The folder holds a check that has ended, or the profile is not host 0's.
        InconclusiveError: Host 0 never came, vanished, or ended without a verdict.
    """
    hosts = Hosts(folder, profile.trainer.node_rank, profile.trainer)
    if hosts.read("end.json") is not None:
        raise UsageError(f"{folder}: holds a check that has ended; name another folder with --out on every host")
    _log.info("host %d waits for host 0 in %s", hosts.me, hosts.folder)
    check = wait(lambda: hosts.read("check.json"), hosts.patience)
    if check is None:
        raise InconclusiveError(
            f"{folder}: host 0 did not begin a check here within {hosts.patience:g} s; it needs the same --out on a"
            " shared file system"
        )
    _join(hosts, profile, check["profile"])
    with hosts.beating(), devices_reserved(profile):
        _take_part(hosts, profile, folder)
    verdict = layout.read_json(folder / "verdict.json")
    if not isinstance(verdict, dict):
        raise InconclusiveError(f"{folder / 'verdict.json'}: damaged")
    return verdict


def _join(hosts: Hosts, profile: Profile, leader: dict[str, Any]) -> None:
    name = hosts.folder / f"join{hosts.me}.json"
    try:
        (hosts.folder / f"host{hosts.me}").open("x").close()
    except FileExistsError as error:
        raise UsageError(f"{name}: another process is host {hosts.me}; give each its own trainer.node_rank") from error
    different = _different(masked_profile(profile.model_dump(mode="json"), False), leader)
    problem = None if different is None else f"{different} is not the same as on host 0"
    hosts.write(name.name, {"error": problem})
    if problem is not None:
        raise UsageError(f"{problem}; give every host the same profile")


def _different(mine: Any, theirs: Any, path: tuple[str, ...] = ()) -> str | None:
    """The dotted path of the first key in which two profiles differ; None when they are the same."""
    if len(path) == 2 and path[0] == "trainer" and path[1] in _OWN_KEYS:
        return None
    if not isinstance(mine, dict) or not isinstance(theirs, dict):
        return None if mine == theirs else ".".join(path)
    for key in {**mine, **theirs}:
        if (found := _different(mine.get(key), theirs.get(key), (*path, key))) is not None:
            return found
    return None


def _take_part(hosts: Hosts, profile: Profile, folder: Path) -> None:
    """Runs this host's part of every run that host 0 starts, until it has ended."""
    here = partial(run_here, profile, launcher_for(profile).start)
    done: set[str] = set()
    while (end := hosts.read("end.json")) is None:
        new = next((run for run in "abcd" if run not in done and hosts.read(f"run-{run}.json") is not None), None)
        if new is not None:
            done.add(new)
            started = hosts.read(f"run-{new}.json") or {}
            # the shared file system may be mounted at another path here
            spec = replace(RunSpec.from_json(started["spec"]), dump_path=str(dump_folder(folder, new)))
            own = folder / new / f"host{hosts.me}"
            own.mkdir()
            _log.info("run %s: training as host %d", new, hosts.me)
            ended = Ended(f"host {hosts.me} was interrupted")
            try:
                ended = hosts.take_part(spec, started["launch"], own, here)
            finally:
                hosts.write(f"run-{new}.host{hosts.me}.json", told(ended))
        elif (reason := hosts.silent(0)) is not None:
            raise TrainerError(f"{folder}: {reason}; there is no verdict")
        else:
            time.sleep(POLL_SECONDS)
    if end["error"] is not None:
        raise InconclusiveError(f"{folder / FOLDER}: {end['error']}; there is no verdict")
