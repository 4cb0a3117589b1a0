"""Prefect tasks: each calls one public function of ``probe``.

None is cached and no result is persisted: run ``b`` served from the cache of run ``a`` would be a run compared with
itself.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.privacy import never_call_home

never_call_home()  # before Prefect is imported

from prefect.cache_policies import NO_CACHE  # noqa: E402

from probe.language import tell  # noqa: E402

UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
"""Options of every task."""

STEPS = 6
"""Steps of a check."""


@dataclass(frozen=True)
class Begun:
    """A step of a check that has begun: what a log record carries as ``begun``, for whoever shows progress.

    Example:
        >>> Begun(2, "comparing key data").dump is None
        True
    """

    step: int
    """From 1 to ``STEPS``."""
    what: str
    dump: Path | None = None
    """Where a trainer records now; None when none runs."""
    training_steps: int | None = None
    """How many training steps that trainer runs, where it is known."""


def begin(begun: Begun) -> None:
    """Says that a step begins."""
    said = tell("step {step} of {steps}: {what}", step=begun.step, steps=STEPS, what=begun.what)
    logging.getLogger("firstdiff").info("%s", said, extra={"begun": begun})
