"""The index of checks: written by many, read by all, made anew from the folders, and never in a check's way."""

from __future__ import annotations

import json
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from probe.errors import DamagedHistoryError, HistoryError
from probe.history import History, fingerprint_of, history_file, past_checks, read_check, rebuild, record
from probe.history.start import variant_of, without_secrets

MakeCheck = Callable[..., Path]


def test_what_is_recorded_reads_back(make_check: MakeCheck, checks: Path) -> None:
    folder = make_check(3, "divergent", overrides=("check.steps=2",))
    written = record(folder)
    (found,) = past_checks(checks)
    assert found == written == read_check(folder)
    assert found.time == datetime(2026, 1, 3, 2, tzinfo=timezone.utc)
    assert (found.profile, found.variant, found.verdict, found.folder) == (
        "mine",
        ("check.steps=2",),
        "divergent",
        folder,
    )
    assert found.cause is not None and found.cause["name"] == "actor.model.norm"
    assert found.experiment["environment"]["versions"]["torch"] == "2.13.0"
    assert json.dumps(found.as_dict())


def test_a_check_is_recorded_once_however_often(make_check: MakeCheck, checks: Path) -> None:
    folder = make_check(1)
    for _ in range(3):
        record(folder)
    assert len(past_checks(checks)) == 1


def test_the_index_is_made_anew_from_the_folders(make_check: MakeCheck, checks: Path) -> None:
    for night in range(1, 5):
        record(make_check(night))
    known = past_checks(checks)
    history_file(checks).unlink()
    assert past_checks(checks) == known
    assert history_file(checks).is_file()


def test_the_first_check_that_is_recorded_brings_the_older_ones(make_check: MakeCheck, checks: Path) -> None:
    for night in range(1, 4):
        make_check(night)
    record(make_check(4))
    assert [check.time.day for check in past_checks(checks)] == [1, 2, 3, 4]


def test_what_was_removed_stays_in_the_history(make_check: MakeCheck, checks: Path) -> None:
    one, two, three = (make_check(night) for night in range(1, 4))
    for folder in (one, two, three):
        record(folder)
    shutil.rmtree(one)
    History(history_file(checks)).mark_removed([read_check(two).id])
    shutil.rmtree(two)

    assert [check.removed is not None for check in rebuild(checks)] == [True, True, False]
    assert [check.time.day for check in past_checks(checks)] == [1, 2, 3]


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no SQLite": lambda file: file.write_bytes(b"not a database " * 500),
    "cut off": lambda file: file.write_bytes(file.read_bytes()[:5000]),
    "a damaged page": lambda file: file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 8192),
    "a row that is no JSON": lambda file: _sql(file, "UPDATE checks SET experiment = '{'"),
    "a row without a time": lambda file: _sql(file, "UPDATE checks SET time = 'tonight'"),
    "no table": lambda file: _sql(file, "DROP TABLE checks; CREATE TABLE other (x)"),
}


def _sql(file: Path, script: str) -> None:
    connection = sqlite3.connect(file)
    connection.executescript(script)
    connection.close()


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_index_is_one_sentence_and_can_be_made_anew(make_check: MakeCheck, checks: Path, name: str) -> None:
    for night in range(1, 4):
        record(make_check(night))
    file = history_file(checks)
    DAMAGE[name](file)
    with pytest.raises(DamagedHistoryError, match="--rebuild") as raised:
        past_checks(checks)
    assert str(file) in str(raised.value)

    assert len(rebuild(checks)) == 3
    assert len(past_checks(checks)) == 3
    assert len(list(checks.glob("history.sqlite.damaged-*"))) == 1, "what was there is kept aside"


@pytest.mark.parametrize(
    ("script", "words"),
    [("CREATE TABLE precious (x)", "no history of Firstdiff"), ("PRAGMA user_version = 99", "later Firstdiff")],
)
def test_a_foreign_database_is_never_touched(
    make_check: MakeCheck, checks: Path, script: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_check(1)
    file = history_file(checks)
    if "user_version" in script:
        record(folder)
    _sql(file, script)
    before = file.read_bytes()
    for reads in (past_checks, rebuild):
        with pytest.raises(HistoryError, match=words):
            reads(checks)
    with caplog.at_level(logging.WARNING):
        assert record(folder) is None
    assert words in caplog.text
    assert file.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_folder_that_cannot_be_written_warns_and_is_still_read(make_check: MakeCheck, root: Path) -> None:
    """As another user, for whom the folder is read-only."""
    made = make_check(1, "divergent")
    code = """
import logging, os, sys
from pathlib import Path
from sqlalchemy import create_engine
from probe.history import past_checks, record
create_engine("sqlite://")  # the interpreter may be root's alone
logging.basicConfig(stream=sys.stderr)
os.setgid(65534); os.setuid(65534)
assert record(Path(sys.argv[1])) is None
print([check.verdict for check in past_checks(Path(sys.argv[1]).parent)])
"""
    with tempfile.TemporaryDirectory() as public:
        os.chmod(public, 0o755)
        folder = Path(shutil.copytree(made, Path(public, "checks", made.name)))
        done = subprocess.run(
            [sys.executable, "-c", code, folder],
            env={**os.environ, "PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert os.listdir(folder.parent) == [folder.name]
    assert done.stdout.strip() == "['divergent']"
    assert "not in the history" in done.stderr and "Traceback" not in done.stderr


def test_many_processes_write_at_once(make_check: MakeCheck, checks: Path, root: Path) -> None:
    folders = [make_check(night) for night in range(1, 10)]
    code = "import sys; from pathlib import Path; from probe.history import record\n"
    code += "for name in sys.argv[1:]: assert record(Path(name))"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, *folders[n::3]], env={**os.environ, "PYTHONPATH": str(root)})
        for n in range(3)
    ]
    assert [process.wait(60) for process in processes] == [0] * 3
    assert [check.time.day for check in past_checks(checks)] == list(range(1, 10))


