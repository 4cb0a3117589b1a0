"""What a check asks of this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from probe.errors import UsageError
from probe.types import RunSpec


def spec_from_env() -> RunSpec | None:
    """The spec that ``FIRSTDIFF_SPEC`` names; None where it is not set.

    Raises:
        UsageError: It cannot be read.
    """
    path = os.environ.get("FIRSTDIFF_SPEC")
    if not path:
        return None
    try:
        return RunSpec.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"FIRSTDIFF_SPEC={path}: not a readable spec ({error})") from error


def opened_for_the_script() -> Any:
    """The probe that observes this process on behalf of a script that did not ask for one, until now.

    What opened it (``probe.adapters``) steps back. None where nothing observes this process, or nothing was recorded.
    """
    for finder in sys.meta_path:
        take_over = getattr(finder, "taken_over", None)
        if take_over is not None:
            return take_over()
    return None
