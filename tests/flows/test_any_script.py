"""``firstdiff check -- COMMAND``: scripts with no edit, in a folder that holds no file of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.command import name_of, profile_of_command
from probe.config import load_profile
from probe.store.reader import read_dump

SCRIPTS = Path(__file__).with_name("scripts")


@pytest.mark.parametrize(
    "command",
    [
        "python loop.py --accumulate 2",
        pytest.param("python loop.py --scaler", marks=pytest.mark.slow),
        pytest.param("python loop.py --compile", marks=pytest.mark.slow),
        pytest.param("python gan.py", marks=pytest.mark.slow),
        pytest.param("python inference.py", marks=pytest.mark.slow),
        pytest.param("python hf_trainer.py", marks=pytest.mark.slow),
        pytest.param("python accelerated.py", marks=pytest.mark.slow),
        pytest.param("accelerate launch --num_processes 1 --cpu accelerated.py", marks=pytest.mark.slow),
        pytest.param("torchrun --nproc-per-node 2 ddp.py", marks=pytest.mark.slow),
    ],
)
def test_a_deterministic_script_is_identical(check_command: Callable[..., Any], command: str) -> None:
    done = check_command(command)
    assert done.document["verdict"] == "identical", done.last_line
    assert done.document["not_compared"] == []
    assert done.document["trace"]["compared"] > 50
    assert done.document["key_data"]["compared"] > 10


@pytest.mark.parametrize(
    ("command", "step", "stage", "event", "cause", "name"),
    [
        ("python loop.py --fault forward", 1, "model", "forward_output", "module_forward", "model.h.0.mlp"),
        pytest.param(*("python loop.py --fault backward", 1, "model", "grad_output", "module_backward",
                       "model.h.1.mlp"), marks=pytest.mark.slow),
        pytest.param(*("python loop.py --fault weights", 1, "model", "optimizer", "optimizer",
                       "model.h.1.ln_2.weight"), marks=pytest.mark.slow),
        pytest.param(*("python loop.py --fault data", 0, "model.no_grad", "rng", "rng", "unseeded"),
                     marks=pytest.mark.slow),
        pytest.param(*("python loop.py --compile --fault forward", 1, "step", "data", "module_forward", "step"),
                     marks=pytest.mark.slow),
        pytest.param(*("python own_forward.py", 0, "model", "forward_output", "module_forward", "model"),
                     marks=pytest.mark.slow),
        pytest.param(*("python gan.py generator", 2, "G", "forward_output", "module_forward", "G.2"),
                     marks=pytest.mark.slow),
        pytest.param(*("python gan.py backward", 2, "D", "grad_input", "module_backward", "G.2"),
                     marks=pytest.mark.slow),
        pytest.param(*("python gan.py parameter", 1, "D", "weights", "weights", "D.2.bias"), marks=pytest.mark.slow),
        pytest.param(*("python inference.py fault", 2, "classifier.no_grad", "forward_output", "module_forward",
                       "classifier.2"), marks=pytest.mark.slow),
        pytest.param(*("python hf_trainer.py fault", 0, "actor_update", "forward_input", "module_input",
                       "actor.transformer.h.1.mlp"), marks=pytest.mark.slow),
        pytest.param(*("python accelerated.py data", 3, "net", "data", "data", "inputs"), marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_fault_is_located(
    check_command: Callable[..., Any], command: str, step: int, stage: str, event: str, cause: str, name: str
) -> None:
    document = check_command(command).document
    assert document["verdict"] == "divergent"
    first = document["first"]
    assert (first["step"], first["stage"], first["event"]) == (step, stage, event)
    assert (document["cause"]["kind"], document["cause"]["name"]) == (cause, name)
    if cause.startswith("module_") and "--compile" not in command:
        assert document["replay"]["module"] == name
        assert document["layers"]["reproduced"] is True
        assert any("msprobe" in note for note in document["notes"]), "that no layers were dumped, and why"


@pytest.mark.slow
def test_a_fault_of_one_rank_under_torchrun(check_command: Callable[..., Any], tmp_path: Path) -> None:
    document = check_command("torchrun --nproc-per-node 2 ddp.py fault").document
    assert (document["first"]["step"], document["first"]["rank"]) == (1, [1])
    assert (document["cause"]["kind"], document["cause"]["name"]) == ("module_forward", "net.2")
    assert document["replay"]["module"] == "net.2"
    assert sorted(read_dump(tmp_path / "out/c/msprobe_dump").ranks) == [0, 1]


@pytest.mark.slow
def test_what_is_recorded_ends_with_the_last_step_and_the_script_at_its_own(
    check_command: Callable[..., Any], tmp_path: Path
) -> None:
    document = check_command("python loop.py --steps 4", "--set", "check.steps=2").document
    assert document["verdict"] == "identical"
    assert document["cost"]["trainer_steps"] == 4
    assert "step 2: loss" in (tmp_path / "out/a/trainer.log").read_text()


@pytest.mark.slow
def test_a_script_that_fails_is_inconclusive_with_its_own_status(check_command: Callable[..., Any]) -> None:
    document = check_command("python loop.py --status 3").document
    assert document["verdict"] == "inconclusive"
    assert "exit status 3" in document["error"]


@pytest.mark.slow
def test_a_folder_whose_own_modules_have_our_names(root: Path, prefect_home: Path, tmp_path: Path) -> None:
    shutil.copy2(SCRIPTS / "inference.py", tmp_path)
    for name in ("probe", "tasks", "flows", "prefect"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a module of the user')")
    as_installed = "import sys; sys.path.remove(''); from flows.cli import main; main()"
    arguments = ["check", "--json", "--out", "out", "--", "python", "inference.py"]
    env = {**os.environ, "PYTHONPATH": str(root), "PREFECT_HOME": str(prefect_home), "DO_NOT_TRACK": "1"}
    env.pop("PREFECT_API_URL", None)
    done = subprocess.run(
        [sys.executable, "-c", as_installed, *arguments],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)["verdict"]) == (0, "identical"), done.stderr


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --steps 6", "train"),
        ("torchrun --nproc-per-node 2 examples/my_run.py", "my_run"),
        ("accelerate launch --cpu -m pkg.main", "pkg-main"),
        ("/opt/tools/train 'x'", "train"),
        ("uv run train", "train"),
        ("python -", "script"),
    ],
)
def test_a_check_is_named_after_its_script(command: str, name: str) -> None:
    assert name_of(command.split()) == name


def test_a_command_is_a_profile_as_any_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["python", "train.py", "--", "-x: {y}", ""]
    with profile_of_command(command) as file:
        assert file.stem == "train"
        trainer = load_profile(str(file), ["trainer.compile=eager"]).trainer
    assert trainer.kind == "script"
    assert (trainer.command, trainer.cwd, trainer.compile, trainer.step) == (command, str(tmp_path), "eager", "auto")
    assert not file.exists()
