"""One device, one check at a time: real locks between real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.config import load_profile
from probe.errors import InconclusiveError
from probe.launch.devices import VISIBLE, Devices, devices_in_use, devices_of, devices_reserved

HOLD = """
import logging, sys
from probe.config import load_profile
from probe.launch import devices_reserved
logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
with devices_reserved(load_profile("profile.yaml")):
    print("has it", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def own_locks(tmp_path, monkeypatch):
    monkeypatch.setenv("FIRSTDIFF_LOCKS", str(tmp_path / "locks"))
    for variable in VISIBLE.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def profile(tmp_path):
    """An integrated trainer on a device."""

    def make(device: str):
        (tmp_path / "profile.yaml").write_text(f"trainer: {{kind: integrated, config: {{device: {device}}}}}")
        return load_profile(str(tmp_path / "profile.yaml"))

    return make


@pytest.fixture
def hold(tmp_path):
    """Starts a process that takes a profile's devices."""
    started = []

    def start(visible: str | None = None) -> subprocess.Popen:
        own = {} if visible is None else {VISIBLE["npu"]: visible}
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", HOLD]
        process = subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, **own}, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def has_it(process: subprocess.Popen) -> bool:
    return process.stdout.readline() == "has it\n"


def test_the_second_check_waits_says_so_and_gets_the_device_when_the_first_is_killed(profile, hold):
    profile("npu")
    first = hold()
    assert has_it(first)
    second = hold()
    assert second.stderr.readline() == f"waiting: another check uses npu (process {first.pid})\n"
    first.send_signal(signal.SIGKILL)
    assert has_it(second)


def test_checks_with_other_devices_or_none_are_parallel(profile, hold, tmp_path):
    profile("npu")
    assert has_it(hold("0,1"))
    assert has_it(hold("2-3"))
    overlapping = hold("3,7")
    assert overlapping.stderr.readline().startswith("waiting: another check uses npu 3, 7 (")
    assert "waiting" in hold().stderr.readline(), "all devices of the machine: those of the others too"
    assert has_it(hold("")), "it sees none"
    profile("cpu")
    assert has_it(hold())
    assert has_it(hold())


def test_a_killed_check_s_devices_are_in_use_until_its_trainer_is_gone(profile, hold):
    mine = profile("npu")
    with devices_in_use(mine) as descriptors:
        kept = [os.dup(descriptor) for descriptor in descriptors]  # as the trainer's watcher has them
    assert len(kept) == 1
    held = subprocess.Popen(["sleep", "60"], pass_fds=kept)
    os.close(kept[0])
    try:
        code = HOLD.replace("devices_reserved", "devices_in_use").replace("launch import", "launch.devices import")
        waiting = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=Path(os.environ["FIRSTDIFF_LOCKS"]).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert waiting.stderr.readline().startswith("waiting")
        held.kill()
        held.wait()
        assert has_it(waiting)
    finally:
        for process in (held, waiting):
            process.kill()
            process.communicate()


@pytest.mark.parametrize(
    ("device", "nodes", "found"),
    [
        ("cpu", ["davinci0", "nvidia0"], []),
        ("auto", [], []),
        ("auto", ["davinci0", "davinci_manager"], [Devices("npu")]),
        ("auto", ["davinci_manager", "nvidiactl"], []),
        ("cuda", [], [Devices("cuda")]),
        ("npu", ["nvidia0"], [Devices("npu")]),
    ],
)
def test_the_devices_of_a_profile(profile, tmp_path, device, nodes, found):
    (tmp_path / "dev").mkdir()
    for node in nodes:
        (tmp_path / "dev" / node).touch()
    assert devices_of(profile(device), tmp_path / "dev") == found


def test_a_command_may_use_what_it_sees(tmp_path):
    (tmp_path / "nvidia0").touch()
    (tmp_path / "profile.yaml").write_text(
        "trainer: {kind: command, command: [python, a.py], env: {CUDA_VISIBLE_DEVICES: '5, GPU-8/9f,-1,7'}}"
    )
    loaded = load_profile(str(tmp_path / "profile.yaml"))
    assert devices_of(loaded, tmp_path) == [Devices("cuda", ("5", "GPU-8_9f"))]


@pytest.mark.parametrize(("endpoint", "kinds"), [("127.0.0.1:29500", []), ("10.0.0.1:29500", ["npu"])])
def test_a_second_host_on_this_very_machine_shares_the_devices_of_the_first(tmp_path, endpoint, kinds):
    (tmp_path / "davinci0").touch()
    (tmp_path / "profile.yaml").write_text(
        "trainer: {kind: command, command: [python, a.py], nproc_per_node: 1, nnodes: 2, node_rank: 1,"
        f" rdzv_endpoint: '{endpoint}'}}"
    )
    loaded = load_profile(str(tmp_path / "profile.yaml"))
    assert [devices.kind for devices in devices_of(loaded, tmp_path)] == kinds


def test_hostile_locks_are_refused(profile, tmp_path, monkeypatch):
    mine = profile("npu")
    locks = tmp_path / "locks"

    def refused(words: str) -> None:
        with pytest.raises(InconclusiveError, match=words), devices_reserved(mine):
            pass

    (tmp_path / "target").mkdir()
    locks.symlink_to(tmp_path / "target")
    refused("no folder of this user's own")
    locks.unlink()
    locks.mkdir()
    locks.chmod(0o777)
    refused("no folder of this user's own")
    locks.chmod(0o700)
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (locks / "npu.check.lock").symlink_to(precious)
    refused("cannot be opened")
    (locks / "npu.check.lock").unlink()
    os.mkfifo(locks / "npu.check.lock")
    refused("is no file")
    (locks / "npu.check.lock").unlink()
    assert precious.read_text() == "precious"
    with devices_reserved(mine):
        assert (locks / "npu.check.lock").stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("FIRSTDIFF_LOCKS", "/proc/nowhere")
    refused("cannot be made")


def test_a_lock_that_was_tidied_away_while_somebody_waited_is_taken_at_its_new_place(profile, hold, tmp_path):
    profile("npu")
    first = hold()
    assert has_it(first)
    second = hold()
    assert second.stderr.readline().startswith("waiting")
    (tmp_path / "locks/npu.check.lock").unlink()
    assert has_it(second), "the first one's lock is nobody's any more"
    third = hold()
    assert third.stderr.readline().endswith(f"(process {second.pid})\n")
    first.kill()
    time.sleep(0.7)
    assert third.poll() is None
    second.kill()
    assert has_it(third)


def test_nothing_stays_open(profile):
    mine = profile("npu")
    before = set(os.listdir("/proc/self/fd"))
    with devices_reserved(mine), devices_in_use(mine):
        pass
    assert set(os.listdir("/proc/self/fd")) == before
