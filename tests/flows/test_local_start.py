"""``firstdiff check`` without a server: many at once on a fresh machine, quiet, and how far it is on a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRAINER = """
import time
from probe import Probe
probe = Probe.from_env()
for step in range({steps}):
    probe.save({{"loss": float(step)}})
    probe.step()
    time.sleep({pause})
probe.close()
"""
LONGEST = 900.0


def environment(home: Path) -> dict[str, str]:
    """What a user has who never used Prefect: none of the session's settings."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    own.pop("DO_NOT_TRACK", None)
    return {**own, "PREFECT_HOME": str(home), "TERM": "xterm-256color"}


def profile(folder: Path, steps: int = 3, pause: float = 0.0) -> Path:
    (folder / "train.py").write_text(TRAINER.format(steps=steps, pause=pause))
    file = folder / "tiny.yaml"
    file.write_text(
        f"trainer: {{kind: command, command: [python, train.py], env: {{PYTHONHASHSEED: '0'}}}}\n"
        f"check: {{steps: {steps}, allow_different: [environment.determinism.in_effect.torch_seed]}}\n"
    )
    return file


def command(file: Path, out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli", "check", str(file), "--out", str(out), *options]


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(10, marks=pytest.mark.slow), 3])
def test_many_at_once_on_a_fresh_machine_all_work_and_say_nothing_of_prefect(tmp_path: Path, number: int) -> None:
    file, home = profile(tmp_path), tmp_path / "prefect"
    running = [
        subprocess.Popen(
            command(file, tmp_path / f"out{index}", "--json"),
            cwd=tmp_path,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(number)
    ]
    ended = [(*process.communicate(timeout=LONGEST), process.returncode) for process in running]
    for stdout, stderr, status in ended:
        assert status == 0, stderr
        assert json.loads(stdout)["verdict"] == "identical"
        assert re.search(r"(?m)^step 1 of 6: run a, training$", stderr), "a pipe gets plain lines"
        assert "\x1b" not in stderr
        assert not re.search(r"prefect\.|\| (INFO|WARNING|ERROR)|Warning:", stderr), stderr
    migrated = [stderr for _, stderr, _ in ended if "preparing Prefect's database" in stderr]
    assert len(migrated) == 1, "it is migrated once"


@pytest.mark.slow
def test_a_pipe_gets_plain_lines_and_a_terminal_what_goes_on_now(tmp_path: Path) -> None:
    file, home = profile(tmp_path, steps=8, pause=0.5), tmp_path / "prefect"
    leading, following = pty.openpty()
    with (
        subprocess.Popen(
            command(file, tmp_path / "terminal"),
            cwd=tmp_path,
            env=environment(home),
            stdin=following,
            stdout=following,
            stderr=following,
            close_fds=True,
        ) as on_terminal,
        subprocess.Popen(
            command(file, tmp_path / "pipe"),
            cwd=tmp_path,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as in_pipe,
    ):
        os.close(following)
        drawn = everything(leading, on_terminal)
        stdout, stderr = in_pipe.communicate(timeout=LONGEST)
    os.close(leading)
    assert in_pipe.returncode == on_terminal.returncode == 0, (drawn, stderr)
    assert stdout == ""
    assert "\x1b" not in stderr
    assert "\r" not in stderr
    assert re.search(r"(?m)^step 1 of 6: run a, training$", stderr)
    assert re.search(r"(?m)^  training step \d of 8.*; \d+ records?: loss$", stderr), stderr
    assert stderr.splitlines()[-1].startswith("identical")
    assert "\x1b[" in drawn, "it is drawn again and again"
    seen = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn)
    assert "[1/6] run a, training" in seen
    assert re.search(r"training step \d of 8, \d\.\d\d s a step, \d+ s left", seen), seen
    assert re.search(r"\d+ records: loss", seen)
    assert "identical" in seen.strip().splitlines()[-1]


def everything(terminal: int, process: subprocess.Popen[bytes]) -> str:
    """All that is written to a terminal until its process ends."""
    deadline, found = time.monotonic() + LONGEST, b""
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 0.5)[0]:
            if process.poll() is not None:
                break
            continue
        try:
            chunk = os.read(terminal, 1 << 16)
        except OSError:  # nobody has the other end
            break
        if not chunk:
            break
        found += chunk
    process.wait(60)
    return found.decode(errors="replace")
