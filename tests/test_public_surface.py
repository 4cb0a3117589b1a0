"""What others rely on: names, import directions, what importing costs, and every command in the README."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PACKAGES = (
    *("probe", "probe.adapters", "probe.collect", "probe.compare", "probe.config", "probe.disk", "probe.history"),
    *("probe.launch", "probe.locate", "probe.replay", "probe.report"),
)

BELOW = {
    "types": set(),
    "errors": set(),
    "keys": set(),
    "masking": set(),
    "privacy": set(),
    "language": {"errors"},
    "config": {"language", "masking", "types", "errors", "keys"},
    "store": {"language", "types", "errors"},
    "compare": {"language", "masking", "store", "types", "errors", "keys"},
    "locate": {"language", "compare", "store", "types", "errors"},
    "report": {"language", "locate", "compare", "store", "types", "errors"},
    "collect": {"language", "store", "types", "errors"},
    "adapters": {"language", "collect", "store", "types", "errors"},
    "replay": {"language", "collect", "launch", "store", "types", "errors"},
    "launch": {"language", "adapters", "masking", "config", "store", "types", "errors"},
    "history": {"language", "masking", "compare", "config", "store", "types", "errors", "keys"},
    "disk": {"language", "history", "launch", "config", "store", "types", "errors", "keys"},
    "trainer": {"collect", "config", "types", "errors", "privacy"},
    "comparison": {"language", "report", "locate", "compare", "store", "types", "errors"},
    "checks": {"launch", "report", "errors"},
    "doctor": {"language", "collect", "compare", "config", "launch", "errors"},
    "bench": {"collect", "trainer", "launch", "locate", "compare", "config", "store", "types", "errors"},
}
"""What each part of ``probe`` may import: imports point down only."""


@pytest.mark.parametrize("name", PACKAGES)
def test_all_names_exist(name: str) -> None:
    module = importlib.import_module(name)
    assert [entry for entry in module.__all__ if not hasattr(module, entry)] == []


def _imports(file: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_imports_point_down_only(root: Path) -> None:
    wrong = []
    for file in sorted((root / "probe").rglob("*.py")):
        part = file.relative_to(root / "probe").parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        for name in _imports(file):
            if name.split(".")[0] in ("flows", "tasks", "prefect"):
                wrong.append(f"{file} imports {name}")
            if not name.startswith("probe."):
                continue
            target = name.split(".")[1]
            if target != part and target not in BELOW[part]:
                wrong.append(f"{file} imports {name}")
    assert wrong == []


def _loaded_by(statement: str) -> set[str]:
    code = f"{statement}; import sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_probe_loads_neither_torch_nor_prefect() -> None:
    loaded = _loaded_by("import probe")
    assert loaded.isdisjoint({"torch", "prefect", "pydantic", "yaml", "pandas", "msprobe", "numpy"})


def test_the_probe_in_a_trainer_loads_no_orchestration() -> None:
    loaded = _loaded_by("from probe import Probe; Probe.from_env()")
    assert "torch" in loaded
    assert loaded.isdisjoint({"prefect", "pydantic", "pandas", "msprobe"})


def test_comparing_key_data_needs_no_torch() -> None:
    assert "torch" not in _loaded_by("import probe.comparison")


def test_command_line_says_what_is_wrong_before_prefect_starts() -> None:
    assert "prefect" not in _loaded_by("import flows.cli")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["Missing command"]),
        (["chek"], ["chek"]),
        (["check"], ["profile"]),
        (["check", "nope"], ["nope", "demo", "deterministic"]),
        (["check", "missing.yaml"], ["missing.yaml", "no such profile file"]),
        (["check", "demo", "--set", "check.stepz=3"], ["demo.yaml", "check.stepz", "steps"]),
        (["check", "demo", "--set", "check.steps=many"], ["check.steps", "integer", "many"]),
        (["check", "demo", "--set", "nonsense"], ["--set", "nonsense"]),
        (["check", "demo", "--set", "faults.0.stage=actor_dance"], ["faults.0.stage", "actor_dance"]),
        (["check", "demo", "--set", "trainer.config.model.path=/nowhere"], ["model.path", "/nowhere"]),
        (["check", "demo", "--set", "trainer.config.megatron_training.data_path=x.jsonl"], ["data_path", "x.jsonl"]),
        (
            ["check", "demo", "--set", "trainer.config.rl_config.use_integrated_worker=false"],
            ["use_integrated_worker", "integrated"],
        ),
        (["check", "demo", "--set", "trainer.config.msprobe_config.msprobe=false"], ["msprobe_config.msprobe"]),
        (["check", "demo", "--set", "trainer.config.msprobe_config.dump_path=x"], ["msprobe_config.dump_path"]),
        (["check", "demo", "--set", "trainer.config.msprobe_config.reference_dmp=true"], ["reference_dump"]),
        (["check", "demo", "--out", "/proc/nowhere"], ["/proc/nowhere"]),
        (["check", "demo", "--set", "check.keep=some"], ["demo.yaml", "check.keep", "all", "divergent: 30"]),
        (["check", "demo", "--", "python", "train.py"], ["profile", "--"]),
        (["check", "--"], ["no command behind --"]),
        (["check", "--set", "trainer.step=stride", "--", "python", "train.py"], ["trainer.step", "optimizer"]),
        (["compare", "only-one"], ["dump_b"]),
        (["history"], ["checks", "--checks"]),
        (["history", "nope", "--checks", "."], ["nope", "none at all"]),
        (["prune", "--checks", "."], ["--older-than", "--max-checks", "--max-bytes"]),
        (["prune", "--checks", ".", "--max-bytes", "many"], ["many", "20G"]),
        (["prune", "--checks", "nowhere", "--max-checks", "1"], ["nowhere", "--checks"]),
        (["replay", "nowhere"], ["nowhere", "no such folder"]),
        (["replay", ".", "--times", "1"], ["--times"]),
        (["unpack", "nowhere", "x"], ["nowhere", "no such dump folder"]),
        (["bench", "nope"], ["nope", "recording, bytes, digests, device-digest, trace, locate, overhead"]),
    ],
)
def test_bad_usage_is_one_sentence_and_64(
    firstdiff: Callable[..., Any], arguments: list[str], words: list[str]
) -> None:
    done = firstdiff(*arguments)
    assert done.status == 64, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word.lower() in done.stderr.lower()


def test_json_errors_are_json(firstdiff: Callable[..., Any]) -> None:
    done = firstdiff("check", "nope", "--json")
    assert done.document["verdict"] is None
    assert "nope" in done.document["error"]


def test_an_occupied_folder_is_refused(firstdiff: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/work.txt").write_text("precious")
    done = firstdiff("check", "demo", "--out", "mine")
    assert done.status == 64
    assert (tmp_path / "mine/work.txt").read_text() == "precious"


def test_comparing_what_is_no_dump_is_inconclusive(firstdiff: Callable[..., Any], tmp_path: Path) -> None:
    assert firstdiff("compare", tmp_path, tmp_path / "nowhere").status == 2


def test_doctor_says_what_is_here(firstdiff: Callable[..., Any]) -> None:
    done = firstdiff("doctor", "--json")
    assert done.status == 0
    assert done.document["packages"]["torch"]
    assert done.document["missing"] == []
    assert "deterministic_algorithms" in done.document["determinism"]


def test_every_command_of_the_readme_exists(firstdiff: Callable[..., Any], root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", readme, re.DOTALL))
    commands = [line.split("#")[0].split() for line in blocks.splitlines() if line.strip()]
    assert ["make", "demo"] in commands
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    for command in commands:
        if command[0] == "make":
            assert command[1] in targets, command
        elif command[0] == "firstdiff":
            assert firstdiff(command[1], "--help").status == 0, command
            if command[1] == "check" and command[2] != "mine.yaml" and "--" not in command:
                assert (root / "profiles" / f"{command[2]}.yaml").is_file(), command
        else:
            assert command[:3] == ["python", "-m", "probe.trainer"], command
            assert (root / command[4]).is_file()


def test_every_profile_of_the_readme_ships(root: Path) -> None:
    readme = (root / "README.md").read_text(encoding="utf-8")
    for file in (root / "profiles").glob("*.yaml"):
        assert f"| `{file.stem}` |" in readme
