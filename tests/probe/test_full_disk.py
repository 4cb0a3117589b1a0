"""A disk that is really full: a small tmpfs in a mount namespace of its own, and a limit on the size of files.

What lies in the tmpfs is gone with the namespace, so it is copied out when the command has ended.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.comparison import compare_dumps
from probe.errors import DumpError
from probe.store.reader import read_dump

MakeDump = Callable[..., Path]
ROOT = Path(__file__).resolve().parents[2]

NAMESPACE = """
import os, shutil, subprocess, sys
disk, copy, options, *command = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", disk], check=True)
status = subprocess.run(command).returncode
shutil.copytree(disk, copy)
sys.exit(status)
"""

LIMIT = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
os.execv(sys.argv[2], sys.argv[2:])
"""

TRAINER = """
import os, sys
import torch
from probe import Probe
from probe.types import RunSpec

dump, on_error, steps, size, ending = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
torch.set_num_threads(1)
probe = Probe(RunSpec(run="a", dump_path=dump, on_error=on_error))
for step in range(steps):
    probe.save({"loss": torch.full((size,), float(step))})
    probe.step()
    if ending == "by itself" and step == 2:
        raise RuntimeError("the loader went away")
if ending == "closed":
    probe.close()
if ending == "in the end":
    raise RuntimeError("the loader went away")
print("trained to the end")
"""


@functools.cache
def _no_namespace() -> str | None:
    """Why no tmpfs can be mounted here."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "there are no mount namespaces here"
    probe = ["unshare", "--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs -o size=16k tmpfs /mnt"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no tmpfs can be mounted here: {done.stderr.strip()}"


@dataclass(frozen=True)
class Ended:
    """A command that ended on a small disk."""

    status: int
    stdout: str
    stderr: str
    copy: Path
    """What it left there."""

    @property
    def said(self) -> Any:
        return json.loads((self.copy / "dump/manifest.json").read_bytes())


Run = Callable[..., Ended]


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """Where the small disk is mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def on_disk(disk: Path, tmp_path: Path) -> Run:
    """Runs a Python command with a small disk; keyword arguments are environment variables."""
    if (reason := _no_namespace()) is not None:
        pytest.skip(reason)

    def run(*arguments: object, options: str = "size=2m", **variables: str) -> Ended:
        copy = tmp_path / "copy"
        command = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", NAMESPACE]
        return _run([*command, str(disk), str(copy), options, sys.executable, *map(str, arguments)], copy, **variables)

    return run


@pytest.fixture
def with_limit(disk: Path) -> Run:
    """Runs a Python command that may write no file longer than a limit."""

    def run(*arguments: object, limit: int = 128 << 10, **variables: str) -> Ended:
        command = [sys.executable, "-c", LIMIT, str(limit), sys.executable, *map(str, arguments)]
        return _run(command, disk, **variables)

    return run


def _run(command: list[str], copy: Path, **variables: str) -> Ended:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "DO_NOT_TRACK": "1", **variables}
    done = subprocess.run(
        command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr, copy)


@pytest.fixture
def trainer(tmp_path: Path) -> Path:
    file = tmp_path / "train.py"
    file.write_text(TRAINER)
    return file


BIG = 100_000
"""Elements of a value of which a few fill the disk, and one is longer than the limit."""
HUGE = 200 * BIG
"""Elements of a value that is still being looked at when a training of one step has ended."""
slow = pytest.mark.slow
SIZES = ["size=2m", *(pytest.param(size, marks=slow) for size in ("size=600k", "nr_inodes=60", "size=2m,nr_inodes=30"))]


def _assert_incomplete(ended: Ended, reason: str) -> None:
    assert ended.said["complete"] is False
    (error,) = ended.said["errors"]
    assert "recording stopped at step" in error and reason in error
    dump = read_dump(ended.copy / "dump")
    assert not dump.complete and any(reason in problem for problem in dump.problems)
    assert not list(ended.copy.rglob("*.partial")), "no half file is left"
    for record in dump.records.get(0, []):
        assert record.file is None or (ended.copy / "dump" / record.file).is_file()
    assert compare_dumps(ended.copy / "dump", ended.copy / "dump", None)["verdict"] == "inconclusive"


