"""Stacks on demand: what every thread of a trainer does, for whoever started it and sees that it hangs."""

from __future__ import annotations

import contextlib
import faulthandler
import signal
from pathlib import Path

from probe.types import STACK_SIGNAL


def show_stacks_on_signal() -> None:
    """Has this process write the stacks of its threads to its standard error on a signal of ours.

    Does nothing where the signal has a handler already, or there is no such signal.
    """
    with contextlib.suppress(ValueError, OSError, RuntimeError, AttributeError):
        if signal.getsignal(STACK_SIGNAL) == signal.SIG_DFL and not _caught(STACK_SIGNAL):
            faulthandler.register(STACK_SIGNAL, file=2, all_threads=True)


def _caught(number: int) -> bool:
    """Whether anything, also outside Python, handles a signal."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
