"""Task runners that compare many ranks: processes of this machine, Dask, or Ray."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from prefect import Task
from prefect.task_runners import ProcessPoolTaskRunner, TaskRunner

from probe.compare import KeyDataComparison, Place, chosen_place, compare_key_data, place_for
from probe.compare.parts import Share
from probe.compare.place import VARIABLE
from probe.compare.processes import compare_in_parts, end_with_parent, killed_on_error, result_of
from probe.errors import UsageError
from probe.privacy import SWITCHES
from probe.store.reader import Dump

SILENCE_SECONDS = 900.0
"""Longest time without the next result; a cluster without workers says nothing for ever."""
_LIBRARIES = {"dask": "prefect_dask", "ray": "prefect_ray"}


def require_runner() -> None:
    """Sees to it, before a training starts, that ranks can be compared where the environment says.

    Raises:
        UsageError: It names no place, or one whose library is not installed.
    """
    place = chosen_place()
    library = None if place is None else _LIBRARIES.get(place.kind)
    if place is not None and library is not None and importlib.util.find_spec(library) is None:
        name = library.replace("_", "-")
        raise UsageError(f"{VARIABLE}: needs {name}, which is not installed; pip install 'firstdiff[{place.kind}]'")


def compare_mapped(task: Task[Any, bytes], a: Dump, b: Dump, last_step: int | None = None) -> KeyDataComparison:
    """Compares two dumps, many ranks on a task runner and few in this process.

    Args:
        task: Compares one share: takes its bytes and a name of its ranks, returns the part's bytes.
        a: One run.
        b: The other.
        last_step: Entries of later steps are left out; None takes all.
    """
    place = place_for(a, b)
    if place.kind == "here":
        return compare_key_data(a, b, last_step)

    def submitted(shares: list[Share]) -> Iterator[bytes | None]:
        with _runner(place, len(shares)) as runner, killed_on_error():
            futures = [runner.submit(task, {"share": s.to_bytes(), "ranks": _name(s)}) for s in shares]
            for future in futures:
                yield result_of(lambda future=future: future.result(timeout=SILENCE_SECONDS))  # type: ignore[misc]

    return compare_in_parts(a, b, last_step, place.parts, submitted)


def _runner(place: Place, parts: int) -> TaskRunner[Any]:
    """A runner that is not started."""
    processes = min(place.processes, parts)
    runner: TaskRunner[Any] = ProcessPoolTaskRunner(max_workers=processes, initializer=end_with_parent)
    if place.kind == "dask":
        from prefect_dask.task_runners import DaskTaskRunner

        local = {"n_workers": processes, "threads_per_worker": 1, "dashboard_address": None}
        runner = DaskTaskRunner(address=place.address, cluster_kwargs=None if place.address else local)
    if place.kind == "ray":
        from prefect_ray.task_runners import RayTaskRunner

        own = {"num_cpus": processes, "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        there = {"runtime_env": {"env_vars": SWITCHES}}
        quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
        runner = RayTaskRunner(place.address or "local", {**quiet, **(there if place.address else own)})
    return runner


def _name(share: Share) -> str:
    first, last = share.ranks[0], share.ranks[-1]
    return str(first) if first == last else f"{first} to {last}"