def test_one_file_can_hold_the_history_of_all_folders(
    make_check: MakeCheck, checks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIRSTDIFF_HISTORY", str(tmp_path / "elsewhere/all.sqlite"))
    folder = make_check(1)
    record(folder)
    assert [check.folder for check in past_checks(checks)] == [folder]
    assert not (checks / "history.sqlite").exists()


FOLDERS: dict[str, Callable[[Path], object]] = {
    "no verdict": lambda folder: (folder / "verdict.json").unlink(),
    "a verdict that is no JSON": lambda folder: (folder / "verdict.json").write_text("{"),
    "a verdict of another kind": lambda folder: (folder / "verdict.json").write_text('{"format": 1, "verdict": []}'),
    "a later format": lambda folder: (folder / "verdict.json").write_text('{"format": 9, "verdict": "identical"}'),
    "a deep verdict": lambda folder: (folder / "verdict.json").write_text("[" * 100_000),
    "a pipe": lambda folder: [(folder / "verdict.json").unlink(), os.mkfifo(folder / "verdict.json")],
    "a link": lambda folder: [
        shutil.move(folder, folder.parent.parent / "moved"),
        folder.symlink_to(folder.parent.parent / "moved"),
    ],
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_that_says_no_verdict_is_left_out(make_check: MakeCheck, checks: Path, name: str) -> None:
    make_check(1)
    FOLDERS[name](make_check(2))
    assert [check.time.day for check in past_checks(checks)] == [1]


def test_a_check_that_says_nothing_of_its_beginning(make_check: MakeCheck, checks: Path) -> None:
    """One that an earlier version made."""
    folder = make_check(1)
    (folder / "origin.json").unlink()
    older = folder.rename(checks / "demo-20260105-031500-12ab")
    shutil.rmtree(older / "a")
    (found,) = past_checks(checks)
    assert found.profile == "demo"
    assert found.time == datetime(2026, 1, 5, 3, 15).astimezone(timezone.utc)
    assert found.revision == {} and found.environment_digest is None
    assert found.experiment["configurations"]["trainer"]["kind"] == "command", "from profile.yaml"


def test_a_profile_that_unfolds_without_end(make_check: MakeCheck, checks: Path) -> None:
    folder = make_check(1)
    shutil.rmtree(folder / "a")
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (folder / "profile.yaml").write_text("\n".join(lines))
    (found,) = past_checks(checks)
    assert found.experiment == {"configurations": {}}


def test_texts_that_no_database_holds(make_check: MakeCheck, checks: Path) -> None:
    folder = make_check(1, "divergent", name="bad \ud800 name \0")
    assert record(folder) is not None
    (found,) = past_checks(checks)
    assert found.cause is not None and "name" in found.cause["name"]


def test_the_fingerprint_is_of_the_fault_alone() -> None:
    def document(**changes: Any) -> dict[str, Any]:
        first = {"step": 2, "stage": "actor_update", "rank": [0], "event": "x", "name": "m", "tag": None, "call": 0}
        cause = {"kind": "module_forward", "name": "m", "explanation": "why"}
        found: dict[str, Any] = {"verdict": "divergent", "first": first, "cause": cause}
        found["key_data"] = {"first": {"tag": "loss"}}
        for path, value in changes.items():
            section, _, key = path.partition("__")
            found[section] = {**found[section], key: value} if key else value
        return found

    same = fingerprint_of(document())
    assert same is not None
    for change in ({"first__step": 3}, {"first__rank": [1]}, {"first__call": 1}, {"cause__explanation": "x"}):
        assert fingerprint_of(document(**change)) == same, change
    for change in (
        {"first__stage": "x"},
        {"cause__kind": "x"},
        {"cause__name": "x"},
        {"key_data__first": {"tag": "x"}},
    ):
        assert fingerprint_of(document(**change)) != same, change
    assert fingerprint_of(document(verdict="identical")) is None


def test_secrets_are_not_written_down() -> None:
    assert variant_of(["trainer.env.HF_TOKEN=abc", "trainer.env.MODE=x", "trainer.env={PASSWORD: abc}"]) == [
        "trainer.env=***",
        "trainer.env.HF_TOKEN=***",
        "trainer.env.MODE=x",
    ]
    masked = without_secrets({"trainer": {"env": {"AWS_SECRET_ACCESS_KEY": "abc", "MODE": "x"}}})
    assert masked == {"trainer": {"env": {"AWS_SECRET_ACCESS_KEY": "***", "MODE": "x"}}}
