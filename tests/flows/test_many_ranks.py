"""Many ranks are compared elsewhere: the answer is the same, nothing of it shows, and nothing of it stays."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.collect.values import Snapshot
from probe.launch.watcher import descendants
from probe.store.writer import DumpWriter

ENDS_WITHIN = 15.0
RANKS = 6
TRAINER = f"""
import os
import torch
from probe import Probe

torch.manual_seed(1)
probe = Probe.from_env()
for step in range(2):
    for rank in range({RANKS}):
        odd = list(os.urandom(8)) if (step, rank) in ((1, 2), (1, 5)) else [1] * 8
        probe.save({{"prompts": torch.arange(4), "rewards": torch.tensor(odd)}}, rank=rank)
    probe.step()
probe.close()
"""
COMPARE = """
import json
import sys
from pathlib import Path

if __name__ == "__main__":
    from flows import settings

    settings.prepare(verbose=False)
    settings.connect()
    from flows.compare import compare
    from flows.states import document_of

    state = compare(sys.argv[1], sys.argv[2], return_state=True)
    print(json.dumps([state.name, str(state.state_details.flow_run_id), document_of(state)["key_data"]]))
"""


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAINER)
    path = tmp_path / "mine.yaml"
    path.write_text("trainer: {kind: command, command: [python, train.py]}\ncheck: {compress: false}\n")
    return path


@pytest.mark.parametrize(
    "where",
    [
        "processes:2",
        pytest.param("dask", marks=pytest.mark.slow),
        pytest.param("ray", marks=pytest.mark.slow),
    ],
)
def test_ranks_are_compared_on_a_task_runner(
    tmp_path: Path, firstdiff: Callable[..., Any], prefect_api: str, where: str
) -> None:
    if where in ("dask", "ray"):
        pytest.importorskip(f"prefect_{where}")
    dumps = [str(write(tmp_path / name, RANKS, 2, 3, value)) for name, value in (("a", 1.0), ("b", 2.0))]
    process = start_flow(tmp_path, prefect_api, dumps, where)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    name, flow_run, key_data = json.loads(output)
    assert (name, key_data["different"]) == ("Divergent", RANKS * 2 * 3)
    assert "compared in this process" not in errors
    here = firstdiff("compare", *dumps, "--json", FIRSTDIFF_COMPARE_ON="here")
    assert key_data == here.document["key_data"]
    names = task_runs(prefect_api, flow_run, RANKS + 1)
    assert sorted(names) == [*(f"compare ranks {rank}" for rank in range(RANKS)), "compare two dumps"]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["processes:2", "dask", "ray"])
def test_a_check_compares_its_ranks_elsewhere(
    check: Callable[..., Any], profile: Path, prefect_api: str, where: str
) -> None:
    if where in ("dask", "ray"):
        pytest.importorskip(f"prefect_{where}")
    out = profile.parent / "out"
    done = check(profile, "--out", out, FIRSTDIFF_COMPARE_ON=where)
    assert done.status == 1, done.stderr
    assert done.document["first"]["rank"] == [2, 5]
    lines = done.stderr.splitlines()
    known = ("step ", "  training ", "compared ", "first difference", "what to do: ", "divergent")
    assert [line for line in lines if not line.startswith(known)] == []
    names = task_runs(prefect_api, json.loads((out / "check.json").read_text())["flow_run"], RANKS + 8)
    assert {"2 compare key data", *(f"compare ranks {rank}" for rank in range(RANKS))} < set(names)


def task_runs(api: str, flow_run: str, expected: int) -> list[str]:
    """Names of a flow run's task runs that ended well; they reach the server a little later."""
    wanted = json.dumps({"flow_runs": {"id": {"any_": [flow_run]}}}).encode()
    for _ in range(40):
        request = urllib.request.Request(f"{api}/task_runs/filter", wanted, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            found = [
                re.sub("-[0-9a-f]{3}$", "", run["name"])
                for run in json.load(answer)
                if run["state_type"] == "COMPLETED"
            ]
        if len(found) >= expected:
            break
        time.sleep(0.25)
    return found


@pytest.mark.parametrize("where", ["ray"])
def test_what_is_missing_is_said_before_a_training(
    check: Callable[..., Any], profile: Path, tmp_path: Path, where: str
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u\nf = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == 'prefect_{where}' else f(name, *rest)\n"
    )
    paths = os.pathsep.join([str(hidden), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = check(profile, "--out", tmp_path / "out", FIRSTDIFF_COMPARE_ON=where, PYTHONPATH=paths)
    assert done.status == 64, done.stderr
    assert f"firstdiff[{where}]" in done.document["error"]
    assert not (tmp_path / "out/a").exists()


def test_a_wrong_place_is_one_sentence(firstdiff: Callable[..., Any], tmp_path: Path) -> None:
    write(tmp_path / "a", 2, 1, 1)
    done = firstdiff("compare", tmp_path / "a", tmp_path / "a", FIRSTDIFF_COMPARE_ON="the moon")
    assert (done.status, len(done.stderr.splitlines())) == (64, 1)
    assert "FIRSTDIFF_COMPARE_ON" in done.stderr and "the moon" in done.stderr


def write(folder: Path, ranks: int, steps: int, records: int, value: float = 1.0) -> Path:
    folder.mkdir()
    writer = DumpWriter(folder, folder.name, keep_values=False)
    shot = Snapshot.take(value)
    for step in range(steps):
        for rank in range(ranks):
            writer.add_digests("weights", step, rank, [(f"w{n}", "f", (), shot.digest) for n in range(records)])
        writer.finish_step(step)
    writer.close(complete=True)
    return folder


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two dumps that differ everywhere: comparing them takes seconds in each process."""
    folder = tmp_path_factory.mktemp("large")
    return [str(write(folder / name, 40, 4, 1000, value)) for name, value in (("a", 1.0), ("b", 2.0))]


@pytest.mark.parametrize(
    ("how", "number"),
    [
        ("command", signal.SIGKILL),
        pytest.param("command", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("flow", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("flow", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("flow", signal.SIGINT, marks=pytest.mark.slow),
    ],
)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only Linux shows other processes")
def test_processes_that_compare_end_with_whoever_started_them(
    tmp_path: Path, prefect_api: str, large: list[str], how: str, number: int
) -> None:
    process = start_flow(tmp_path, prefect_api, large, "processes:2", how == "command")
    deadline = time.monotonic() + 60
    while len(found := comparing(process.pid)) < 2:
        assert time.monotonic() < deadline and process.poll() is None, "no processes were started"
        time.sleep(0.05)
    time.sleep(1.0)  # some are at work
    found = comparing(process.pid)
    process.send_signal(number)
    start = time.monotonic()
    output, errors = process.communicate(timeout=60)
    while (left := [pid for pid in found if is_running(pid)]) and time.monotonic() < start + ENDS_WITHIN:
        time.sleep(0.05)
    assert not left
    assert time.monotonic() < start + ENDS_WITHIN
    assert process.returncode != 0
    if how == "command":
        assert "Traceback" not in output + errors


def start_flow(folder: Path, api: str, dumps: list[str], where: str, as_command: bool = False) -> subprocess.Popen[str]:
    """Starts the comparison of two dumps as a flow, or as the command that knows no Prefect."""
    (folder / "compare.py").write_text(COMPARE)
    command = ["-m", "flows.cli", "compare", "--json"] if as_command else [str(folder / "compare.py")]
    env = {**os.environ, "PREFECT_API_URL": api, "FIRSTDIFF_COMPARE_ON": where}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).resolve().parents[2]), env.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, *command, *dumps],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def comparing(parent: int) -> list[int]:
    """Processes below one that multiprocessing started."""
    return [pid for pid in descendants(parent) if b"multiprocessing" in command_of(pid)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
