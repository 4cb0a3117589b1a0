"""The estimate before a check, against what is really free."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.config import load_profile
from probe.disk import estimate, require_room, settle, show_size
from probe.disk import room as rooms
from probe.errors import UsageError

MakeCheck = Callable[..., Path]


def test_an_earlier_check_of_the_profile_tells(make_check: MakeCheck, checks: Path, tmp_path: Path) -> None:
    for name, size in (("one", 1000), ("two", 200_000)):
        folder = make_check(name, size=size)
        profile = load_profile(str(folder / "profile.yaml"))
        settle(folder, profile)
    need = estimate(checks / "next", str(tmp_path / "mine.yaml"), profile)
    assert need.bytes is not None and 2 * 2 * 800_000 < need.bytes < 2 * 2 * 2 * 800_000
    assert "an earlier check" in need.reason

    other = load_profile(str(tmp_path / "mine.yaml"))
    (tmp_path / "other.yaml").write_text((tmp_path / "mine.yaml").read_text())
    assert estimate(checks / "next", str(tmp_path / "other.yaml"), other).bytes is None


def test_the_integrated_trainer_has_a_bound(tmp_path: Path) -> None:
    """The shipped demo took 33 MB on the disk, with layers, when this was written."""
    small = estimate(tmp_path / "x", "demo", load_profile("demo")).bytes
    assert small is not None and 33e6 < small < 33e6 * 20
    more = load_profile("demo", ["check.steps=600", "trainer.config.megatron_training.global_batch_size=64"])
    large = estimate(tmp_path / "x", "demo", more).bytes
    assert large is not None and large > 10 * small


@pytest.mark.parametrize(("name", "size"), [("demo", 3_789_764), ("grpo", 1_431_838), ("ppo", 2_597_454)])
def test_the_bound_counts_the_traces(tmp_path: Path, name: str, size: int) -> None:
    """The trace of one run of each shipped profile took so many bytes when this was written."""
    with_traces = estimate(tmp_path / "x", name, load_profile(name)).bytes
    without = estimate(tmp_path / "x", name, load_profile(name, ["record.trace=false"])).bytes
    assert with_traces is not None and without is not None
    assert 4 * size < with_traces - without < 4 * size * 5, "a and b, and c and d as far at most"


def test_an_earlier_check_without_traces_says_nothing_of_one_with_them(
    make_check: MakeCheck, checks: Path, tmp_path: Path
) -> None:
    folder = make_check("one", size=1000)
    settle(folder, load_profile(str(folder / "profile.yaml")))
    mine = str(tmp_path / "mine.yaml")
    assert estimate(checks / "next", mine, load_profile(mine)).bytes is not None
    assert estimate(checks / "next", mine, load_profile(mine, ["record.trace=false"])).bytes is None


def test_too_little_room_is_refused_unless_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    profile = load_profile("demo")
    free = show_size(os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize)
    require_room(tmp_path / "x", "demo", profile)
    monkeypatch.setattr(rooms, "_SAFETY", 1 << 40)
    with pytest.raises(UsageError, match=r"--force") as raised:
        require_room(tmp_path / "x", "demo", profile)
    assert "free" in str(raised.value) and free.split()[1] in str(raised.value)
    with caplog.at_level(logging.WARNING):
        require_room(tmp_path / "x", "demo", profile, force=True)
    assert "the check will take about" in caplog.text


def test_nothing_known_warns_only_on_a_tiny_disk(
    make_check: MakeCheck,
    checks: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    profile = load_profile(str(make_check("one") / "profile.yaml"))
    with caplog.at_level(logging.WARNING):
        require_room(tmp_path / "fresh/x", str(tmp_path / "mine.yaml"), profile)
        assert caplog.text == ""
        monkeypatch.setattr(rooms, "TINY", 1 << 60)
        require_room(tmp_path / "fresh/x", str(tmp_path / "mine.yaml"), profile)
    assert "is not known" in caplog.text


SMALL_DISK = """
import os, subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", sys.argv[1]], check=True)
check = [sys.executable, "-m", "flows.cli", "check", "demo", "--out", sys.argv[1] + "/check"]
status = subprocess.run(check).returncode
print(os.listdir(sys.argv[1]))
sys.exit(status)
"""


def test_a_small_disk_is_found_before_anything_starts(tmp_path: Path, root: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if shutil.which("unshare") is None:
        pytest.skip("there are no mount namespaces here")
    command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", SMALL_DISK, str(disk)]
    env = {**os.environ, "PYTHONPATH": str(root), "DO_NOT_TRACK": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if "CalledProcessError" in done.stderr or "unshare" in done.stderr:
        pytest.skip("no tmpfs can be mounted here")
    assert done.returncode == 64, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "--force" in done.stderr and "8.0 MiB are free" in done.stderr
    assert done.stdout.strip() == "[]", "nothing was made"
