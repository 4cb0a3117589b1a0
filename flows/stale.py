"""Flow runs that say they run though nothing runs them any more: found on a server, and given their end.

A run shows that it lives by Prefect's heartbeat, which its process sends every half minute wherever it is, or by a
process on this machine. One that has shown nothing for ``FIRSTDIFF_STALE_SECONDS`` is *Crashed*, or *Cancelled* where
that was asked for. One that crashed three times is *Inconclusive*, and tried no more: a flow counts its own tries, but
some errors come before it begins. Standard library only: whoever looks all night is small.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from flows import processes

VARIABLE = "FIRSTDIFF_STALE_SECONDS"
STALE_SECONDS = 90.0
"""How long a flow run may show no sign of life: three heartbeats."""
HEARTBEAT_SECONDS = 30
"""Time between two heartbeats: the shortest that Prefect has."""
RUN_ID = "PREFECT__FLOW_RUN_ID"
"""The variable by which the process of a flow run is known."""
MOST_TRIES = 3
"""How often one flow run is started: first, and again after a crash or by hand."""
CRASHED_WITHIN_SECONDS = 600.0
"""How long ago a run may have crashed whose crashes are counted."""
_ACTIVE = ["RUNNING", "PENDING", "CANCELLING"]
_FLOWS = ["determinism-check", "nightly", "compare", "prune"]
"""Other people's flows on the server are theirs."""
_PAGE = 200
_ANSWER_SECONDS = 10.0


def stale_seconds() -> float:
    """The limit that holds here."""
    try:
        return max(1.0, float(os.environ.get(VARIABLE, "")))
    except ValueError:
        return STALE_SECONDS


class StaleRuns:
    """The active flow runs of a server, looked at again and again.

    Args:
        api: The server's API.
        pool: The work pool whose runs are processes of this machine.
        limit: Seconds without a sign of life.
    """

    def __init__(self, api: str, pool: str, limit: float) -> None:
        self._api = api
        self._pool = pool
        self._limit = limit
        self._answers_since: float | None = None
        self._counted: set[str] = set()

    def mark(self, without_worker: bool = False) -> list[str]:
        """Gives every stale run its end.

        Args:
            without_worker: No worker of the pool runs: of its runs, one without a process is stale at once.

        Returns:
            What was done, one line a run.

        Raises:
            OSError: The server does not answer; how long it did not is held against no run.
        """
        try:
            runs = list(self._those({"state": {"type": {"any_": _ACTIVE}}}))
        except OSError:
            self._answers_since = None
            raise
        if self._answers_since is None:
            self._answers_since = time.time()
        if not runs:
            return []
        here = processes.values_of(RUN_ID)
        return [self._end(run) for run in runs if self._is_stale(run, here, without_worker)]

    def end_crashed(self) -> list[str]:
        """Gives every run that crashed three times its end, so that nothing tries it again.

        Returns:
            What was done, one line a run.

        Raises:
            OSError: The server does not answer.
        """
        since = datetime.fromtimestamp(time.time() - CRASHED_WITHIN_SECONDS, timezone.utc).isoformat()
        crashed = list(self._those({"state": {"type": {"any_": ["CRASHED"]}}, "end_time": {"after_": since}}))
        new = [run for run in crashed if run["state"]["id"] not in self._counted]
        done = [self._end_for_good(run) for run in new if self._crashes(run["id"]) >= MOST_TRIES]
        self._counted = {run["state"]["id"] for run in crashed}
        return done

    def _crashes(self, run: str) -> int:
        """How often a run crashed: a worker reports one crash twice, the second time some seconds later."""
        try:
            states = self._ask(f"flow_run_states/?flow_run_id={run}")
        except urllib.error.HTTPError:  # somebody deleted it
            return 0
        types = [state["type"] for state in sorted(states, key=lambda state: _seconds(state["timestamp"]))]
        return sum(now == "CRASHED" != before for before, now in zip([None, *types], types, strict=False))

    def _end_for_good(self, run: dict[str, Any]) -> str:
        last = " ".join((run["state"]["message"] or "").split())[:300]
        message = f"It crashed {MOST_TRIES} times and is not tried again" + (
            f"; the last time: {last}" if last else "."
        )
        return self._set(run, {"type": "FAILED", "name": "Inconclusive", "message": message}, force=True)

    def _is_stale(self, run: dict[str, Any], here: set[str] | None, without_worker: bool) -> bool:
        top = self._top(run)
        if here is not None and {run["id"], top["id"]} & here:
            return False
        if without_worker and here is not None and top["work_pool_name"] == self._pool:
            return True
        since = max(self._answers_since or 0.0, _seconds(run["state"]["timestamp"]))
        return time.time() - since > self._limit and not self._heartbeats(run["id"])

    def _top(self, run: dict[str, Any]) -> dict[str, Any]:
        """The run whose process a run is in: its own, or that of the flow that called it."""
        with contextlib.suppress(urllib.error.HTTPError):  # somebody deleted that flow's run
            while (task := run.get("parent_task_run_id")) is not None:
                run = self._ask(f"flow_runs/{self._ask(f'task_runs/{task}')['flow_run_id']}")
        return run

    def _heartbeats(self, run: str) -> bool:
        """Whether a run's process showed that it lives, within the limit."""
        since = datetime.fromtimestamp(time.time() - self._limit, timezone.utc).isoformat()
        wanted = {
            "occurred": {"since": since},
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{run}"]},
        }
        return bool(self._ask("events/filter", {"filter": wanted, "limit": 1})["events"])

    def _end(self, run: dict[str, Any]) -> str:
        if run["state"]["type"] == "CANCELLING":
            state = {"type": "CANCELLED", "name": "Cancelled", "message": "It was cancelled; its process is gone."}
        else:
            state = {"type": "CRASHED", "name": "Crashed", "message": "Its process is gone, or its machine."}
        return self._set(run, state)

    def _set(self, run: dict[str, Any], state: dict[str, str], force: bool = False) -> str:
        try:
            told = self._ask(f"flow_runs/{run['id']}/set_state", {"state": state, "force": force})["status"].lower()
        except urllib.error.HTTPError as error:  # somebody deleted it
            told = str(error)
        return f"{run['name']} ({run['id']}): {state['name']}, {told}"

    def _those(self, flow_runs: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """The runs of our flows that a filter lets through."""
        offset = 0
        while True:
            wanted = {
                "flow_runs": flow_runs,
                "flows": {"name": {"any_": _FLOWS}},
                "offset": offset,
                "limit": _PAGE,
            }
            page = self._ask("flow_runs/filter", wanted)
            yield from page
            if len(page) < _PAGE:
                return
            offset += _PAGE

    def _ask(self, path: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self._api}/{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
                return json.load(answer)
        except ValueError as error:
            raise OSError(f"{path}: {error}") from error


def mark_folders(checks: Path) -> list[str]:
    """Gives the checks in a folder whose process is gone their verdict.

    Args:
        checks: The folder of checks.

    Returns:
        What was done, one line a check.
    """
    from probe.checks import conclude_abandoned

    return [f"{folder.name}: inconclusive, its process is gone" for folder in conclude_abandoned(checks)]


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00")).timestamp()
