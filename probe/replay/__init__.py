"""Running a captured module again, alone: does it give the same result each time, and if not, when does it not?

Nothing else of Firstdiff unpickles anything. The module runs in child processes, which end with the command.
"""

from __future__ import annotations

from probe.replay.answer import Answer, not_replayed, replay_check, summary

__all__ = ["Answer", "not_replayed", "replay_check", "summary"]
