"""What becomes of a trace whose run is killed, or whose disk fills up: it is never taken for a whole one."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from probe.errors import RecordError
from probe.store.trace import TraceWriter
from probe.store.writer import DumpWriter, Place

ROOT = Path(__file__).resolve().parents[3]

TRAINER = """
import resource, sys
import torch
from probe import Probe
from probe.types import RunSpec

dump, on_error, limit = sys.argv[1], sys.argv[2], int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
torch.set_num_threads(1)
probe = Probe(RunSpec(run="a", dump_path=dump, on_error=on_error, trace=True, key_data="off"))
model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
probe.attach(actor=model)
for step in range(400):
    with probe.stage("actor_update"):
        for _ in range(20):
            model(torch.ones(1, 2)).sum().backward()
    probe.step()
    print(step, flush=True)
probe.close()
print("trained to the end")
"""


@pytest.fixture
def start(tmp_path: Path):
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "train.py").write_text(TRAINER)

    def begin(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "dump"), *map(str, arguments)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, env=env, text=True, **pipes))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def said(folder: Path) -> dict:
    return json.loads((folder / "manifest.json").read_text())


def whole_lines(folder: Path) -> list[dict]:
    data = (folder / "trace/rank0.jsonl").read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def test_a_killed_run_leaves_whole_steps_and_no_manifest_that_vouches(start, tmp_path):
    process = start("raise", 0)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("3"):
        continue
    time.sleep(random.random() / 20)
    process.send_signal(signal.SIGKILL)
    process.wait()
    manifest, events = said(tmp_path / "dump"), whole_lines(tmp_path / "dump")
    assert not manifest["complete"]
    assert [event["i"] for event in events] == list(range(len(events)))
    finished = [event for event in events if event["step"] < manifest["steps_finished"]]
    ends = [event["step"] for event in finished if event["kind"] == "stage_end"]
    assert ends == list(range(manifest["steps_finished"])), "what the manifest calls finished is there"


@pytest.mark.parametrize("on_error", [pytest.param("raise", marks=pytest.mark.slow), "continue"])
def test_a_disk_that_takes_no_more_ends_the_trace_and_says_so(start, tmp_path, on_error):
    output, errors = start(on_error, 300_000).communicate(timeout=300)
    manifest = said(tmp_path / "dump")
    assert not manifest["complete"] and "File too large" in manifest["errors"][0]
    assert (tmp_path / "dump/trace/rank0.jsonl").stat().st_size <= 300_000
    assert ("trained to the end" in output) == (on_error == "continue")
    assert "File too large" in errors.strip().splitlines()[-1]


def test_a_rank_of_several_processes_has_one_writer(tmp_path):
    writer = TraceWriter(tmp_path, exclusive=True)
    writer.append(0, {"kind": "stage_start"})
    with pytest.raises(FileExistsError):
        TraceWriter(tmp_path, exclusive=True).append(0, {"kind": "stage_start"})
    writer.close()


def test_an_event_of_another_process_is_refused(tmp_path):
    writer = DumpWriter(tmp_path, "a", keep_values=False, place=Place(1, 2), trace=True)
    with pytest.raises(RecordError, match="rank 0"):
        writer.add_events(0, [{"kind": "stage_start"}], ())
    writer.close(complete=False)