def _assert_one_sentence(ended: Ended, disk: Path, reason: str) -> None:
    last = ended.stderr.strip().splitlines()[-1]
    assert "DumpError" in last and str(disk / "dump") in last and reason in last
    assert "trained to the end" not in ended.stdout
    assert ended.status == 1


@pytest.mark.parametrize("options", SIZES)
def test_training_stops_with_one_sentence(on_disk: Run, disk: Path, trainer: Path, options: str) -> None:
    ended = on_disk(trainer, disk / "dump", "raise", 400, BIG, "", options=options)
    _assert_one_sentence(ended, disk, "No space left")
    _assert_incomplete(ended, "No space left")


@pytest.mark.parametrize("options", SIZES)
@pytest.mark.parametrize("ending", ["", pytest.param("closed", marks=slow)])
def test_training_goes_on_where_it_may(on_disk: Run, disk: Path, trainer: Path, ending: str, options: str) -> None:
    ended = on_disk(trainer, disk / "dump", "continue", 40, BIG, ending, options=options)
    assert (ended.status, ended.stdout.strip()) == (0, "trained to the end"), ended.stderr
    (line,) = ended.stderr.strip().splitlines()
    assert "No space left" in line and "training goes on" in line
    _assert_incomplete(ended, "No space left")


@pytest.mark.parametrize("ending", ["", "closed"])
def test_a_disk_that_is_full_only_when_all_is_saved(on_disk: Run, disk: Path, trainer: Path, ending: str) -> None:
    """What is written beside the training may fail when the training has ended: at exit it can only be said."""
    ended = on_disk(trainer, disk / "dump", "raise", 1, HUGE, ending)
    _assert_incomplete(ended, "No space left")
    if ending == "closed" or ended.status:  # or it failed while the last step was handed over
        _assert_one_sentence(ended, disk, "No space left")
    else:
        (line,) = ended.stderr.strip().splitlines()
        assert line.startswith(f"firstdiff: {disk / 'dump'}: recording stopped") and "No space left" in line


@pytest.mark.parametrize("on_error", ["raise", pytest.param("continue", marks=slow)])
def test_a_disk_that_is_full_before_the_start(on_disk: Run, disk: Path, trainer: Path, on_error: str) -> None:
    ended = on_disk(trainer, disk / "dump", on_error, 3, 10, "", options="size=16k")
    assert "No space left" in ended.stderr
    if on_error == "raise":
        _assert_one_sentence(ended, disk, "No space left")
    else:
        assert (ended.status, ended.stdout.strip()) == (0, "trained to the end"), ended.stderr
    try:
        assert not read_dump(ended.copy / "dump").complete
    except DumpError as error:
        assert str(ended.copy / "dump") in str(error)


@slow
@pytest.mark.parametrize("on_error", ["raise", "continue"])
@pytest.mark.parametrize(("ending", "steps", "size"), [("by itself", 3, 10 * BIG), ("in the end", 1, 10 * BIG)])
def test_the_trainers_own_error_is_never_hidden(
    on_disk: Run, disk: Path, trainer: Path, on_error: str, ending: str, steps: int, size: int
) -> None:
    ended = on_disk(trainer, disk / "dump", on_error, steps, size, ending)
    assert ended.status == 1
    if on_error == "continue" or "loader went away" in ended.stderr:
        assert "RuntimeError: the loader went away" in ended.stderr
    else:  # the disk was full before the trainer came that far
        _assert_one_sentence(ended, disk, "No space left")
    assert ended.said["complete"] is False


@pytest.mark.parametrize("on_error", ["raise", "continue"])
def test_an_error_after_the_disk_was_full_is_the_last_word(
    on_disk: Run, disk: Path, trainer: Path, on_error: str
) -> None:
    """The check quotes the last line: when the trainer failed by itself, it must be the trainer's."""
    ended = on_disk(trainer, disk / "dump", on_error, 1, HUGE, "in the end")
    assert ended.status == 1
    assert ended.said["complete"] is False
    if on_error == "continue" or "loader went away" in ended.stderr:
        assert ended.stderr.strip().splitlines()[-1] == "RuntimeError: the loader went away"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits")
