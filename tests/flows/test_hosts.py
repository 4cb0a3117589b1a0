"""Several hosts: two ``firstdiff check`` on 127.0.0.1, one process each, that share the check's folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.store.reader import read_dump

QUIET_PREFECT = {"DO_NOT_TRACK": "1", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from probe import Probe

torch.manual_seed(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
probe = Probe.from_env()
print(f"it trains as {rank}", flush=True)
for step in range(2):
    total = torch.tensor([rank + 1.0])
    if step == 1:
        FAULT
    dist.all_reduce(total)
    probe.save({"loss": total, "prompts": rank})
    probe.step()
dist.destroy_process_group()
"""


class Hosts:
    def __init__(self, folder: Path, api: str):
        self.folder, self.out, self._api = folder, folder / "out", api
        self.started: list[subprocess.Popen[str]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def prepare(self, fault: str = "pass", **keys: object) -> None:
        (self.folder / "train.py").write_text(TRAIN.replace("FAULT", fault))
        lines = "".join(f"  {key}: {value}\n" for key, value in keys.items())
        (self.folder / "profile.yaml").write_text(
            "trainer:\n  kind: command\n  command: [python, train.py]\n  nproc_per_node: 1\n  nnodes: 2\n"
            f"  rdzv_endpoint: 127.0.0.1:{self._port}\n{lines}determinism: {{num_threads: 1}}\n"
        )

    def start(self, host: int, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flows.cli", "check", str(self.folder / "profile.yaml"), "--json"]
        command += ["--out", str(self.out), "--set", f"trainer.node_rank={host}", *arguments]
        env = {**os.environ, **QUIET_PREFECT, "PREFECT_API_URL": self._api}
        pipe = subprocess.PIPE
        self.started.append(
            subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        )
        return self.started[-1]

    def finish(self, *processes: subprocess.Popen[str]) -> list[tuple[int, dict, str]]:
        found = []
        for process in processes:
            out, err = process.communicate(timeout=240)
            assert "Traceback" not in err, err
            found.append((process.returncode, json.loads(out), err))
        return found


@pytest.fixture
def hosts(tmp_path, prefect_api):
    made = Hosts(tmp_path, prefect_api)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("local", [False, True])
def test_both_hosts_record_one_run_and_end_with_one_verdict(hosts, local):
    hosts.prepare(**({"local_dump": "own"} if local else {}))
    follower = hosts.start(1)  # the order in which they start does not matter
    leader = hosts.start(0)
    (status, verdict, err), (other_status, other_verdict, other_err) = hosts.finish(leader, follower)
    assert (status, verdict["verdict"]) == (0, "identical"), err
    assert (other_status, other_verdict) == (0, verdict), other_err
    for run in "ab":
        dump = read_dump(hosts.out / run / "msprobe_dump")
        assert (dump.complete, sorted(dump.ranks), dump.problems) == (True, [0, 1], [])
        assert (dump.folder / "environment.rank1.json").is_file()
    assert "it trains as 0" in (hosts.out / "a/trainer.log").read_text()
    assert "it trains as 1" in (hosts.out / "a/host1/trainer.log").read_text()
    left = [path for path in (hosts.folder / "own").rglob("*") if path.is_file()] if local else []
    assert left == []


@pytest.mark.slow
@pytest.mark.parametrize(("culprit", "other"), [(1, 0), (0, 1)])
def test_a_rank_that_dies_on_one_host_ends_the_run_on_all(hosts, culprit, other):
    fault = f"if rank == {culprit}: raise ValueError('out of luck')\n        time.sleep(300)"
    hosts.prepare(fault)
    start = time.monotonic()
    (status, verdict, err), (other_status, _, other_err) = hosts.finish(hosts.start(0), hosts.start(1))
    assert (status, other_status) == (2, 2), err + other_err
    sentence = f"run a: rank {culprit} on {socket.gethostname()} failed with exit status 1: ValueError: out of luck"
    assert sentence in verdict["notes"] or verdict["error"] == sentence
    assert time.monotonic() - start < 120


@pytest.mark.slow
def test_a_follower_ends_when_host_0_is_interrupted(hosts):
    hosts.prepare("time.sleep(300)")
    leader, follower = hosts.start(0), hosts.start(1)
    deadline = time.monotonic() + 120
    while not (hosts.out / "a/host1/trainer.log").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    leader.send_signal(signal.SIGINT)
    (status, _, _), (other_status, other, err) = hosts.finish(leader, follower)
    assert (status, other_status) == (130, 2), err
    assert "host 0 was interrupted; there is no verdict" in other["error"]


def test_a_host_that_never_comes_is_named(hosts):
    hosts.prepare(time_limit=2)
    ((status, verdict, _),) = hosts.finish(hosts.start(1))
    assert (status, verdict["verdict"]) == (2, "inconclusive")
    assert "host 0 did not begin a check here within 2 s" in verdict["error"]
    ((status, verdict, _),) = hosts.finish(hosts.start(0))
    assert (status, verdict["verdict"]) == (2, "inconclusive")
    assert "host 1 did not come within 2 s" in verdict["error"]
    ((status, verdict, _),) = hosts.finish(hosts.start(1))
    assert status == 64
    assert "holds a check that has ended" in verdict["error"]


@pytest.mark.slow
def test_a_host_with_another_profile_does_not_take_part(hosts):
    hosts.prepare()
    leader = hosts.start(0)
    follower = hosts.start(1, "--set", "check.steps=1")
    (status, verdict, _), (other_status, other, _) = hosts.finish(leader, follower)
    assert (status, other_status) == (2, 64)
    assert "check.steps is not the same as on host 0" in verdict["error"]
    assert "check.steps is not the same as on host 0" in other["error"]


def test_several_hosts_need_a_folder_that_they_share(hosts, firstdiff):
    hosts.prepare()
    done = firstdiff("check", hosts.folder / "profile.yaml", "--set", "trainer.node_rank=1")
    assert done.status == 64
    assert "--out: a check of several hosts needs one folder" in done.stderr
