"""The history of checks: an index of them, and what they tell together from night to night."""

from __future__ import annotations

from probe.history.checks import PastCheck, fingerprint_of, is_check, read_check, read_unfinished
from probe.history.database import History, history_file
from probe.history.index import past_checks, rebuild, record
from probe.history.markdown import summary_markdown
from probe.history.start import begin, note_size
from probe.history.story import Change, Story, stories

__all__ = [
    "Change",
    "History",
    "PastCheck",
    "Story",
    "begin",
    "fingerprint_of",
    "history_file",
    "is_check",
    "note_size",
    "past_checks",
    "read_check",
    "read_unfinished",
    "rebuild",
    "record",
    "stories",
    "summary_markdown",
]
