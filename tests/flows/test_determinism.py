"""The determinism check from end to end: real trainer processes, real msprobe, a real Prefect server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

STEPS = ("1 collect", "2 compare", "3 locate", "4 collect", "5 compare", "6 name")

SLOW = pytest.mark.slow


def test_demo_finds_the_planted_module(check: Callable[..., Any], tmp_path: Path, prefect_api: str) -> None:
    out = tmp_path / "demo"
    done = check("demo", "--out", out, "--set", "check.compress=false")

    document = done.document
    assert done.status == 1
    assert document["verdict"] == "divergent"
    assert document["first"]["step"] == 2
    assert document["first"]["stage"] == "reference_compute_log_prob"
    assert document["first"]["event"] == "forward_output"
    assert document["cause"]["kind"] == "module_forward"
    assert document["cause"]["name"] == "reference.model.layers.1.mlp.down_proj"
    assert document["key_data"]["first"]["tag"] == "ref_log_prob"
    assert document["layers"]["reproduced"] is True
    assert document["trace"]["event"]["event"] == "forward_output"
    assert document["replay"]["result"] == "confirmed alone"
    assert "replay: confirmed alone: the forward of reference.model.layers.1.mlp.down_proj" in done.stderr
    assert document["runs"] == {run: f"{run}/msprobe_dump" for run in "abcd"}
    assert document["cost"]["trainer_steps"] == 6 + 6 + 3 + 3
    assert document["cost"]["documented_recipe_steps"] == 24
    for word in ("divergent", "step 2", "reference_compute_log_prob", "reference.model.layers.1.mlp.down_proj"):
        assert word in done.last_line
    assert done.last_line.endswith("report.html")
    assert f"({document['hints'][0]['source']})" in done.stderr, "what to do stands above it"
    _assert_artefacts(out, document)
    names, logs = asyncio.run(_what_the_server_knows(prefect_api))
    for step in STEPS:
        assert any(name.startswith(step) for name in names), (step, names)
    assert '"reward"' in logs, "the trainer's output is in the flow run's log"


def _assert_artefacts(out: Path, document: dict[str, Any]) -> None:
    for name in ("profile.yaml", "verdict.json", "report.html", "a/trainer.log", "d/msprobe_dump/manifest.json"):
        assert (out / name).is_file(), name
    assert (out / "c/msprobe_dump/reference_compute_log_prob/step2/rank0/dump.json").is_file()
    assert not (out / "c/msprobe_dump/actor_update").exists(), "only the culprit's layers are dumped"
    assert not (out / "a/msprobe_dump/reference_compute_log_prob").exists()
    table = pd.read_excel(out / "keydata/ref_log_prob.xlsx")
    assert (table.loc[table["step"] == 2, "相同元素百分比(%)"] < 100).all()
    assert (table.loc[table["step"] != 2, "相同元素百分比(%)"] == 100).all()
    (layers,) = (out / "layers").glob("compare_result_*.xlsx")
    assert "Module.model.layers.1.mlp.down_proj" in str(pd.read_excel(layers)["NPU Name"].tolist())
    assert document["tables"]["not_made"] == []
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "reference.model.layers.1.mlp.down_proj" in report
    assert document["hints"] and all(hint["source"] in report for hint in document["hints"])
    for hint in document["hints"]:
        report = report.replace(hint["source"], "")  # what somebody may click on
    assert "https://" not in report and "http://" not in report, "the report needs no network"


async def _what_the_server_knows(api: str) -> tuple[list[str], str]:
    """Names of all task runs, and all log lines of the latest flow run, once they have arrived."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
    from prefect.client.schemas.sorting import FlowRunSort
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}):
        async with get_client() as client:
            (run,) = await client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=1)
            for _ in range(50):
                logs = await client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])), limit=200)
                text = "\n".join(log.message for log in logs)
                names = [task.name for task in await client.read_task_runs(limit=200)]
                if '"reward"' in text and len(names) >= 8:
                    break
                await asyncio.sleep(0.2)
    return names, text


