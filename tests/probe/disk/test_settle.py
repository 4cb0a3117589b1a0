"""After the verdict: what the profile keeps, compressed, in the history; and nothing of it can fail a check."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from probe.comparison import compare_dumps
from probe.config import load_profile
from probe.disk import expire, settle
from probe.history import past_checks
from probe.store.packing import is_packed, unpacked

MakeCheck = Callable[..., Path]


def _profile(folder: Path, *overrides: str):
    return load_profile(str(folder / "profile.yaml"), list(overrides))


def _verdict(folder: Path) -> str:
    return str(compare_dumps(folder / "a/msprobe_dump", folder / "b/msprobe_dump", None)["verdict"])


def _values(folder: Path) -> int:
    """Value files of run a, packed or not."""
    with unpacked(folder / "a/msprobe_dump") as dump:
        return len(list(dump.rglob("*.npy")))


@pytest.mark.parametrize("verdict", ["identical", "divergent", "inconclusive"])
def test_dumps_are_compressed_and_keep_everything(make_check: MakeCheck, checks: Path, verdict: str) -> None:
    folder = make_check("one", verdict=verdict)
    before, values = _verdict(folder), _values(folder)
    settle(folder, _profile(folder, "check.compress=true"))

    assert all(is_packed(folder / run / "msprobe_dump") for run in "ab")
    assert (_verdict(folder), _values(folder)) == (before, values)
    (check,) = past_checks(checks)
    assert check.peak_bytes is not None and check.peak_bytes > 0


def test_without_compression_nothing_changes(make_check: MakeCheck) -> None:
    folder = make_check("one")
    settle(folder, _profile(folder))
    assert (folder / "a/msprobe_dump/index/rank0.jsonl").is_file()


@pytest.mark.parametrize("compress", ["true", "false"])
def test_an_identical_check_keeps_digests_only_where_it_is_told_so(make_check: MakeCheck, compress: str) -> None:
    same, other = make_check("same"), make_check("other", verdict="divergent")
    for folder in (same, other):
        settle(folder, _profile(folder, "check.keep.identical=digests", f"check.compress={compress}"))

    assert (_values(same), _values(other)) == (0, 4)
    assert (_verdict(same), _verdict(other)) == ("identical", "divergent")
    assert not list(same.glob("*/.reducing-*"))


def test_a_packed_check_can_be_reduced_later(make_check: MakeCheck) -> None:
    folder = make_check("one")
    settle(folder, _profile(folder, "check.compress=true"))
    settle(folder, _profile(folder, "check.keep.identical=digests"))
    assert (_values(folder), _verdict(folder)) == (0, "identical")


def test_values_of_divergent_checks_go_after_their_days(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    keep = "{divergent: 30}"
    make_check("old", 40, "divergent", keep)
    make_check("old-inconclusive", 35, "inconclusive", keep)
    make_check("old-identical", 35, "identical", keep)
    make_check("kept for ever", 35, "divergent", "all", profile="other")
    make_check("young", 20, "divergent", keep)
    make_check("newest", 10, "divergent", keep)

    reduced = expire(past_checks(checks), now)
    assert [folder.name for folder in reduced] == ["old", "old-inconclusive"]
    assert [_values(checks / name) for name in ("old", "young", "old-identical", "kept for ever")] == [0, 4, 4, 4]
    assert _verdict(checks / "old") == "divergent"
    assert expire(past_checks(checks), now) == [], "they are done"


def test_the_newest_divergent_check_keeps_its_values_whatever_its_age(
    make_check: MakeCheck, checks: Path, now: datetime
) -> None:
    make_check("only", 400, "divergent", "{divergent: 1}")
    make_check("since", 1, "identical", "{divergent: 1}")
    assert expire(past_checks(checks), now + timedelta(days=9)) == []
    assert _values(checks / "only") == 4


def test_runs_that_did_not_finish_keep_their_values(make_check: MakeCheck, checks: Path, now: datetime) -> None:
    folder = make_check("broken", 40, "inconclusive", "{divergent: 30}", complete=False)
    expire(past_checks(checks), now)
    assert _values(folder) == 4


def test_what_cannot_be_done_is_a_warning(make_check: MakeCheck, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_check("one")
    os.symlink("/etc/passwd", folder / "a/msprobe_dump/data/link")
    with caplog.at_level(logging.WARNING):
        settle(folder, _profile(folder, "check.compress=true"))
    assert "no plain file" in caplog.text
    assert not is_packed(folder / "a/msprobe_dump") and is_packed(folder / "b/msprobe_dump")


def test_a_full_disk_is_a_warning(make_check: MakeCheck, caplog: pytest.LogCaptureFixture) -> None:
    import resource

    folder = make_check("one", size=50_000)
    settle(folder, _profile(folder))
    history = (folder.parent / "history.sqlite").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    try:
        with caplog.at_level(logging.WARNING):
            settle(folder, _profile(folder, "check.compress=true"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "is not compressed" in caplog.text and "not in the history" in caplog.text
    assert (_verdict(folder), _values(folder)) == ("identical", 4)
    assert (folder.parent / "history.sqlite").read_bytes() == history


def test_a_check_whose_folder_is_gone_is_no_error(make_check: MakeCheck) -> None:
    folder = make_check("one")
    profile = _profile(folder)
    shutil.rmtree(folder)
    settle(folder, profile)
