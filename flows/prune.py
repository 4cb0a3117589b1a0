"""Removing old checks, as a flow that a deployment runs by a schedule."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Completed

from flows.logs import heard
from flows.names import plain
from flows.page import warning
from flows.states import state_of_error, verdict_state
from probe.disk import parse_size, prune, pruned_lines
from probe.errors import FirstdiffError, InconclusiveError

log = logging.getLogger("firstdiff")


@flow(name="prune", persist_result=False, log_prints=False)
def prune_checks(
    checks: str = "checks",
    older_than_days: float = 0,
    max_checks: int = 0,
    max_size: str = "",
    dry_run: bool = False,
) -> State[Any]:
    """Removes old checks; never one that runs, nor the newest divergent one of each profile.

    Args:
        checks: The folder of checks.
        older_than_days: Checks of more days go; 0 sets no such limit.
        max_checks: The oldest go until so many are left; 0 sets no such limit.
        max_size: The oldest go until all together take no more, as 500M or 20G; empty sets no such limit.
        dry_run: Only say what would go.

    Returns:
        A final state with what was removed, what was kept and why; its log and the artifact prune say the same.
    """
    try:
        size = parse_size(max_size) if max_size.strip() else None
        result = prune(Path(checks), older_than_days or None, max_checks or None, size, dry_run)
    except (FirstdiffError, OSError) as error:
        return state_of_error(error, checks)
    *lines, last = pruned_lines(result)
    with heard():
        for line in [*lines, last]:
            log.info("%s", line)
    with warning("the page does not show what was removed"):
        text = "\n".join([f"**{last}**", "", *(f"- `{plain(line, len(line)).replace('`', '')}`" for line in lines)])
        create_markdown_artifact(text, "prune", "What was removed, what was kept, and why")
    if result.failed:
        return verdict_state("inconclusive", last, None, InconclusiveError("; ".join(result.failed)))
    return Completed(message=last, data=result.as_dict())
