"""Everything that Firstdiff raises on purpose.

::

    FirstdiffError
    ├── UsageError            exit 64: the user asked for something that cannot be done
    │   └── ConfigError       exit 64: a profile, a trainer configuration or a ``--set``; names the file and the key
    ├── InconclusiveError     exit 2: no verdict can be given
    │   ├── TrainerError      the trainer failed or never ran; carries the end of its log
    │   │   └── HangError     it ran too long, or made no progress
    │   ├── DumpError         a dump folder cannot be read or written
    │   │   └── RecordError   a value cannot be recorded (raised by ``probe.save``)
    │   └── HistoryError      the index of checks cannot be read or written
    │       └── DamagedHistoryError   it is no SQLite file any more, or a row makes no sense
    └── InternalError         exit 70: a defect of ours

Each message is one sentence for a person: it names the file and the key, and says what to do.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DamagedHistoryError",
    "DumpError",
    "FirstdiffError",
    "HangError",
    "HistoryError",
    "InconclusiveError",
    "InternalError",
    "RecordError",
    "TrainerError",
    "UsageError",
]


class FirstdiffError(Exception):
    """Base of all errors that Firstdiff raises on purpose."""

    exit_code = 70


class UsageError(FirstdiffError):
    """The user asked for something that cannot be done."""

    exit_code = 64


class ConfigError(UsageError):
    """A configuration is wrong.

    Args:
        source: The file, or ``--set``, that holds the mistake.
        key: Dotted path of the key, or ``""`` for the file as a whole.
        problem: What is wrong and how to mend it.
    """

    def __init__(self, source: str, key: str, problem: str) -> None:
        self.source = source
        self.key = key
        self.problem = problem
        super().__init__(": ".join(part for part in (source, key, problem) if part))


class InconclusiveError(FirstdiffError):
    """No verdict can be given."""

    exit_code = 2
    log_tail = ""
    """The last lines of ``trainer.log``, where a trainer is the reason."""


class TrainerError(InconclusiveError):
    """A trainer run failed.

    Args:
        message: One sentence.
        exit_code_of_child: The trainer's exit status (negative: ended by that signal), or None when it never ran.
        log_tail: The last lines of ``trainer.log``.
    """

    def __init__(self, message: str, exit_code_of_child: int | None = None, log_tail: str = "") -> None:
        self.exit_code_of_child = exit_code_of_child
        self.log_tail = log_tail
        super().__init__(message)


class HangError(TrainerError):
    """A trainer ran longer than it may, or made no progress; its log ends with the stacks of its processes."""


class DumpError(InconclusiveError):
    """A dump folder cannot be read or written."""


class RecordError(DumpError):
    """A value cannot be recorded."""


class HistoryError(InconclusiveError):
    """The index of checks cannot be read or written."""


class DamagedHistoryError(HistoryError):
    """The index of checks is damaged; the checks' folders can make it anew."""


class InternalError(FirstdiffError):
    """A defect of Firstdiff."""


def is_interruption(error: BaseException) -> bool:
    """Whether an error is an interruption, or came up while one was dealt with.

    Example:
        >>> is_interruption(KeyboardInterrupt()), is_interruption(ValueError())
        (True, False)
    """
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None
