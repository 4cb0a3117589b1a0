"""What nothing runs any more gets its end: flow runs on a real server, and what the keeper starts again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any

import pytest

from flows.keeper import LONGEST_WAIT_SECONDS, LOOK_SECONDS, SHORT_LIFE_SECONDS, Keeper
from flows.stale import RUN_ID, STALE_SECONDS, VARIABLE, StaleRuns, stale_seconds


class Server:
    """A server's API, and flow runs made there."""

    def __init__(self, api: str) -> None:
        self.api = api

    def ask(self, path: str, content: Any = None) -> Any:
        data = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(f"{self.api}/{path}", data, {"Content-Type": "application/json"})
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code != 503:  # it is busy with its database, and says so to whoever may ask again
                    raise
                time.sleep(0.2)

    def run(self, state: str, flow: str = "determinism-check") -> str:
        made = self.ask("flows/", {"name": flow})
        content = {"flow_id": made["id"], "state": {"type": state, "name": state.capitalize()}}
        return str(self.ask("flow_runs/", content)["id"])

    def state(self, run: str) -> str:
        return str(self.ask(f"flow_runs/{run}")["state_type"])


@pytest.fixture
def server(prefect_api: str) -> Server:
    return Server(prefect_api)


def test_runs_without_a_sign_of_life_get_their_end_and_those_with_one_go_on(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, cancelled, other = server.run("RUNNING"), server.run("CANCELLING"), server.run("RUNNING", "somebody's")
    lives, waits = server.run("RUNNING"), server.run("SCHEDULED")
    runs = StaleRuns(server.api, "firstdiff", 0.0)
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, RUN_ID: lives}
    )
    try:
        assert StaleRuns(server.api, "firstdiff", 3600.0).mark() == []
        assert len(runs.mark()) >= 2
        assert (server.state(dead), server.state(cancelled)) == ("CRASHED", "CANCELLED")
        assert (server.state(lives), server.state(waits), server.state(other)) == ("RUNNING", "SCHEDULED", "RUNNING")
    finally:
        process.communicate(b"\n")
    runs.mark()
    assert server.state(lives) == "CRASHED"
    server.ask(f"flow_runs/{other}/set_state", {"state": {"type": "CANCELLED"}, "force": True})


def test_a_heartbeat_within_the_limit_is_a_sign_of_life(server: Server) -> None:
    run = server.run("RUNNING")
    code = (
        "import sys\nfrom prefect.events import emit_event\nfrom prefect.events.worker import EventsWorker\n"
        "resource = {'prefect.resource.id': 'prefect.flow-run.' + sys.argv[1]}\n"
        "emit_event('prefect.flow-run.heartbeat', resource=resource)\n"
        "EventsWorker.instance().drain()\n"
    )
    environment = {**os.environ, "PREFECT_API_URL": server.api, "DO_NOT_TRACK": "1"}
    subprocess.run([sys.executable, "-c", code, run], env=environment, check=True, capture_output=True)
    wanted = {"filter": {"event": {"name": ["prefect.flow-run.heartbeat"]}}}
    while not any(
        run in event["resource"]["prefect.resource.id"] for event in server.ask("events/filter", wanted)["events"]
    ):
        pass
    silent = StaleRuns(server.api, "firstdiff", 60.0)
    silent._answers_since = 1.0  # it has been looked at for ages
    before = server.ask(f"flow_runs/{run}")["state"]["timestamp"]
    assert not any(run in line for line in silent.mark())
    assert server.ask(f"flow_runs/{run}")["state"]["timestamp"] == before
    StaleRuns(server.api, "firstdiff", 0.0).mark()
    assert server.state(run) == "CRASHED"


def test_a_time_in_which_the_server_was_away_is_held_against_no_run(server: Server) -> None:
    run = server.run("RUNNING")
    runs = StaleRuns(server.api, "firstdiff", 0.5)
    away = StaleRuns("http://127.0.0.1:9/api", "firstdiff", 0.5)
    with pytest.raises(OSError):
        away.mark()
    away._api = runs._api
    assert not any(run in line for line in away.mark()), "only now is it looked at"


def test_a_run_that_crashed_three_times_is_ended_for_good(server: Server) -> None:
    runs, twice, thrice = StaleRuns(server.api, "firstdiff", 3600.0), server.run("PENDING"), server.run("PENDING")
    others = server.run("PENDING", "somebody's")

    def crash(*those: str, reports: int) -> None:
        for run in those:
            for state in ["SCHEDULED", "PENDING", *["CRASHED"] * reports]:
                content = {"type": state, "name": state.capitalize(), "message": f"exit\nstatus {reports}"}
                server.ask(f"flow_runs/{run}/set_state", {"state": content, "force": True})

    crash(twice, thrice, others, reports=2)
    crash(twice, thrice, others, reports=2)
    assert not any(run in line for line in runs.end_crashed() for run in (twice, thrice))
    crash(thrice, others, reports=1)
    assert [thrice in line for line in runs.end_crashed()].count(True) == 1
    state = server.ask(f"flow_runs/{thrice}")["state"]
    assert (state["type"], state["name"]) == ("FAILED", "Inconclusive")
    assert state["message"] == "It crashed 3 times and is not tried again; the last time: exit status 1"
    assert (server.state(twice), server.state(others)) == ("CRASHED", "CRASHED")


@pytest.mark.parametrize(("value", "seconds"), [("", STALE_SECONDS), ("much", STALE_SECONDS), ("40", 40.0), ("0", 1.0)])
def test_the_limit(monkeypatch: pytest.MonkeyPatch, value: str, seconds: float) -> None:
    monkeypatch.setenv(VARIABLE, value)
    assert stale_seconds() == seconds


class Parts:
    """A server that dies at once, and a worker that lives."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def lives(self, name: str) -> bool:
        return name == "worker"

    def revive(self, name: str) -> None:
        self.started.append(name)

    def answers(self) -> bool:
        return False


def test_what_dies_at_once_is_started_again_ever_later() -> None:
    parts, now, said = Parts(), [0.0], list[str]()
    keeper = Keeper(parts, StaleRuns("http://127.0.0.1:9/api", "firstdiff", 1.0), said.append, lambda: now[0])
    while now[0] < 3600:
        keeper.look()
        now[0] += LOOK_SECONDS
    assert set(parts.started) == {"server"}
    assert len(said) == len(parts.started)
    assert 3600 / LONGEST_WAIT_SECONDS <= len(parts.started) < 3600 / SHORT_LIFE_SECONDS
