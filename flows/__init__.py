"""The flows: the order of tasks, and the ``firstdiff`` command."""

from __future__ import annotations
