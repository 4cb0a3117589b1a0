"""A script that trains in Ray's workers, with no edit: real Ray, bound to this machine alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.probe.adapters.conftest import Observed, Observing

pytestmark = pytest.mark.slow
ALONE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # also to find a Ray, it keeps to the loopback
    "RAY_AUTH_MODE": "disabled",
}


@pytest.fixture
def on_ray(observe: Observing, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Observed]:
    """Runs the script that trains in actors."""
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    observe.copy("on_ray.py")
    return lambda *options: observe("on_ray.py", *options)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A Ray that runs already, without any check."""
    command = (
        "import ray, sys\n"
        "context = ray.init(num_cpus=2, include_dashboard=False, _node_ip_address='127.0.0.1')\n"
        "print(context.address_info['address'].rpartition(':')[2], flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **ALONE},
    )
    assert process.stdout is not None and process.stdin is not None
    with process.stdout, process.stdin:
        yield f"127.0.0.1:{process.stdout.readline().strip()}"
    process.wait(60)


@pytest.mark.parametrize("end", ["exit", "shutdown"])
def test_each_actor_with_a_rank_is_recorded_to_its_end(on_ray: Callable[..., Observed], end: str) -> None:
    observed = on_ray("--ranks", "--end", end)
    assert observed.error is None
    assert (observed.dump.complete, sorted(observed.dump.ranks), observed.dump.problems) == (True, [0, 1], [])
    for rank in (0, 1):
        assert observed.stages(rank) == [(0, "model", 0), (1, "model", 0), (2, "model", 0)]
    assert not processes_of(observed.folder)


def test_one_actor_needs_no_rank(on_ray: Callable[..., Observed]) -> None:
    observed = on_ray("--actors", "1")
    assert (observed.dump.complete, observed.dump.steps_finished) == (True, 3)


def test_several_without_ranks_are_told_what_is_lacking(on_ray: Callable[..., Observed]) -> None:
    observed = on_ray()
    assert not observed.dump.complete
    said = "; ".join(observed.dump.problems)
    assert "without a rank (RANK and WORLD_SIZE" in said, (said, observed.error, observed.log)


def test_a_killed_actor_is_never_taken_for_whole(on_ray: Callable[..., Observed]) -> None:
    assert not on_ray("--ranks", "--end", "kill").dump.complete


def test_a_ray_that_ran_before_is_told_in_one_sentence(
    on_ray: Callable[..., Observed], cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    observed = on_ray("--ranks")
    assert f"a Ray that was running already ({cluster}), whose workers are not observed" in str(observed.error)
    assert "unset RAY_ADDRESS" in str(observed.error)


def processes_of(run: Path) -> list[int]:
    """Processes that carry a run's mark."""
    mark = f"FIRSTDIFF_SPEC={run}/spec.json".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found