def test_deterministic_is_identical_without_a_server(firstdiff: Callable[..., Any], tmp_path: Path) -> None:
    home = str(tmp_path / "fresh")
    kept = ("--set", "check.compress=false")
    done = firstdiff("check", "deterministic", "--set", "check.steps=3", *kept, "--json", PREFECT_HOME=home)

    assert done.status == 0, done.stderr
    document = done.document
    assert document["verdict"] == "identical"
    assert document["first"] is None
    assert document["cause"]["kind"] == "none"
    assert document["runs"]["c"] is None, "no layers are dumped when nothing differs"
    assert document["key_data"]["different"] == 0
    assert document["key_data"]["compared"] > 100
    (folder,) = (path for path in (tmp_path / "checks").iterdir() if path.is_dir())
    one, two = (folder / run / "msprobe_dump/index/rank0.jsonl" for run in "ab")
    assert one.read_bytes() == two.read_bytes()
    one, two = (folder / run / "msprobe_dump/trace/rank0.jsonl" for run in "ab")
    assert one.read_bytes() == two.read_bytes()
    assert document["trace"]["compared"] == len(one.read_bytes().splitlines()) > 1000
    assert document["replay"] is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "module", "step", "stage"),
    [
        pytest.param("reference", "model.layers.0.self_attn.q_proj", 0, "reference_compute_log_prob", marks=SLOW),
        pytest.param("reference", "model.norm", 2, "reference_compute_log_prob", marks=SLOW),
        pytest.param("actor", "model.layers.0.self_attn.o_proj", 1, "actor_compute_log_prob", marks=SLOW),
        pytest.param("actor", "model.layers.1.mlp.gate_proj", 1, "actor_update", marks=SLOW),
        ("actor", "model.layers.0.mlp.down_proj", 1, "actor_generate_sequences"),
    ],
)
def test_a_planted_module_is_named(check: Callable[..., Any], role: str, module: str, step: int, stage: str) -> None:
    fault = f"faults=[{{role: {role}, module: {module}, step: {step}, stage: {stage}}}]"
    done = check("deterministic", "--set", "check.steps=3", "--set", fault)

    assert done.status == 1, done.stderr
    document = done.document
    assert document["first"]["step"] == step
    assert document["first"]["stage"] == stage
    assert document["first"]["event"] == "forward_output"
    assert document["cause"]["name"] == f"{role}.{module}"


@pytest.mark.slow
def test_digests_alone_lead_to_the_module_too(check: Callable[..., Any]) -> None:
    """Without values nobody knows which token differs first: all are dumped."""
    module = "model.layers.1.self_attn.v_proj"
    fault = f"faults=[{{role: actor, module: {module}, step: 1, stage: actor_generate_sequences}}]"
    done = check("deterministic", "--set", "check.steps=2", "--set", fault, "--set", "record.key_data=digests")

    document = done.document
    assert (done.status, document["first"]["step"]) == (1, 1)
    assert document["first"]["stage"] == "actor_generate_sequences"
    assert document["cause"]["name"] == f"actor.{module}"
    assert any(sentence.startswith("keydata") for sentence in document["tables"]["not_made"])


def test_without_msprobe_a_check_works_from_our_own_records(
    check: Callable[..., Any], tmp_path: Path, root: Path
) -> None:
    """msprobe has wheels for Linux only. Here it is hidden from the child processes, as there is no other system."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "sitecustomize.py").write_text(
        "import importlib.util as u, sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'msprobe': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Hide())\n"
        "real = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'msprobe' else real(name, package)\n"
    )
    done = check("demo", "--set", "check.steps=3", PYTHONPATH=str(hidden))

    document = done.document
    assert (done.status, document["verdict"]) == (1, "divergent")
    assert document["first"]["step"] == 2
    assert document["first"]["stage"] == "reference_compute_log_prob"
    assert document["key_data"]["first"]["tag"] == "ref_log_prob"
    assert document["tables"]["made"] == []
    assert len(document["tables"]["not_made"]) > 5
    assert all("msprobe is not installed" in sentence for sentence in document["tables"]["not_made"])
    assert any("no layers were dumped" in note for note in document["notes"])


SCRIPT = """
import random, sys
import torch
from probe import Probe

torch.manual_seed(0)
probe = Probe.from_env()
actor = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
probe.attach(actor=actor)
for step in range(3):
    batch = torch.randn(16, 4)
    if MODE == "shuffled" and step == 1:
        order = list(range(16)); random.SystemRandom().shuffle(order); batch = batch[order]
    probe.save({"prompts": batch})
    rewards = torch.ones(16)
    if MODE == "rewards" and step == 1:
        rewards[0] = random.SystemRandom().random()
    probe.save({"rewards": rewards})
    with probe.stage("actor_update"):
        loss = (actor(batch).squeeze(1) - rewards).square().mean()
        if MODE == "loss" and step == 1:
            loss = loss * (1 + random.SystemRandom().random())
        loss.backward()
        probe.save({"loss": loss})
        optimizer.step(); optimizer.zero_grad()
        if MODE == "between":
            if step == 1:
                with torch.no_grad():
                    actor[2].bias.add_(random.SystemRandom().random())
            loss = (actor(batch).squeeze(1) - rewards).square().mean()
            probe.save({"loss": loss})
        if MODE == "update" and step == 2:
            with torch.no_grad():
                actor[2].bias.add_(random.SystemRandom().random())
    probe.step()
    if MODE == "crash" and step == 1:
        raise RuntimeError("the loader went away")
