"""The trainers' output in a flow run's log, rate-limited."""

from __future__ import annotations

import logging

import pytest

from flows.logs import BURST, LONGEST, PER_SECOND, TRAINER, BearableHandler


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def clock() -> list[float]:
    return [0.0]


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def handler(kept: Kept, clock: list[float]) -> BearableHandler:
    return BearableHandler(kept, lambda: clock[0])


def line(text: str, name: str = TRAINER) -> logging.LogRecord:
    return logging.makeLogRecord({"name": name, "msg": text, "levelno": logging.INFO})


def test_a_flood_is_cut_and_counted(handler: BearableHandler, kept: Kept, clock: list[float]) -> None:
    for number in range(10 * BURST):
        handler.emit(line(f"line {number}"))
    assert kept.lines == [f"line {number}" for number in range(BURST)]
    clock[0] += 1.0
    for number in range(1000):
        handler.emit(line(f"later {number}"))
    said, *later = kept.lines[BURST:]
    assert str(9 * BURST) in said and "trainer.log" in said
    assert len(later) == PER_SECOND
    handler.say_what_is_left_out()
    assert "990 lines" in kept.lines[-1]
    handler.say_what_is_left_out()
    assert kept.lines.count(kept.lines[-1]) == 1


def test_what_firstdiff_itself_says_is_never_cut(handler: BearableHandler, kept: Kept) -> None:
    for _ in range(10 * BURST):
        handler.emit(line("x"))
    handler.emit(line("run b: training", "firstdiff"))
    assert kept.lines[-1] == "run b: training"


def test_a_long_line_is_cut_with_its_percent_signs(handler: BearableHandler, kept: Kept) -> None:
    handler.emit(line("%s" * LONGEST))
    assert kept.lines == ["%s" * (LONGEST // 2) + "…"]
