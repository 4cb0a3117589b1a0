"""``make serve`` on a fresh copy of the project: a real server and worker, every deployment, alerts, and the end."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from flows import processes
from flows.station import Station


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_port_that_is_taken_is_refused_in_one_sentence(tmp_path: Path, root: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "flows.station", "start", "--port", port, "--state", str(tmp_path / "state")]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 64
    assert f"port {port}" in done.stderr and "SERVE_PORT" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("module", "arguments", "words"),
    [
        ("station", ["start", "--port", "abc"], ["SERVE_PORT", "abc"]),
        ("station", ["start", "--port", "99999"], ["SERVE_PORT", "65535"]),
        ("station", ["start", "--nightly", "a.yaml 'b"], ["NIGHTLY", "no closing quotation"]),
        ("station", ["start", "--nightly", "nope.yaml"], ["nope.yaml"]),
        ("automations", ["--port", "abc"], ["SERVE_PORT", "abc"]),
        ("automations", ["--port", "FREE"], ["no server answers", "make serve"]),
    ],
)
def test_what_is_wrong_with_make_serve_is_one_sentence(
    module: str, arguments: list[str], words: list[str], root: Path, tmp_path: Path
) -> None:
    asked = [str(free_port()) if argument == "FREE" else argument for argument in arguments]
    state = ["--state", str(tmp_path / "state")] if module == "station" else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-m", f"flows.{module}", *asked, *state]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == (2 if "FREE" in arguments else 64)
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in words)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("FIRSTDIFF_NOTIFY_WEBHOOK", "not a url"),
        ("FIRSTDIFF_NOTIFY_WEBHOOK", "ftp://hooks.example.org/hush"),
        ("FIRSTDIFF_NOTIFY_WEBHOOK", "http://[hush"),
        ("FIRSTDIFF_NOTIFY_SLACK", "hooks.slack.com/services/hush"),
        ("FIRSTDIFF_NOTIFY_SLACK", "https://hooks.slack.com:port/hush"),
        ("FIRSTDIFF_NOTIFY_EMAIL", "hush"),
        ("FIRSTDIFF_SENDGRID_FROM", "a@b@hush"),
        ("FIRSTDIFF_SENDGRID_KEY", "hush\nhush"),
    ],
)
def test_a_malformed_variable_of_notifications_is_refused_and_never_shown(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows import automations

    good = {"NOTIFY_EMAIL": "you@example.org", "SENDGRID_KEY": "SG.k-e_y", "SENDGRID_FROM": "night.ly+1@localhost"}
    for name, text in {**{f"FIRSTDIFF_{name}": text for name, text in good.items()}, variable: value}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert automations.main([]) == 64
    said = capsys.readouterr().err
    assert said.startswith(f"firstdiff: {variable}: must be ") and len(said.splitlines()) == 1
    assert value not in said and "hush" not in said


def test_stopping_never_ends_a_process_that_got_the_number_of_ours(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        for name in ("server", "worker"):
            (tmp_path / f"{name}.pid").write_text(json.dumps({"pid": other.pid, "start": "1"}))
        assert Station(tmp_path, 4200).stop() == []
        assert other.poll() is None
        (tmp_path / "server.pid").write_text("nonsense")
        assert Station(tmp_path, 4200).stop() == []
        processes.note(tmp_path / "server.pid", other.pid)
        assert Station(tmp_path, 4200).stop() == ["server"]
        assert other.wait(5) == -15
    finally:
        other.kill()
        other.wait()


@pytest.mark.slow
def test_everything_is_deployed_with_its_schedule(station: Any) -> None:
    nightly = station.deployment("nightly/nightly")
    assert [(each["schedule"]["cron"], each["schedule"]["timezone"]) for each in nightly["schedules"]] == [
        ("0 2 * * *", "UTC")
    ]
    assert nightly["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"
    assert nightly["global_concurrency_limit"]["limit"] == 1
    for name in ("determinism-check/determinism-check", "compare/compare", "prune/prune"):
        assert station.deployment(name)["work_pool_name"] == "firstdiff"
    with urllib.request.urlopen(f"http://127.0.0.1:{station.port}/", timeout=10) as page:
        assert b"<html" in page.read()
    command = [sys.executable, "-m", "flows.station", "start", "--port", str(free_port())]
    again = subprocess.run(
        command, cwd=station.project, env=station.environment, capture_output=True, text=True, check=False
    )
    assert again.returncode == 64 and "already" in again.stderr


@pytest.mark.slow
def test_the_form_describes_every_field_and_lists_the_profiles(station: Any) -> None:
    schema = station.deployment("determinism-check/determinism-check")["parameter_openapi_schema"]
    fields = schema["properties"]
    assert all(field["description"] for field in fields.values())
    assert "demo" in fields["profile"]["anyOf"][0]["enum"]
    assert all("default" in field for field in fields.values())
    for name in ("steps", "seed", "num_threads", "time_limit"):
        assert " to " in fields[name]["description"] or "above 0" in fields[name]["description"]


@pytest.mark.slow
def test_a_divergent_check_is_seen_alerts_once_and_keeps_its_result(station: Any) -> None:
    before = len(station.received)
    run = station.begin("determinism-check/determinism-check", profile=station.profile("odd", "random"))
    found = station.ended(run)

    assert (found["state_name"], found["state_type"]) == ("Divergent", "FAILED")
    assert found["name"].startswith("odd · 20")
    artifacts = station.artifacts(run)
    summary = artifacts["odd"]["data"]
    assert summary.startswith("# Divergent")
    assert "What to do next" in summary and "The bill" in summary and "data:image/svg+xml;base64," in summary
    assert json.loads(artifacts["odd-differences"]["data"])[0]["step"] == 0
    assert artifacts["odd-map"]["type"] == "image"
    (folder,) = (station.project / "checks").glob("odd-*")
    assert json.loads((folder / "verdict.json").read_text())["verdict"] == "divergent"
    deadline, logs = time.monotonic() + 20, [""]
    while not any("alert(1)" in message for message in logs):
        assert time.monotonic() < deadline, "the trainer's output is in the run's log"
        found = station.post("logs/filter", logs={"flow_run_id": {"any_": [run]}})
        logs = [log["message"] for log in found]

    deadline = time.monotonic() + 60
    while len(station.received) == before and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(3)
    (alert,) = station.received[before:]
    assert alert["state"] == "Divergent" and alert["deployment"] == "determinism-check"
    assert alert["url"].endswith(run)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"steps": 0}, ["steps", "1"]),
        ({"profile": "nope"}, ["profile", "nope", "demo"]),
        ({"profile": "/nowhere/x.yaml"}, ["profile", "/nowhere/x.yaml"]),
        ({"overrides": "nonsense"}, ["overrides", "nonsense"]),
        ({"overrides": "check.stepz=3"}, ["overrides", "check.stepz"]),
        ({"time_limit": 0}, ["time_limit", "greater than 0"]),
    ],
)
def test_a_bad_value_ends_the_run_at_once_with_its_field(
    station: Any, parameters: dict[str, Any], words: list[str]
) -> None:
    found = station.ended(station.begin("determinism-check/determinism-check", **parameters), 60)
    assert (found["state_name"], found["state_type"]) == ("Refused", "FAILED")
    message = found["state"]["message"]
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message


@pytest.mark.slow
def test_values_of_a_wrong_type_are_refused_before_a_run_is_made(station: Any) -> None:
    for parameters in ({"steps": "many"}, {"device": "tpu"}, {"seed": 1.5}):
        with pytest.raises(urllib.error.HTTPError) as error:
            station.begin("determinism-check/determinism-check", **parameters)
        assert error.value.code == 409
        assert next(iter(parameters)) in error.value.read().decode()


@pytest.mark.slow
def test_nights_do_not_overlap_and_one_bad_profile_does_not_stop_the_others(station: Any) -> None:
    before = len(station.received)
    profiles = [station.profile("calm", seconds=1.0), "nope"]
    first = station.begin("nightly/nightly", profiles=profiles, settings=["", "record.key_data=digests"])
    station.when(first, lambda found: found["state_type"] == "RUNNING")
    second = station.begin("nightly/nightly", profiles=profiles)
    assert station.ended(second)["state_type"] == "CANCELLED"

    found = station.ended(first)
    assert (found["state_name"], found["state_type"]) == ("Inconclusive", "FAILED")
    rows = json.loads(station.artifacts(first)["nightly-checks"]["data"])
    assert [(Path(row["profile"]).stem, row["verdict"]) for row in rows] == [
        ("calm", "identical"),
        ("calm", "identical"),
        ("nope", "inconclusive"),
        ("nope", "inconclusive"),
    ]
    assert "calm" in station.artifacts(first)["nightly"]["data"]
    deadline = time.monotonic() + 60
    while len(station.received) == before and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(3)
    (alert,) = station.received[before:]
    assert alert["deployment"] == "nightly", "one alert for the night, none for each of its checks"


@pytest.mark.slow
def test_compare_and_prune_run(station: Any) -> None:
    check = station.begin("determinism-check/determinism-check", profile=station.profile("plain"))
    assert station.ended(check)["state_name"] == "Identical"
    (folder,) = (station.project / "checks").glob("plain-*")
    dumps = {f"dump_{run}": str(folder / run / "msprobe_dump") for run in "ab"}
    found = station.ended(station.begin("compare/compare", **dumps))
    assert (found["state_name"], found["state_type"]) == ("Identical", "COMPLETED")
    missing = station.ended(station.begin("compare/compare", dump_a="/nowhere", dump_b="/nowhere"))
    assert missing["state_name"] == "Inconclusive" and "/nowhere" in missing["state"]["message"]
    assert station.ended(station.begin("prune/prune", dry_run=True))["state_type"] == "COMPLETED"


@pytest.mark.slow
def test_a_killed_check_is_tried_again_and_ends(station: Any) -> None:
    run = station.begin("determinism-check/determinism-check", profile=station.profile("slow", seconds=4.0))
    deadline = time.monotonic() + 90
    while not (started := list((station.project / "checks").glob("slow-*/a/trainer.log"))):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    worker = processes.noted(station.project / ".firstdiff/worker.pid")
    assert worker is not None
    for child in processes.children(worker.pid):
        os.kill(child, 9)
    station.when(run, lambda found: found["run_count"] > 1)
    assert (ended := station.ended(run))["state_name"] == "Identical", ended["state"]
    assert ended["run_count"] == 2, "one crash is tried again once"
    assert len(list((station.project / "checks").glob("slow-*"))) == len(started) == 1


@pytest.mark.slow
def test_one_experiment_is_one_profile_however_it_is_asked_for(station: Any, tmp_path: Path) -> None:
    asked = {"steps": 1, "seed": 7, "num_threads": 1, "algorithm": "dapo", "time_limit": 300}
    lines = "trainer.config.megatron_training.global_batch_size=2\n# a note\nrecord.key_data=digests"
    page = station.begin("determinism-check/determinism-check", profile="demo", overrides=lines, **asked)
    command = [sys.executable, "-m", "prefect", "deployment", "run", "determinism-check/determinism-check"]
    given = {**asked, "profile": "demo", "overrides": lines, "out": str(tmp_path / "command")}
    for name, value in given.items():
        command += ["--param", f"{name}={json.dumps(value)}"]
    environment = {**station.environment, "PREFECT_API_URL": station.api, "DO_NOT_TRACK": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    sets = [
        *("check.steps=1", "trainer.config.megatron_training.seed=7", "determinism.num_threads=1"),
        *("trainer.config.megatron_training.stage=ray_dapo", "trainer.config.rl_config.adv_estimator=group_norm"),
        *(f"trainer.config.rl_config.{key}=true" for key in ("clip_higher_enable", "token_level_loss")),
        *("trainer.config.rl_config.filter_groups_enable=true", "trainer.time_limit=300.0"),
        *(line for line in lines.splitlines() if "=" in line),
    ]
    line = [sys.executable, "-m", "flows.cli", "check", "demo", "--out", str(tmp_path / "line")]
    for entry in sets:
        line += ["--set", entry]
    subprocess.run(line, cwd=station.project, env=environment, check=False, capture_output=True)
    station.ended(page)
    deadline = time.monotonic() + 120
    while not (tmp_path / "command/verdict.json").exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    (folder,) = [path for path in (station.project / "checks").glob("demo-*") if page[:8] in path.name]
    texts = {
        path / "profile.yaml": (path / "profile.yaml").read_text()
        for path in (folder, tmp_path / "command", tmp_path / "line")
    }
    assert len(set(texts.values())) == 1, texts
