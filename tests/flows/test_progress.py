"""The display by itself: what it makes of an index, and of names that somebody chose to do harm."""

from __future__ import annotations

import fcntl
import io
import json
import logging
import os
import pty
import struct
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from flows.progress import Display
from probe.store.live import LiveRun
from tasks import Begun, begin


def lines(*records: tuple[int, str]) -> bytes:
    return b"".join(json.dumps({"step": step, "tag": tag}).encode() + b"\n" for step, tag in records)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    file = tmp_path / "index" / "rank0.jsonl"
    file.parent.mkdir()
    return file


def test_a_run_is_watched_while_it_grows(tmp_path: Path, index: Path) -> None:
    run = LiveRun(tmp_path)
    assert run.look().records == 0
    index.write_bytes(lines((0, "loss"), (0, "weights"), (1, "loss")) + b'{"step": 1, "ta')
    seen = run.look()
    assert (seen.steps, seen.records, list(seen.tags)) == (1, 3, ["weights", "loss"])
    with index.open("ab") as file:
        file.write(b'g": "rewards"}\n')
    (tmp_path / "manifest.json").write_text('{"steps_finished": 2}')
    seen = run.look()
    assert (seen.steps, seen.records, list(seen.tags)) == (2, 4, ["weights", "loss", "rewards"])


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\n", b"[]\n", b'{"step": "x", "tag": 1}\n', b"null\n", b"[" * 9999 + b"\n"]
)
def test_an_index_that_is_none_harms_nobody(tmp_path: Path, index: Path, content: bytes) -> None:
    index.write_bytes(content)
    (tmp_path / "manifest.json").write_bytes(content)
    run = LiveRun(tmp_path)
    assert run.look().steps == run.look().steps == 0


def test_an_index_that_is_a_link_is_not_followed(tmp_path: Path, index: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(lines((3, "loss")))
    index.symlink_to(tmp_path / "elsewhere")
    assert LiveRun(tmp_path).look().records == 0


@pytest.fixture
def shown(tmp_path: Path, index: Path) -> Any:
    """What a display shows of a training with a tag that would clear the terminal."""

    def show(live: bool) -> str:
        index.write_bytes(lines((0, "\x1b[2Jloss\x07[link=http://x]\r"), (1, "[bold]rewards")))
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 200, 0, 0))
        stream = os.fdopen(slave, "w") if live else io.StringIO()
        display = Display(stream, live)
        logger = logging.getLogger("firstdiff")
        before = (logger.handlers, logger.propagate, logger.level)
        logger.handlers, logger.propagate = [display], False
        logger.setLevel(logging.INFO)
        try:
            begin(Begun(1, "run a, training", tmp_path, 5))
            logger.info("said: %s", "\x1b[31m\x9b2J[red]")
            time.sleep(2.8)
        finally:
            display.end()
            logger.handlers, logger.propagate = before[:2]
            logger.setLevel(before[2])
        if isinstance(stream, io.StringIO):
            os.close(slave)
        else:
            stream.flush()
        text = os.read(master, 1 << 20).decode() if live else stream.getvalue()  # type: ignore[attr-defined]
        stream.close()
        os.close(master)
        return text

    return show


@pytest.mark.parametrize("live", [True, False])
def test_names_from_a_trainer_do_not_move_the_cursor(shown: Any, live: bool) -> None:
    text = shown(live)
    assert "training step 1 of 5" in text
    assert r"\x1b[2Jloss\x07[link=http://x]\r" in text.replace("\n", "")
    assert "[bold]rewards" in text
    assert r"\x1b[31m\x9b2J[red]" in text
    for control in ("\x1b[2J", "\x1b[31m", "\x07", "\x9b"):
        assert control not in text
