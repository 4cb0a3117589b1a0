"""Ten nights: since when a profile is divergent, what changed then, and whether it is the same fault."""

from __future__ import annotations

import copy
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.history import Story, past_checks, record, stories, summary_markdown

MakeCheck = Callable[..., Path]


def _told(checks: Path) -> Story:
    (story,) = stories(past_checks(checks))
    return story


def _git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@t"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def _ten_nights(make_check: MakeCheck, change: Callable[[], dict[str, object]]) -> None:
    """Five identical nights, a change, five divergent ones; each recorded when it ends."""
    made: dict[str, object] = {}
    for night in range(1, 11):
        if night == 6:
            made = change()
        record(make_check(night, "divergent" if night >= 6 else "identical", step=night, **made))


def test_a_new_library_at_night_six_is_named(make_check: MakeCheck, checks: Path, environment: Any) -> None:
    newer = copy.deepcopy(environment)
    newer["versions"]["torch"] = "2.14.0"
    newer["determinism"]["in_effect"]["random_states"]["torch"] = "7c"  # a result, no cause
    _ten_nights(make_check, lambda: {"environment": newer})

    story = _told(checks)
    assert story.last_identical is not None and story.last_identical.time.day == 5
    assert story.first_divergent is not None and story.first_divergent.time.day == 6
    assert [(c.part, c.key, c.before, c.after) for c in story.changes] == [
        ("environment", "environment.versions.torch", "2.13.0", "2.14.0")
    ]
    assert (len(story.divergent), story.same_cause, story.flaky, story.is_new) == (5, True, False, False)
    text = summary_markdown([story])
    for words in ("2026-01-06", "environment.versions.torch", "2.13.0", "2.14.0", "same as before"):
        assert words in text, words


def test_another_learning_rate_at_night_six_is_named(make_check: MakeCheck, checks: Path, project: Path) -> None:
    def change() -> dict[str, object]:
        profile = project / "mine.yaml"
        profile.write_text(profile.read_text().replace("0.1", "0.2"))
        return {}

    _ten_nights(make_check, change)

    assert [(c.part, c.key, c.before, c.after) for c in _told(checks).changes] == [
        ("configuration", "trainer.command.3", "0.1", "0.2")
    ]


def test_another_commit_at_night_six_is_named(make_check: MakeCheck, checks: Path, project: Path) -> None:
    _git(project, "init", "-q")
    _git(project, "add", ".")
    _git(project, "commit", "-qm", "one")
    before = _git(project, "rev-parse", "HEAD")

    def change() -> dict[str, object]:
        (project / "train.py").write_text("import random\n")
        _git(project, "commit", "-qam", "two")
        return {}

    _ten_nights(make_check, change)

    (changed,) = _told(checks).changes
    assert (changed.part, changed.key) == ("code", "commit")
    assert (changed.before, changed.after) == (before, _git(project, "rev-parse", "HEAD"))


def test_an_uncommitted_change_is_named(make_check: MakeCheck, checks: Path, project: Path) -> None:
    _git(project, "init", "-q")
    _git(project, "add", ".")
    _git(project, "commit", "-qm", "one")

    def change() -> dict[str, object]:
        (project / "train.py").write_text("import random\n")
        (project / "helper.py").write_text("new and unknown to git\n")
        return {}

    _ten_nights(make_check, change)

    changed = {change.key: (change.before, change.after) for change in _told(checks).changes}
    assert changed["dirty"] == (False, True)
    assert changed["changed_files"] == ([], ["helper.py", "train.py"])


def test_a_change_by_an_override_is_found_in_what_the_profile_did_before(make_check: MakeCheck, checks: Path) -> None:
    for night in range(1, 6):
        record(make_check(night))
    record(make_check(6, "divergent", overrides=("determinism.python_hash_seed=null",)))

    *_, story = stories(past_checks(checks))
    assert story.name == "mine determinism.python_hash_seed=null"
    assert [(c.key, c.before, c.after) for c in story.changes] == [("determinism.python_hash_seed", 0, None)]


def test_seeds_of_one_profile_have_histories_of_their_own(make_check: MakeCheck, checks: Path) -> None:
    for night in range(1, 4):
        record(make_check(night, overrides=("determinism.num_threads=1",)))
        record(make_check(night, "divergent", overrides=("determinism.num_threads=2", "check.steps=2")))

    one, two = stories(past_checks(checks))
    assert (one.latest.verdict, len(one.checks)) == ("divergent", 3)
    assert (two.latest.verdict, two.divergent) == ("identical", ())


def test_a_verdict_that_goes_to_and_fro_is_flaky(make_check: MakeCheck, checks: Path) -> None:
    for night, verdict in enumerate(("identical", "divergent", "identical", "divergent"), 1):
        record(make_check(night, verdict))

    story = _told(checks)
    assert (story.flaky, story.switches, story.is_new, story.unexplained) == (True, 3, False, False)
    assert story.last_identical is not None and story.last_identical.time.day == 3
    assert "Flaky" in summary_markdown([story])


def test_a_verdict_that_changes_with_its_conditions_is_not_flaky(
    make_check: MakeCheck, checks: Path, environment: Any
) -> None:
    other = {**environment, "world_size": 2}
    for night in range(1, 7):
        differs = night % 2 == 0
        record(make_check(night, "divergent" if differs else "identical", other if differs else None))

    assert _told(checks).flaky is False


def test_a_first_divergent_night_is_new_and_another_fault_is_another_cause(make_check: MakeCheck, checks: Path) -> None:
    record(make_check(1))
    record(make_check(2, "divergent"))
    assert (_told(checks).is_new, _told(checks).same_cause) == (True, None)

    record(make_check(3, "divergent", name="actor.lm_head"))
    story = _told(checks)
    assert (story.is_new, story.same_cause) == (False, False)
    assert story.cause_since is not None and story.cause_since.time.day == 3
    assert "another than before" in summary_markdown([story])


def test_nights_without_a_verdict_do_not_end_a_streak(make_check: MakeCheck, checks: Path) -> None:
    for night, verdict in enumerate(("identical", "inconclusive", "divergent", "inconclusive"), 1):
        record(make_check(night, verdict))

    story = _told(checks)
    assert story.latest.verdict == "inconclusive"
    assert [check.time.day for check in story.divergent] == [3]
    assert story.last_identical is not None and story.last_identical.time.day == 1
    assert "the trainer failed" in summary_markdown([story])


@pytest.mark.parametrize("verdict", ["divergent", "inconclusive"])
def test_nothing_from_a_profile_or_trainer_is_markup(
    make_check: MakeCheck, checks: Path, verdict: str, environment: Any
) -> None:
    hostile = "<img src=x onerror=alert(1)>|`**x**`[a](http://evil)\n# head\x1b[31m"
    record(make_check(1, environment={**environment, "world_size": hostile}))
    record(make_check(2, verdict, name=hostile))

    text = summary_markdown(stories(past_checks(checks)))
    for markup in ("<img", "http://", "\n# head", "\x1b", "`**"):
        assert markup not in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.replace("\\|", "").count("|") for row in rows} <= {7, 5}, "no cell ends early"
