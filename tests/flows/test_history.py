"""What real checks leave behind: a history, compressed dumps, and what ``firstdiff prune`` makes of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from probe.comparison import compare_dumps
from probe.history import past_checks

TRAIN = """
import time
import torch
from probe import Probe

torch.manual_seed(1)
probe = Probe.from_env()
for step in range(2):
    probe.save({"prompts": torch.arange(4.0) + step + NOISE})
    probe.step()
"""
FIRST_NIGHT = datetime(2026, 1, 1, 2, tzinfo=timezone.utc)


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


class Project:
    """A trainer in a repository, and its checks."""

    def __init__(self, folder: Path, check: Callable[..., Any]) -> None:
        self.folder, self.checks = folder / "project", folder / "checks"
        self.folder.mkdir()
        self._check = check
        (self.folder / "mine.yaml").write_text(
            "trainer: {kind: command, command: [python, train.py], time_limit: 120}\n"
            "determinism: {num_threads: 1}\ncheck: {keep: {identical: digests}}\n"
        )
        _git(self.folder, "init", "-q")

    def commit(self, noise: str) -> str:
        (self.folder / "train.py").write_text(TRAIN.replace("NOISE", noise))
        _git(self.folder, "add", ".")
        _git(self.folder, "commit", "-qm", noise)
        return _git(self.folder, "rev-parse", "HEAD")

    def night(self, number: int) -> Any:
        """A real check, moved to a night by what it says of its own beginning."""
        folder = self.checks / f"night{number:02}"
        done = self._check(self.folder / "mine.yaml", "--out", folder)
        assert done.status in (0, 1), done.stderr
        origin = folder / "origin.json"
        started = (FIRST_NIGHT + timedelta(days=number - 1)).isoformat()
        origin.write_text(json.dumps({**json.loads(origin.read_text()), "started": started}))
        return done


@pytest.fixture
def project(tmp_path: Path, check: Callable[..., Any]) -> Project:
    return Project(tmp_path, check)


def test_a_check_enters_the_history_compressed_and_is_pruned(
    project: Project, firstdiff: Callable[..., Any], tmp_path: Path
) -> None:
    commit = project.commit("0")
    assert project.night(1).document["verdict"] == "identical"
    folder = project.checks / "night01"
    assert not list(folder.rglob("*.npy")) and (folder / "a/msprobe_dump/packed.tar.zst").is_file()

    dumps = [folder / run / "msprobe_dump" for run in "ab"]
    compared = compare_dumps(*dumps, None)
    assert compared["verdict"] == "identical"
    assert "check.keep" in str(compared["notes"])

    done = firstdiff("history", "mine", "--checks", project.checks, "--json")
    (story,) = done.document["profiles"]
    (known,) = story["checks"]
    assert (done.status, story["profile"], known["verdict"]) == (0, "mine", "identical")
    assert known["revision"]["commit"] == commit and known["revision"]["dirty"] is False
    heading, row, *_ = done.stderr.splitlines()
    assert heading.split()[0] == "Profile" and row.split()[0] == "mine" and "identical" in row
    assert known["peak_bytes"] > 0 and known["cost"]["trainer_steps"] == 4

    pruned = firstdiff("prune", "--checks", project.checks, "--max-checks", "0", "--json")
    assert [Path(one["folder"]).name for one in pruned.document["removed"]] == ["night01"]
    assert not folder.exists()
    assert [check.removed is None for check in past_checks(project.checks)] == [False]


@pytest.mark.slow
def test_ten_nights_with_a_commit_at_night_six(project: Project, firstdiff: Callable[..., Any]) -> None:
    """Real checks; only the times are data."""
    before = project.commit("0")
    after = ""
    for number in range(1, 11):
        if number == 6:
            after = project.commit("time.time_ns() % 1000003")
        verdict = project.night(number).document["verdict"]
        assert verdict == ("identical" if number < 6 else "divergent")

    done = firstdiff("history", "--checks", project.checks, "--rebuild", "--json")
    (story,) = done.document["profiles"]
    assert story["last_identical"]["time"].startswith("2026-01-05")
    assert story["divergent_since"]["time"].startswith("2026-01-06")
    assert story["changes"] == [{"part": "code", "key": "commit", "before": before, "after": after}]
    assert (story["divergent_checks"], story["same_cause"], story["flaky"], story["new"]) == (5, True, False, False)
    for words in ("2026-01-06", "commit of the code", before, after, "The cause is the same as before"):
        assert words in done.stderr, words


def test_an_empty_profile_and_a_limit_that_is_none_are_named(firstdiff: Callable[..., Any], tmp_path: Path) -> None:
    told = firstdiff("history", " ", "--checks", tmp_path)
    assert told.status == 64 and told.last_line == (
        "firstdiff: PROFILE is empty; name a profile, or leave it out for all of them"
    )
    for option, value in (("--older-than", "1e9"), ("--max-checks", "9" * 20), ("--max-bytes", "9" * 30)):
        told = firstdiff("prune", "--checks", tmp_path, option, value)
        assert told.status == 64 and told.last_line.startswith(f"firstdiff: {option}: ")
