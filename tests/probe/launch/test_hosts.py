"""What the hosts of one check say to each other, and what one does when another vanishes."""

from __future__ import annotations

import json
import time

import pytest

from probe.config import load_profile
from probe.errors import InconclusiveError, TrainerError, UsageError
from probe.launch import follow, hosts, run_spec


@pytest.fixture
def host1(tmp_path):
    """The profile of host 1 of two, and a check that host 0 began."""
    (tmp_path / "train.py").write_text("import time\nprint('it waits')\ntime.sleep(600)")
    (tmp_path / "profile.yaml").write_text(
        "trainer: {kind: command, command: [python, train.py], nproc_per_node: 1, nnodes: 2, node_rank: 1,"
        " rdzv_endpoint: '127.0.0.1:29511', time_limit: 300}"
    )
    profile = load_profile(str(tmp_path / "profile.yaml"))
    (tmp_path / "out/hosts").mkdir(parents=True)
    check = {"check": "x", "profile": profile.model_dump(mode="json")}
    (tmp_path / "out/hosts/check.json").write_text(json.dumps(check))
    return profile


def test_a_host_ends_when_host_0_vanishes_between_two_runs(host1, tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "SILENT_SECONDS", 1.0)
    with pytest.raises(TrainerError, match="host 0 vanished: it gave no sign of life for 1 s; there is no verdict"):
        follow(host1, tmp_path / "out")


def test_a_host_ends_its_ranks_when_host_0_vanishes_in_a_run(host1, tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "SILENT_SECONDS", 3.0)
    spec = run_spec(host1, "a", tmp_path / "elsewhere")
    (tmp_path / "out/a").mkdir()
    (tmp_path / "out/hosts/run-a.json").write_text(json.dumps({"launch": "x-a", "spec": spec.to_json()}))
    start = time.monotonic()
    with pytest.raises(TrainerError, match="host 0 vanished"):
        follow(host1, tmp_path / "out")
    assert time.monotonic() - start < 60
    part = json.loads((tmp_path / "out/hosts/run-a.host1.json").read_text())
    assert part["told"] is True
    assert "vanished" in part["error"]
    assert not (tmp_path / "elsewhere").exists(), "its own path of the shared folder counts, not host 0's"


def test_a_host_says_why_host_0_has_no_verdict(host1, tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "POLL_SECONDS", 0.1)
    joined = hosts.Hosts(tmp_path / "out", 0, host1.trainer)
    real = hosts.Hosts.beating

    def beating_once(self):
        joined.write("end.json", {"error": "host 0 failed: out of luck"})
        return real(self)

    monkeypatch.setattr(hosts.Hosts, "beating", beating_once)
    with pytest.raises(InconclusiveError, match="host 0 failed: out of luck; there is no verdict"):
        follow(host1, tmp_path / "out")


def test_two_processes_are_not_the_same_host(host1, tmp_path):
    (tmp_path / "out/hosts/host1").touch()
    with pytest.raises(UsageError, match="another process is host 1; give each its own trainer.node_rank"):
        follow(host1, tmp_path / "out")


def test_a_host_is_silent_only_when_its_beat_does_not_change(host1, tmp_path, monkeypatch):
    monkeypatch.setattr(hosts, "SILENT_SECONDS", 0.2)
    other = hosts.Hosts(tmp_path / "out", 0, host1.trainer)
    for number in range(4):
        other.write("beat1.json", {"beat": number})
        assert other.silent(1) is None
        time.sleep(0.15)
    time.sleep(0.2)
    assert other.silent(1) == "host 1 vanished: it gave no sign of life for 0.2 s"
    other.write("beat1.json", {"beat": 9})
    assert other.silent(1) is None
