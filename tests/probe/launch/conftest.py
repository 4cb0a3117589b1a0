"""Child processes to watch, and a way to watch the watcher."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.launch import run_process


def is_running(pid: int) -> bool:
    """Whether a process runs; one that ended and was not collected yet does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Waits a little for a process to end; whether it did."""

    def wait(pid: int) -> bool:
        deadline = time.monotonic() + 3
        while is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        return not is_running(pid)

    return wait


@pytest.fixture
def watch(tmp_path: Path) -> Callable[..., list[str]]:
    """Runs a shell script, or any command, with ``run_process``; returns the lines that the caller saw."""

    def run(command: str | list[str], **options: Any) -> list[str]:
        lines: list[str] = []
        defaults: dict[str, Any] = {
            "cwd": tmp_path,
            "env": dict(os.environ),
            "log_file": tmp_path / "trainer.log",
            "on_line": lines.append,
        }
        script = ["sh", "-c", command] if isinstance(command, str) else command
        run_process(script, **{**defaults, **options})
        return lines

    return run


@pytest.fixture
def watch_elsewhere(tmp_path: Path) -> Iterator[Callable[..., tuple[str, int]]]:
    """Runs ``run_process`` in a process of its own: one that could hang, or need too much memory."""
    started: list[subprocess.Popen[str]] = []

    def run(child: str, options: str = "", on_line: str = "lambda line: None", timeout: float = 15) -> tuple[str, int]:
        """Returns what the watcher says in the end, and its largest memory in MiB."""
        (tmp_path / "child.py").write_text(child)
        watcher = f"""
import os, re, sys, time
from pathlib import Path
from probe.errors import TrainerError
from probe.launch.process import run_process
said = "ended well"
try:
    run_process([sys.executable, "-S", "child.py"], cwd=Path("."), env=dict(os.environ), log_file=Path("trainer.log"),
        on_line={on_line}, {options})
except TrainerError as error:
    said = str(error)
print(said, int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024, sep="\\n")
"""
        started.append(
            subprocess.Popen([sys.executable, "-c", watcher], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        )
        try:
            out, _ = started[-1].communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"run_process did not return within {timeout:g} s")
        said, memory = out.strip().splitlines()
        return said, int(memory)

    yield run
    for process in started:  # without its reader, the child ends at its next write
        process.kill()
        process.communicate()
    (tmp_path / "trainer.log").unlink(missing_ok=True)
