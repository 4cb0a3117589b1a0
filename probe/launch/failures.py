"""Ranks that failed: what each said last, and which of them failed first."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from probe.language import recall, tell
from probe.store.writer import write_json

_LONGEST = 300
_TRACEBACK = "Traceback (most recent call last):"
_PREFIX = re.compile(r"^\[rank\d+\]:\s?")
"""What torch puts before each line of a traceback."""
_LOST_A_PEER = re.compile(
    r"[Cc]onnection (was )?(closed|reset|refused)|[Bb]roken pipe|remote process exited|socketPollConnect|"
    r"DistStoreError|DistNetworkError|ncclRemoteError|HCCL.*(timeout|socket)"
)
_END_OF_LOG = 1 << 20


@dataclass(frozen=True, slots=True)
class Failure:
    """How one rank ended.

    Example:
        >>> Failure(1, -9, 0, 0.0, "step 2").sentence
        'rank 1 was ended by SIGKILL: step 2'
    """

    rank: int
    status: int
    """Exit status; negative: ended by that signal."""
    noticed: int
    """When torchrun noticed it, in seconds."""
    spoke: float
    """When it last wrote something, in seconds."""
    last_words: str
    """The exception's line where there is one, else the last line that it printed."""
    host: str | None = None
    """Its host; None where there is only one."""

    @classmethod
    def of(cls, rank: int, status: int, noticed: int, output: list[Path], host: str | None) -> Failure:
        """From what torchrun says, and the files of the rank's own output, standard error last."""
        spoke, words = 0.0, ""
        for file in output:
            text = _end_of(file)
            words = _last_words(text) or words
            spoke = max(spoke, file.stat().st_mtime if text else 0.0)
        return cls(rank, status, noticed, spoke, words or tell("it printed nothing"), host)

    @property
    def order(self) -> tuple[bool, bool, int, float, int]:
        """Sorts failures, that which the others follow from first: these were ended by torchrun or lost a peer."""
        ended = self.status == -signal.SIGTERM
        lost = self.status > 0 and _LOST_A_PEER.search(self.last_words) is not None
        return (ended, lost, self.noticed, self.spoke, self.rank)

    @property
    def sentence(self) -> str:
        """What happened, for a person."""
        rank = tell("rank {rank} on {host}", rank=self.rank, host=self.host) if self.host else None
        rank = rank or tell("rank {rank}", rank=self.rank)
        words = recall(self.last_words)
        if self.status >= 0:
            return tell("{rank} failed with exit status {status}: {words}", rank=rank, status=self.status, words=words)
        return tell("{rank} was ended by {name}: {words}", rank=rank, name=_signal_name(-self.status), words=words)


def first_failure(failures: Iterable[Failure]) -> Failure | None:
    """The failure that the others follow from, as far as can be told; None where there are none."""
    return min(failures, key=lambda failure: failure.order, default=None)


def write_failures(file: Path, failures: list[Failure]) -> None:
    """Writes failures as JSON."""
    write_json(file, [asdict(failure) for failure in failures])


def read_failures(file: Path) -> list[Failure]:
    """What ``write_failures`` wrote; nothing where there is no whole file."""
    try:
        return [Failure(**fields) for fields in json.loads(file.read_bytes())]
    except (OSError, ValueError, TypeError):
        return []


def _end_of(file: Path) -> str:
    with file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - _END_OF_LOG))
        return stream.read().decode(errors="replace")


def _last_words(text: str) -> str:
    """The line of the last exception, without its traceback; else the last line."""
    lines = [_PREFIX.sub("", line).rstrip() for line in text.splitlines()]
    starts = [number for number, line in enumerate(lines) if line == _TRACEBACK]
    if starts:
        after = (line for line in lines[starts[-1] + 1 :] if line and not line[0].isspace())
        if (exception := next(after, None)) is not None:
            return exception[:_LONGEST]
    return next((line.strip()[:_LONGEST] for line in reversed(lines) if line.strip()), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
