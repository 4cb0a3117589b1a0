"""Pruning: by age, number and size; never what runs, the newest divergent check, or what is none of ours."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import pytest

from probe.disk import folder_size, parse_size, prune, pruned_lines
from probe.errors import UsageError
from probe.history import past_checks, record
from probe.launch.claim import MARKER, Owner

MakeCheck = Callable[..., Path]


def _names(checks: Path) -> list[str]:
    return sorted(path.name for path in checks.iterdir() if path.is_dir())


def test_by_age(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    for days in (1, 29, 31, 90):
        make_check(f"day-{days}", days)
    result = prune(checks, older_than=30, now=now)
    assert _names(checks) == ["day-1", "day-29"]
    assert [one.folder.name for one in result.removed] == ["day-90", "day-31"]
    assert "day-90" in pruned_lines(result)[0] and "older than 30 days" in pruned_lines(result)[0]


def test_by_number(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    for days in range(6):
        make_check(f"day-{days}", days)
    prune(checks, max_checks=2, now=now)
    assert _names(checks) == ["day-0", "day-1"]


def test_by_size(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    folders = [make_check(f"day-{days}", days) for days in range(4)]
    room = sum(map(folder_size, folders[:2]))
    result = prune(checks, max_bytes=room, now=now)
    assert _names(checks) == ["day-0", "day-1"]
    assert result.bytes > 0 and result.as_dict()["bytes"] == result.bytes


def test_the_newest_divergent_check_of_each_profile_stays(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    make_check("a-old", 90, "divergent")
    make_check("a-newest", 80, "divergent")
    make_check("a-later", 70, "identical")
    make_check("b-newest", 60, "divergent", profile="other")
    result = prune(checks, older_than=1, now=now)
    assert _names(checks) == ["a-newest", "b-newest"]
    assert [one.reason for one in result.protected] == [
        "the newest divergent check of mine",
        "the newest divergent check of other",
    ]
    assert prune(checks, max_checks=0, now=now).removed == []


def test_a_check_that_runs_stays(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    running = make_check("running", 90, None)
    (running / MARKER).write_text(json.dumps(asdict(Owner.of_this_process())))
    dead = make_check("dead", 90, None)
    (dead / MARKER).write_text(json.dumps({**asdict(Owner.of_this_process()), "boot": "another", "pid": 1}))
    result = prune(checks, older_than=1, now=now)
    assert _names(checks) == ["running"]
    assert [(one.folder.name, one.verdict) for one in result.removed] == [("dead", None)]


def test_a_dry_run_removes_nothing_and_says_the_same(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    for days in (1, 40, 50):
        make_check(f"day-{days}", days)
    would = prune(checks, older_than=30, dry_run=True, now=now)
    assert _names(checks) == ["day-1", "day-40", "day-50"]
    assert pruned_lines(would)[-1].startswith("would remove 2 checks")
    assert [one.folder for one in prune(checks, older_than=30, now=now).removed] == [
        one.folder for one in would.removed
    ]


def test_the_history_keeps_the_rows(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    for days in (1, 40):
        record(make_check(f"day-{days}", days))
    prune(checks, older_than=30, now=now)
    assert [(check.folder.name, check.removed is None) for check in past_checks(checks)] == [
        ("day-40", False),
        ("day-1", True),
    ]


STRANGERS: dict[str, Callable[[Path, Path], object]] = {
    "an empty folder": lambda folder, _: folder.mkdir(),
    "somebody's folder": lambda folder, _: [folder.mkdir(), (folder / "verdict.json").write_text("{}")],
    "two files of these names": lambda folder, _: [
        folder.mkdir(),
        (folder / "verdict.json").write_text('{"format": 1, "verdict": "guilty"}'),
        (folder / "profile.yaml").write_text("x"),
    ],
    "a link to a check": lambda folder, check: [
        shutil.move(check, folder.parent.parent / "x"),
        folder.symlink_to("../x"),
    ],
    "a file": lambda folder, _: folder.write_text("x"),
}


@pytest.mark.parametrize("name", STRANGERS)
def test_what_is_no_check_stays(make_check: MakeCheck, checks: Path, now: datetime, name: str) -> None:
    STRANGERS[name](checks / "stranger", make_check("check", 90))
    inside = sorted((checks / "stranger").rglob("*"))
    prune(checks, older_than=1, max_checks=0, max_bytes=0, now=now)
    assert os.path.lexists(checks / "stranger")
    assert sorted((checks / "stranger").rglob("*")) == inside
    assert _names(checks) in ([], ["stranger"]), "the check itself is gone"


def test_no_link_is_followed_out_of_a_check(make_check: MakeCheck, checks: Path, tmp_path: Path, now: datetime) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/work.txt").write_text("precious")
    folder = make_check("check", 90)
    (folder / "a/link").symlink_to(tmp_path / "precious")
    (folder / "work.txt").symlink_to(tmp_path / "precious/work.txt")
    prune(checks, older_than=1, now=now)
    assert not folder.exists()
    assert (tmp_path / "precious/work.txt").read_text() == "precious"


def test_what_a_killed_prune_left_goes_with_the_next(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    make_check("half", 90).rename(checks / ".removing-0123abcd-half")
    make_check("young", 1)
    result = prune(checks, older_than=30, now=now)
    assert (_names(checks), result.removed) == (["young"], [])


def test_what_is_not_said_is_not_guessed(checks: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--older-than"):
        prune(checks)
    with pytest.raises(UsageError, match="no such folder"):
        prune(tmp_path / "nowhere", max_checks=1)


def test_sizes() -> None:
    assert [parse_size(text) for text in ("0", "1k", "1.5G", "20 GiB", "7MB")] == [0, 1024, 3 << 29, 20 << 30, 7 << 20]
    for text in ("", "many", "-1", "1X", "1e3"):
        with pytest.raises(UsageError, match="size"):
            parse_size(text)


@pytest.mark.parametrize("limits", [{"older_than": -1}, {"older_than": 1e308}, {"max_checks": -5}, {"max_bytes": -1}])
def test_a_limit_that_cannot_be_removes_nothing(tmp_path: Path, limits: dict[str, float]) -> None:
    (tmp_path / "one").mkdir()
    with pytest.raises(UsageError, match="must be from 0"):
        prune(tmp_path, **limits)
    assert (tmp_path / "one").is_dir()
