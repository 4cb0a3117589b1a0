"""The tasks: named as the six steps, thin, and never cached."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from prefect import Task
from prefect.cache_policies import NO_CACHE

from tasks import collect, compare, locate, report

TASKS = [
    value for module in (collect, compare, locate, report) for value in vars(module).values() if isinstance(value, Task)
]


def test_the_six_steps_are_there() -> None:
    numbers = {task.name.split()[0] for task in TASKS}
    assert {"1", "2", "3", "4", "5", "6"} <= numbers


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_no_task_is_cached(task: Task) -> None:  # type: ignore[type-arg]
    assert task.cache_policy == NO_CACHE
    assert task.persist_result is False


@pytest.mark.parametrize("name", ["collect", "compare", "locate", "report"])
def test_tasks_are_thin(root: Path, name: str) -> None:
    source = (root / "tasks" / f"{name}.py").read_text(encoding="utf-8")
    assert len(source.splitlines()) < 100
    assert not any(isinstance(node, ast.For | ast.While | ast.Try) for node in ast.walk(ast.parse(source)))
