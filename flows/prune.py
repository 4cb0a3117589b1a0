"""Removing old checks, as a flow that a deployment runs by a schedule."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from prefect import flow

from probe.disk import parse_size, prune, pruned_lines

log = logging.getLogger("firstdiff")


@flow(name="prune", persist_result=False, log_prints=False)
def prune_checks(
    checks: str = "checks",
    older_than_days: float = 0,
    max_checks: int = 0,
    max_size: str = "",
    dry_run: bool = False,
) -> dict[str, Any]:
    """Removes old checks; never one that runs, nor the newest divergent one of each profile.

    Args:
        checks: The folder of checks.
        older_than_days: Checks of more days go; 0 sets no such limit.
        max_checks: The oldest go until so many are left; 0 sets no such limit.
        max_size: The oldest go until all together take no more, as 500M or 20G; empty sets no such limit.
        dry_run: Only say what would go.

    Returns:
        What was removed, what was kept and why.
    """
    result = prune(
        Path(checks),
        older_than_days or None,
        max_checks or None,
        parse_size(max_size) if max_size.strip() else None,
        dry_run,
    )
    for line in pruned_lines(result):
        log.info("%s", line)
    return result.as_dict()
