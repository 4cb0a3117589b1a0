"""What workers say of themselves, against what was asked for and against each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from probe.collect.environment import describe
from probe.compare import not_in_effect, read_environments, unlike_workers, worker_notes
from probe.store import layout


def _said(**requested: Any) -> dict[str, Any]:
    return json.loads(json.dumps(describe(requested)))


def _set(said: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    changed = deepcopy(said)
    *path, last = key.split(".")
    inner = changed
    for part in path:
        inner = inner[part]
    inner[last] = value
    return changed


def test_what_is_asked_for_and_in_effect_is_not_told() -> None:
    said = _said(deterministic_algorithms=False, num_threads=None, python_hash_seed=None)
    effect = said["determinism"]["in_effect"]
    asked = {"num_threads": effect["num_threads"], "seed": effect["torch_seed"]}
    assert not_in_effect({0: _said(**asked)}) == []
    assert unlike_workers({0: said, 1: said}) == []


@pytest.mark.parametrize(
    ("requested", "words"),
    [
        ({"deterministic_algorithms": True}, "deterministic_algorithms is false, determinism.deterministic_algorithms"),
        ({"num_threads": 977}, "num_threads is "),
        ({"seed": 3}, "torch_seed is "),
        ({"hccl_deterministic": "strict"}, "HCCL_DETERMINISTIC is not set, determinism.hccl_deterministic asks for"),
    ],
)
def test_what_is_not_in_effect_is_told_with_the_key_that_asks(requested: dict[str, Any], words: str) -> None:
    (line,) = not_in_effect({0: _said(**requested)})
    assert line.startswith(words)


def test_warn_only_is_told_though_deterministic_algorithms_are_on() -> None:
    said = _set(_said(deterministic_algorithms=True), "determinism.in_effect.deterministic_algorithms", True)
    assert not_in_effect({0: said}) == []
    (line,) = not_in_effect({0: _set(said, "determinism.in_effect.warn_only", True)})
    assert "only warn" in line


def test_ranks_that_say_the_same_share_a_sentence() -> None:
    good = _set(_said(num_threads=977), "determinism.in_effect.num_threads", 977)
    bad = _set(good, "determinism.in_effect.num_threads", 2)
    workers = {rank: bad if rank in (1, 2, 3, 7) else good for rank in range(9)}
    assert not_in_effect(workers) == ["ranks 1-3, 7: num_threads is 2, determinism.num_threads asks for 977"]
    assert unlike_workers(workers) == [
        "ranks 1-3, 7: determinism.in_effect.num_threads is 2, that of rank 0 977",
    ]


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("versions.torch", True),
        ("platform.cpu_model", True),
        ("build.torch", True),
        ("determinism.in_effect.sdpa.flash", True),
        ("determinism.in_effect.variables.HCCL_ALGO", True),
        ("limits.cpus", False),
        ("determinism.in_effect.torch_seed", False),
    ],
)
def test_workers_of_one_run_that_differ_are_told_where_that_is_no_design(key: str, told: bool) -> None:
    said = _said()
    assert bool(unlike_workers({0: said, 1: _set(said, key, "other")})) is told


def test_many_settings_are_counted(tmp_path: Path) -> None:
    said = _said()
    other = deepcopy(said)
    other["determinism"]["in_effect"]["variables"] = {f"NCCL_{number}": "1" for number in range(40)}
    (tmp_path / layout.ENVIRONMENT).write_text(json.dumps(said))
    (tmp_path / "environment.rank1.json").write_text(json.dumps(other))
    notes = worker_notes(tmp_path)
    assert len(notes) == 11
    assert notes[-1].endswith("more settings of the workers are like that")


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"determinism": 3}', '{"determinism": {"requested": [], "in_effect": 1}}']
)
def test_a_damaged_file_of_a_worker_is_no_error(tmp_path: Path, content: str) -> None:
    (tmp_path / layout.ENVIRONMENT).write_text(content)
    assert not_in_effect(read_environments(tmp_path)) == []


def test_a_folder_that_is_gone_says_nothing(tmp_path: Path) -> None:
    assert read_environments(tmp_path / "gone") == {}
    assert worker_notes(tmp_path / "gone") == []


def test_environments_are_read_by_rank(tmp_path: Path, monkeypatch: Any) -> None:
    for rank in (None, 1, 12):
        (tmp_path / layout.of_rank(layout.ENVIRONMENT, rank)).write_text(json.dumps({"world_size": rank or 0}))
    reading: Callable[[Path], dict[int, Any]] = read_environments
    assert {rank: said["world_size"] for rank, said in reading(tmp_path).items()} == {0: 0, 1: 1, 12: 12}
