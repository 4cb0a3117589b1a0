"""``firstdiff doctor PROFILE``: workers are started as a check starts them, and asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from probe.doctor import examine_profile, is_well, last_line, summary


def _profile(tmp_path: Path, **trainer: Any) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"trainer": {"kind": "command", "command": ["python", "train.py"], **trainer}}))
    return str(path)


def test_the_integrated_trainer_has_what_its_profile_asks_for(firstdiff: Callable[..., Any]) -> None:
    done = firstdiff("doctor", "demo", "--json")
    document = json.loads(done.stdout)
    assert done.status == 0, done.stderr
    said = document["workers_of_profile"]
    assert list(said["workers"]) == ["0"]
    assert said["workers"]["0"]["determinism"]["in_effect"]["deterministic_algorithms"] is True
    assert said["workers"]["0"]["models"]["actor"]["attention"] == "eager"
    assert (said["not_in_effect"], said["unlike"], said["problem"]) == ([], [], None)
    assert "1 worker of demo: what the profile asks for is in effect in each" in done.stderr


def test_what_the_environment_of_a_command_undoes_is_told(tmp_path: Path) -> None:
    found = examine_profile(_profile(tmp_path, env={"PYTHONHASHSEED": "5", "HCCL_DETERMINISTIC": "false"}))
    assert found["not_in_effect"] == [
        "HCCL_DETERMINISTIC is false, determinism.hccl_deterministic asks for true",
        "PYTHONHASHSEED is 5, determinism.python_hash_seed asks for 0",
    ]
    document = {"missing": [], "workers_of_profile": found}
    assert not is_well(document)
    assert last_line(document).endswith("2 settings are not in effect, 0 are not alike")
    assert any("deterministic_algorithms" in note for note in found["notes"]), "the script's own calls come later"


@pytest.mark.slow
def test_each_rank_is_asked(tmp_path: Path) -> None:
    found = examine_profile(_profile(tmp_path, nproc_per_node=2))
    assert list(found["workers"]) == ["0", "1"]
    assert found["unlike"] == []


def test_a_command_that_is_no_python_cannot_be_asked(tmp_path: Path) -> None:
    found = examine_profile(_profile(tmp_path, command=["./train.sh"]))
    assert found["workers"] is None
    assert found["problem"] == "the workers cannot be asked: ./train.sh is no Python interpreter"
    assert not is_well({"missing": [], "workers_of_profile": found})


def test_an_interpreter_without_torch_is_told(tmp_path: Path) -> None:
    fake = tmp_path / "python3"
    fake.write_text("#!/bin/sh\necho no module named torch >&2\nexit 1\n")
    fake.chmod(0o755)
    found = examine_profile(_profile(tmp_path, command=[str(fake), "train.py"]))
    assert "no module named torch" in found["problem"]


def test_bad_usage_is_64(firstdiff: Callable[..., Any]) -> None:
    assert firstdiff("doctor", "no-such-profile").status == 64
    done = firstdiff("doctor", "--set", "check.steps=1")
    assert (done.status, done.stderr.strip()) == (64, "firstdiff: --set: name a profile too")


def test_the_summary_names_what_differs() -> None:
    from probe.doctor import examine

    document = examine()
    document["workers_of_profile"] = {
        **{"profile": "p", "workers": {"0": {}, "1": {}}, "problem": None, "notes": ["a note"]},
        **{"not_in_effect": ["rank 1: x"], "unlike": ["rank 1: y"]},
    }
    lines = summary(document)
    assert lines[-3:] == ["not in effect: rank 1: x", "not alike: rank 1: y", "a note"]
    assert any(line.startswith("cpu_model: ") for line in lines)


@pytest.mark.slow
def test_a_script_is_asked_as_a_command_is(tmp_path: Path) -> None:
    found = examine_profile(_profile(tmp_path, kind="script", env={"HCCL_DETERMINISTIC": "false"}))
    assert found["problem"] is None
    assert found["not_in_effect"] == ["HCCL_DETERMINISTIC is false, determinism.hccl_deterministic asks for true"]


def test_what_no_check_will_say_of_verls_workers_is_not_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "verl_stand_in"))
    profile = tmp_path / "verl.yaml"
    profile.write_text("trainer: {kind: verl}\ndeterminism: enforce\n")
    found = examine_profile(str(profile))
    assert (list(found["workers"]), found["problem"]) == (["0"], None)
    (note,) = found["notes"]
    assert "no check records" in note and "after the first training step" not in note
