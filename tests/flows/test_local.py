"""``firstdiff check`` without a server: several at once on a fresh machine, quiet, with progress for who watches."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TRAINER = """
import os, sys, time
import torch
from probe import Probe

torch.manual_seed(0)
probe = Probe.from_env()
print("\\x1b[31mred\\x07 and loud")
for step in range(4):
    probe.save({"loss": float(step), "reward mean": 1.0})
    probe.step()
    time.sleep(float(os.environ.get("PAUSE", "0")))
    if os.environ.get("FAILS"):
        sys.exit("\\x1b[31mthe data went away")
"""
ROOT = Path(__file__).resolve().parents[2]
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def environment(home: Path, **variables: str) -> dict[str, str]:
    """What a user without any settings has, with a home of its own for Prefect."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DO_NOT_TRACK"))}
    return {**kept, "PREFECT_HOME": str(home), "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **variables}


@dataclass
class Command:
    """A command that runs, on a terminal or not."""

    process: subprocess.Popen[bytes]
    terminal: int | None = None
    seen: bytes = b""

    def finish(self) -> tuple[int, str, str]:
        """Exit status, standard output, and what people saw."""
        reader = threading.Thread(target=self._read_terminal)
        reader.start()
        output, errors = self.process.communicate(timeout=300)
        reader.join()
        return self.process.returncode, output.decode(), (errors or self.seen).decode()

    def _read_terminal(self) -> None:
        while self.terminal is not None:
            try:
                self.seen += os.read(self.terminal, 1 << 16)
            except OSError:  # the other side is closed
                os.close(self.terminal)
                return


def start(folder: Path, home: Path, *arguments: str, on_terminal: bool = False, **variables: str) -> Command:
    """Starts ``firstdiff check`` of the tiny trainer."""
    (folder / "train.py").write_text(TRAINER)
    (folder / "tiny.yaml").write_text("trainer: {kind: command, command: [python, train.py]}\ncheck: {steps: 4}\n")
    master, slave = pty.openpty() if on_terminal else (None, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "check", "tiny.yaml", *arguments],
        cwd=folder,
        env=environment(home, **variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE if slave is None else slave,
    )
    if slave is not None:
        os.close(slave)
    return Command(process, master)


def left_over(home: Path) -> list[str]:
    """Processes that still have this home in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"PREFECT_HOME={home}".encode() in file.read_bytes().split(b"\0"):
                found.append((file.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prefect")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Iterator[dict[str, tuple[int, str, str]]]:
    """Three checks started at once on a fresh machine: in a pipe, on a terminal, and with -v."""
    folder = tmp_path_factory.mktemp("checks")
    commands = {
        "pipe": start(folder, home, "--json", PAUSE="0.9"),
        "terminal": start(folder, home, "--json", on_terminal=True, PAUSE="0.4"),
        "verbose": start(folder, home, "-v"),
    }
    yield {name: command.finish() for name, command in commands.items()}


def test_checks_started_at_once_on_a_fresh_machine_all_work(three: dict[str, Any], home: Path) -> None:
    assert {name: done[0] for name, done in three.items()} == dict.fromkeys(three, 0), three
    for name in ("pipe", "terminal"):
        assert json.loads(three[name][1])["verdict"] == "identical"
    assert left_over(home) == []


def test_a_pipe_gets_plain_lines_and_few_of_them(three: dict[str, Any]) -> None:
    lines = three["pipe"][2].splitlines()
    assert "\x1b" not in three["pipe"][2]
    assert "step 1 of 6: run a, training" in lines
    trainings = [line for line in lines if "training step" in line]
    assert 1 <= len(trainings) <= 8, "a line in two seconds"
    assert any(re.search(r"training step [1-4] of 4", line) for line in trainings)
    assert any("records: loss, reward mean" in line for line in trainings)
    assert lines[-1].startswith("identical; all ")


def test_only_what_is_meant_for_people_is_written(three: dict[str, Any]) -> None:
    for line in three["pipe"][2].splitlines():
        known = (
            "step ",
            "  training step ",
            "  the trainer",
            "compared ",
            "identical; ",
            "preparing Prefect's database",
        )
        assert line.startswith(known), line


def test_a_terminal_gets_a_live_display_that_the_trainer_cannot_write_to(three: dict[str, Any]) -> None:
    seen = three["terminal"][2]
    plain = ANSI.sub("", seen)
    assert "[1/6] run a, training" in plain
    assert "[1/6] run b, training" in plain
    assert re.search(r"training step \d of 4, \d\.\d\d s a step, \d+ s left", plain)
    assert "records: " in plain
    assert "\x1b[31mred" not in seen
    assert "\x07" not in seen
    assert plain.rstrip().splitlines()[-1].startswith("identical; ")


def test_verbose_shows_the_trainers_output_and_prefects_logs_without_control_characters(three: dict[str, Any]) -> None:
    _, output, seen = three["verbose"]
    assert output == ""
    assert r"\x1b[31mred\x07 and loud" in seen
    assert "\x07" not in seen
    assert "Finished in state Completed()" in seen


def test_quiet_leaves_the_last_line_when_a_trainer_fails(tmp_path: Path, home: Path) -> None:
    status, output, seen = start(tmp_path, home, "--json", "-q", FAILS="1").finish()
    assert status == 2
    assert json.loads(output)["verdict"] == "inconclusive"
    (line,) = seen.splitlines()
    assert line.startswith("inconclusive; run a: the trainer failed with exit status 1")
    assert r"\x1b[31mthe data went away" in line


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)], ids=["SIGINT", "SIGTERM"]
)
def test_an_interrupted_check_says_so_and_leaves_no_server(tmp_path: Path, home: Path, number: signal.Signals) -> None:
    command = start(tmp_path, home, "--json", PAUSE="300")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("checks/*/a/msprobe_dump/index/*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    command.process.send_signal(number)
    status, output, seen = command.finish()
    assert status == 130
    assert json.loads(output) == {"format": 1, "verdict": None, "error": "interrupted"}
    *lines, last = seen.splitlines()
    assert last == "firstdiff: interrupted"
    assert [line for line in lines if not line.startswith(("step 1 of 6", "  training step"))] == []
    assert left_over(home) == []


@pytest.mark.slow
def test_an_interrupt_at_any_moment_is_one_line(tmp_path: Path, home: Path) -> None:
    for tenths in range(5, 120, 12):
        folder = tmp_path / str(tenths)
        folder.mkdir()
        command = start(folder, home, "-q")
        time.sleep(tenths / 10)
        command.process.send_signal(signal.SIGINT)
        status, _, seen = command.finish()
        if status != 0:  # it may have ended before
            assert (status, seen) == (130, "firstdiff: interrupted\n"), tenths
        assert left_over(home) == []


@pytest.mark.slow
def test_a_killed_check_leaves_neither_trainer_nor_server(tmp_path: Path, home: Path) -> None:
    command = start(tmp_path, home, PAUSE="300")
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("checks/*/a/msprobe_dump/index/*")) and time.monotonic() < deadline:
        time.sleep(0.1)
    command.process.kill()
    command.finish()
    while [line for line in left_over(home) if "flows.serve" in line] and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [line for line in left_over(home) if "flows.serve" in line] == []


@pytest.mark.slow
def test_ten_checks_started_at_once_on_a_fresh_machine_all_work(tmp_path: Path) -> None:
    fresh = tmp_path / "home"
    commands = [start(tmp_path, fresh, "--json", "-q") for _ in range(10)]
    done = [command.finish() for command in commands]
    assert [status for status, _, _ in done] == [0] * 10, done
    assert len(list(tmp_path.glob("checks/*/verdict.json"))) == 10
    assert left_over(fresh) == []