class TestLimit:
    def test_training_stops_with_one_sentence(self, with_limit: Run, disk: Path, trainer: Path) -> None:
        ended = with_limit(trainer, disk / "dump", "raise", 400, BIG, "")
        _assert_one_sentence(ended, disk, "File too large")
        _assert_incomplete(ended, "File too large")

    def test_training_goes_on_where_it_may(self, with_limit: Run, disk: Path, trainer: Path) -> None:
        ended = with_limit(trainer, disk / "dump", "continue", 40, BIG, "")
        assert (ended.status, ended.stdout.strip()) == (0, "trained to the end"), ended.stderr
        _assert_incomplete(ended, "File too large")

    def test_an_index_that_grows_too_long(self, with_limit: Run, disk: Path, trainer: Path) -> None:
        """Part of a line may have been written: it is never read."""
        ended = with_limit(trainer, disk / "dump", "raise", 4000, 1, "closed", limit=70_000)
        _assert_one_sentence(ended, disk, "File too large")
        assert ended.said["complete"] is False
        dump = read_dump(disk / "dump")
        steps = [record.step for record in dump.records[0]]
        assert steps == list(range(len(steps))) and len(steps) > 100
        assert compare_dumps(disk / "dump", disk / "dump", None)["verdict"] == "inconclusive"


# ---- the check's own folder ----


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    script = TRAINER.replace('probe = Probe(RunSpec(run="a", dump_path=dump, on_error=on_error))', "").replace(
        "torch.set_num_threads(1)", "torch.set_num_threads(1); probe = Probe.from_env()"
    )
    (tmp_path / "checked.py").write_text(script)
    command = f"[python, checked.py, x, x, '40', '{BIG}', '']"
    (tmp_path / "mine.yaml").write_text(f"trainer:\n  kind: command\n  command: {command}\n")
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    ("options", "on_error"),
    [
        ("size=2m", "raise"),
        pytest.param("size=2m", "continue", marks=slow),
        pytest.param("size=16k", "raise", marks=slow),
        pytest.param("size=4k", "raise", marks=slow),
        pytest.param("nr_inodes=8", "raise", marks=slow),
        pytest.param("nr_inodes=60", "continue", marks=slow),
    ],
)
def test_a_check_on_a_full_disk(
    on_disk: Run, disk: Path, profile: Path, prefect_api: str, options: str, on_error: str
) -> None:
    arguments = ("check", profile, "--out", disk / "out", "--set", f"record.on_error={on_error}", "--json")
    ended = on_disk("-m", "flows.cli", *arguments, options=options, PREFECT_API_URL=prefect_api)
    assert ended.status == 2, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    document = json.loads(ended.stdout)
    assert document["verdict"] == "inconclusive"
    assert "No space left" in (document["error"] or "") + "".join(document.get("not_compared", []))
    assert str(disk / "out") in ended.stderr


@pytest.mark.parametrize(
    "options", ["size=4k", pytest.param("size=12k", marks=slow), pytest.param("nr_inodes=4", marks=slow)]
)
def test_a_comparison_on_a_full_disk(on_disk: Run, disk: Path, make_dump: MakeDump, options: str) -> None:
    a, b = (make_dump(name, [("loss", torch.ones(100))], keep_values=False) for name in "ab")
    good = on_disk("-m", "flows.cli", "compare", a, b, "--out", disk / "out", "--json", options="size=20m")
    assert (good.status, json.loads(good.stdout)["verdict"]) == (0, "identical"), good.stderr
    assert (good.copy / "out/report.html").is_file()
    shutil.rmtree(good.copy)
    ended = on_disk("-m", "flows.cli", "compare", a, b, "--out", disk / "out", "--json", options=options)
    assert ended.status == 2, ended.stderr
    assert "Traceback" not in ended.stderr, ended.stderr
    document = json.loads(ended.stdout)
    assert document["verdict"] == "inconclusive"
    assert "No space left" in document["error"] and str(disk / "out") in document["error"]
    for file in ended.copy.rglob("*.json"):
        json.loads(file.read_bytes())
    assert not list(ended.copy.rglob("*.partial"))