"""


@pytest.fixture
def command_profile(tmp_path: Path) -> Callable[[str], Path]:
    """A profile that runs a small script with ``Probe`` calls, in one of its modes."""

    def make(mode: str) -> Path:
        (tmp_path / "train.py").write_text(SCRIPT.replace("MODE", repr(mode)))
        profile = tmp_path / "mine.yaml"
        profile.write_text("trainer:\n  kind: command\n  command: [python, train.py]\n")
        return profile

    return make


@pytest.mark.parametrize(
    ("mode", "step", "stage", "kind"),
    [
        ("shuffled", 1, None, "data"),
        pytest.param("rewards", 1, None, "rewards", marks=SLOW),
        pytest.param("loss", 1, "actor_update", "loss", marks=SLOW),
        pytest.param("update", 2, "actor_update", "optimizer", marks=SLOW),
        pytest.param("between", 1, "actor_update", "weights", marks=SLOW),
    ],
)
def test_a_command_trainer_is_located(
    check: Callable[..., Any], command_profile: Callable[[str], Path], mode: str, step: int, stage: str, kind: str
) -> None:
    done = check(command_profile(mode))

    assert done.status == 1, done.stderr
    document = done.document
    assert document["first"]["step"] == step
    assert document["first"]["stage"] == stage
    assert document["cause"]["kind"] == kind
    if mode == "shuffled":
        assert document["cause"]["permutation"] is True
    if stage is None:
        assert document["runs"]["c"] is None, "no model is involved, so no layers are dumped"
        assert "no model is involved" in document["cause"]["explanation"]


@SLOW
def test_a_command_trainer_without_a_fault_is_identical(
    check: Callable[..., Any], command_profile: Callable[[str], Path]
) -> None:
    done = check(command_profile("none"))
    assert (done.status, done.document["verdict"]) == (0, "identical")


HOSTILE = """
import random, sys
from collections.abc import Mapping
import torch
from probe import Probe

class Refuses(Mapping):
    def __getitem__(self, key): raise KeyError(key)
    def __iter__(self): raise RuntimeError("not to be looked into")
    def __len__(self): return 1

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.head(x), Refuses()

torch.manual_seed(0)
probe = Probe.from_env()
model = Model()
probe.attach(actor=model)
for step in range(3):
    with probe.stage("actor_update"):
        loss = model(torch.ones(2, 4))[0].sum() * (random.SystemRandom().random() if MODE and step == 1 else 1)
        loss.backward()
        probe.save({"loss": loss})
    probe.step()
print("trained to the end", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("differs", [False, True])
def test_what_the_trace_cannot_follow_never_ends_a_training(
    check: Callable[..., Any], tmp_path: Path, differs: bool
) -> None:
    (tmp_path / "train.py").write_text(HOSTILE.replace("MODE", repr(differs)))
    (tmp_path / "mine.yaml").write_text("trainer:\n  kind: command\n  command: [python, train.py]\n")
    done = check(tmp_path / "mine.yaml", "--out", tmp_path / "out")

    why = "the trace stopped at step 0 (RuntimeError: not to be looked into); record.trace=false checks without it"
    document = done.document
    assert document["verdict"] == ("divergent" if differs else "inconclusive"), done.stderr
    assert any(why in sentence for sentence in document["not_compared"]), document["not_compared"]
    assert "trained to the end" in (tmp_path / "out/a/trainer.log").read_text()
    if differs:
        assert (document["first"]["step"], document["first"]["stage"]) == (1, "actor_update")
    without = check(tmp_path / "mine.yaml", "--set", "record.trace=false")
    assert without.document["verdict"] == ("divergent" if differs else "identical")


def test_a_crashing_trainer_is_inconclusive_in_one_sentence(
    check: Callable[..., Any], command_profile: Callable[[str], Path], tmp_path: Path
) -> None:
    done = check(command_profile("crash"), "--out", tmp_path / "out")

    assert done.status == 2
    assert done.document["verdict"] == "inconclusive"
    assert "run a: the trainer failed with exit status 1" in done.document["error"]
    assert "the loader went away" in done.last_line
    assert "the loader went away" in (tmp_path / "out/report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_resolved_profile_can_be_checked_again(
    check: Callable[..., Any], command_profile: Callable[[str], Path], tmp_path: Path
) -> None:
    check(command_profile("none"), "--set", "check.steps=2", "--out", tmp_path / "first")
    done = check(tmp_path / "first/profile.yaml", "--out", tmp_path / "second")
    assert done.status == 0, done.stderr
    assert (tmp_path / "first/profile.yaml").read_bytes() == (tmp_path / "second/profile.yaml").read_bytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_check_ends_its_trainer(tmp_path: Path, prefect_api: str, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(
        "import os, time, pathlib\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    (tmp_path / "mine.yaml").write_text("trainer:\n  kind: command\n  command: [python, train.py]\n")
    command = [sys.executable, "-m", "flows.cli", "check", "mine.yaml", "--json"]
    env = {**os.environ, "PREFECT_API_URL": prefect_api, "DO_NOT_TRACK": "1"}
    process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.2)
        trainer = int((tmp_path / "pid").read_text())
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, errors.decode()
    assert b'"verdict": null' in output
    assert b"Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.kill(trainer, 0)


@pytest.mark.slow
def test_ten_checks_in_a_row_each(check: Callable[..., Any]) -> None:
    for _ in range(10):
        same = check("deterministic")
        assert (same.status, same.document["verdict"]) == (0, "identical")
        demo = check("demo")
        found = demo.document
        assert (demo.status, found["first"]["step"], found["first"]["stage"], found["cause"]["name"]) == (
            1,
            2,
            "reference_compute_log_prob",
            "reference.model.layers.1.mlp.down_proj",
        )
