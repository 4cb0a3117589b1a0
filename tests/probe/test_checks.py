"""Whose a check's folder is: one check's at a time, its flow run's for ever, and never without a verdict."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from probe.checks import ENDED, conclude_abandoned, open_check
from probe.errors import DumpError, UsageError
from probe.launch import check_folder, claim, is_running, running_checks
from probe.launch.claim import MARKER, Owner


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def verdict(folder: Path) -> dict:
    return json.loads((folder / "verdict.json").read_text())


def _enter(barrier, out, found):
    barrier.wait()
    try:
        with open_check("demo", out) as folder:
            (folder / "profile.yaml").touch()
            found.put(str(folder))
    except UsageError as error:
        found.put(str(error))


@pytest.mark.parametrize("out", [None, "mine"])
def test_checks_that_start_at_the_same_moment_never_share_a_folder(out):
    context = multiprocessing.get_context("fork")
    for attempt in range(3):
        barrier, found = context.Barrier(12), context.Queue()
        name = f"{out}{attempt}" if out else None
        processes = [context.Process(target=_enter, args=(barrier, name, found)) for _ in range(12)]
        for process in processes:
            process.start()
        said = [found.get(timeout=60) for _ in processes]
        for process in processes:
            process.join()
        folders = [one for one in said if Path(one).is_dir()]
        assert len(set(folders)) == len(folders) == (1 if out else 12)
        assert all("--out" in one for one in said if one not in folders)


def test_a_folder_is_its_flow_run_s_however_often_it_is_tried():
    with open_check("demo", None, "aaaa-1") as first:
        (first / "a").mkdir()
    with open_check("demo", None, "aaaa-1") as again:
        assert again == first
        assert (again / "a").is_dir()
    with open_check("demo", None, "aaaa-2") as other:
        assert other != first
    with open_check("demo", None) as unnamed:
        assert unnamed not in (first, other)
    with open_check("demo", str(first), "aaaa-1") as named:
        assert named == first
    for flow_run in (None, "aaaa-2"):
        with pytest.raises(UsageError, match="not empty"), open_check("demo", str(first), flow_run):
            pass


def test_a_flow_run_that_still_runs_is_not_joined():
    with open_check("demo", None, "one") as folder:
        assert is_running(folder)
        assert running_checks(folder.parent) == [folder]
        with pytest.raises(UsageError, match=f"process {os.getpid()} on"), open_check("demo", None, "one"):
            pass
        assert is_running(folder)
    assert not is_running(folder)
    assert running_checks(folder.parent) == []


def test_a_check_of_several_hosts_does_not_go_on():
    with open_check("demo", None, "one") as folder:
        (folder / "hosts").mkdir()
    with pytest.raises(UsageError, match="several hosts"), open_check("demo", None, "one"):
        pass


def test_what_an_earlier_attempt_concluded_is_gone():
    with pytest.raises(KeyboardInterrupt), open_check("demo", None, "one") as folder:
        raise KeyboardInterrupt
    assert verdict(folder)["error"] == ENDED
    with open_check("demo", None, "one"):
        assert not (folder / "verdict.json").exists()


def test_an_error_is_the_verdict_unless_there_is_one():
    with pytest.raises(DumpError), open_check("demo", None) as folder:
        raise DumpError("a: cannot be read")
    assert (verdict(folder)["verdict"], verdict(folder)["error"]) == ("inconclusive", f"{ENDED}: a: cannot be read")
    with pytest.raises(DumpError), open_check("demo", None) as folder:
        (folder / "verdict.json").write_text('{"verdict": "identical"}')
        raise DumpError("report.html: cannot be written")
    assert verdict(folder)["verdict"] == "identical"


def test_an_error_that_an_interruption_ran_into_is_an_interruption():
    """Prefect raises a ValueError of its own when it is interrupted at some moments."""
    with pytest.raises(ValueError), open_check("demo", None) as folder:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise ValueError("Task run is not set")  # noqa: B904  (so does Prefect)
    assert (verdict(folder)["verdict"], verdict(folder)["error"]) == ("inconclusive", ENDED)


KILLED = """
import os, sys
from probe.checks import open_check
with open_check("demo", None, "killed") as folder:
    (folder / "a/msprobe_dump").mkdir(parents=True)
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def killed() -> Path:
    """The folder of a check whose process was killed."""
    process = subprocess.Popen([sys.executable, "-c", KILLED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = Path(process.stdout.readline().strip())
    assert is_running(folder)
    assert conclude_abandoned(folder.parent) == []
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return folder


def test_the_next_check_concludes_what_a_kill_left(killed):
    assert not is_running(killed)
    assert not (killed / "verdict.json").exists()
    with open_check("demo", None):
        assert (verdict(killed)["verdict"], verdict(killed)["error"]) == ("inconclusive", ENDED)
        assert verdict(killed)["runs"]["a"] == "a/msprobe_dump"
        assert not (killed / MARKER).exists()


def test_a_killed_check_that_is_tried_again_is_not_concluded_but_goes_on(killed):
    with open_check("demo", None, "killed") as folder:
        assert folder == killed
        assert is_running(killed)
    assert not (killed / "verdict.json").exists()


def rewrite(folder: Path, **changes: object) -> None:
    marker = folder / MARKER
    marker.write_text(json.dumps({**json.loads(marker.read_text()), **changes}))


def test_a_process_number_that_came_again_is_another_process(killed):
    me = Owner.of_this_process()
    rewrite(killed, pid=me.pid)
    assert not is_running(killed)
    rewrite(killed, started=me.started)
    assert is_running(killed)
    rewrite(killed, boot="another")
    assert not is_running(killed), "the machine was started anew"


def test_a_check_elsewhere_runs_as_long_as_its_marker_is_touched(killed):
    rewrite(killed, host="elsewhere", boot="other")
    for content in ((killed / MARKER).read_text(), "", "{", "[]", '{"pid": 1}', '{"pid": "x"}'):
        (killed / MARKER).write_text(content)
        assert is_running(killed), content
        old = time.time() - claim.SILENT_SECONDS - 1
        os.utime(killed / MARKER, (old, old))
        assert not is_running(killed), content
    assert conclude_abandoned(killed.parent) == [killed]


def test_a_flow_run_that_is_tried_again_elsewhere_waits_until_its_first_process_is_silent(killed, monkeypatch):
    rewrite(killed, host="elsewhere", boot="other")
    monkeypatch.setattr(claim, "SILENT_SECONDS", 1.0)
    os.utime(killed / MARKER)
    start = time.monotonic()
    with open_check("demo", None, "killed") as folder:
        assert folder == killed
    assert 0.9 < time.monotonic() - start < 10


def test_a_process_elsewhere_that_shows_a_sign_keeps_its_check(killed, monkeypatch):
    rewrite(killed, host="elsewhere", boot="other")
    threading.Timer(0.3, os.utime, [killed / MARKER]).start()
    with pytest.raises(UsageError, match="on elsewhere runs"), open_check("demo", None, "killed"):
        pass


def test_strange_things_in_the_folder_of_checks_are_left_alone(killed, tmp_path):
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / MARKER).write_text((killed / MARKER).read_text())
    (killed.parent / "link").symlink_to(tmp_path / "target")
    (killed.parent / "file").touch()
    (killed.parent / "dangling").mkdir()
    (killed.parent / "dangling" / MARKER).symlink_to("nowhere")
    assert killed in conclude_abandoned(killed.parent)
    assert not (tmp_path / "target/verdict.json").exists()
    assert conclude_abandoned(tmp_path / "nowhere") == []


def test_a_folder_that_is_not_empty_is_refused():
    Path("mine").mkdir()
    Path("mine/work.txt").touch()
    for flow_run in (None, "one"):
        with pytest.raises(UsageError, match="not empty"):
            check_folder("demo", "mine", flow_run)
