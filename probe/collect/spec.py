"""What a check asks of this process."""

from __future__ import annotations

import os
from pathlib import Path

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
