"""What MindSpeed-RL's own class leaves by real SingleSave and PrecisionDebugger, made a dump that is compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from probe.comparison import compare_dumps
from probe.store import layout
from probe.store.adopting import adopt
from probe.store.reader import read_dump

STAND_IN = Path(__file__).resolve().parents[2] / "mindspeed_stand_in"
RUN = """
import os, sys, torch
from mindspeed_rl.config_cls.mindstudio_config import MsprobeConfig
from mindspeed_rl.utils.utils import MsProbe

for name, bent in (("a", 0.0), ("b", 0.0), ("c", 2.0**-10)):
    folder = os.path.join(sys.argv[1], name)
    if os.fork():
        if os.wait()[1]:
            raise SystemExit(1)
        continue
    torch.manual_seed(0)
    actor = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    reference = [torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))]
    MsProbe.config_init(MsprobeConfig({"msprobe": True, "dump_path": folder, "key_data_dump": True,
        "configurations_dump": True, "reference_dump": True, "step_start": 1, "step_end": 1}))
    MsProbe.save_configs({"actor": {"lr": 1e-6}})
    for step in range(3):
        x = torch.linspace(-1, 1, 16).reshape(4, 4) + step
        MsProbe.save_data({"responses": [torch.arange(3), torch.arange(5)], "prompts": [torch.arange(2)]})
        MsProbe.debugger_start(model=reference, tag="reference_compute_log_prob")
        with torch.no_grad():
            if step == 1:
                reference[0][2].weight += bent
            known = reference[0](x)
        MsProbe.debugger_stop("reference_compute_log_prob")
        MsProbe.debugger_start(actor, tag="actor_update")
        for part in range(2):
            MsProbe.save_data({"ref_log_prob": known, "log_prob": actor(x), "loss": actor(x).sum()})
        MsProbe.debugger_stop(tag="actor_update")
        MsProbe.step()
    sys.stdout.flush()
    os._exit(0)
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("written")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN, str(folder)],
        env={"PYTHONPATH": str(STAND_IN), "PYTHONDONTWRITEBYTECODE": "1", "PATH": ""},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "runs"))


def test_it_is_read_as_our_own(run: Path) -> None:
    before = {path for path in (run / "a").rglob("*") if path.is_file()}
    assert adopt(run / "a", "a", steps=3, ranks=1, complete=True)
    dump = read_dump(run / "a")
    assert (dump.complete, dump.steps_finished, dump.problems) == (True, 3, [])
    records = [(record.tag, record.micro_step, record.path, record.dtype, record.shape) for record in dump.records[0]]
    assert records[:3] == [
        ("prompts", 0, "0", "float32", (2,)),
        ("responses", 0, "0", "float32", (3,)),
        ("responses", 0, "1", "float32", (5,)),
    ]
    assert ("loss", 1, "", "float32", ()) in records
    added = {path for path in (run / "a").rglob("*") if path.is_file()} - before
    assert {path.name for path in added} == {layout.WINDOW, "manifest.json", "rank0.jsonl"}


def test_two_equal_runs_are_identical_and_another_is_found_in_its_module(run: Path) -> None:
    for name in "abc":
        adopt(run / name, name, steps=3, ranks=1, complete=True)
    same = compare_dumps(run / "a", run / "b", None)
    assert (same["verdict"], same["key_data"]["different"]) == ("inconclusive", 0)
    assert "by statistics alone" in same["not_compared"][0]  # of the layers msprobe kept no more
    other = compare_dumps(run / "a", run / "c", None)
    assert (other["verdict"], other["certainty"]["level"]) == ("divergent", "statistics")
    assert (other["key_data"]["first"]["tag"], other["key_data"]["first"]["step"]) == ("ref_log_prob", 1)
    assert other["first"]["stage"] == "reference_compute_log_prob"
    assert other["cause"]["name"].startswith("reference.0.2")


def test_a_value_that_is_changed_later_is_noticed(run: Path) -> None:
    adopt(run / "a", "a", steps=3, ranks=1, complete=True)
    file = run / "a/data/loss/step1/rank0/micro_step1/loss.npy"
    file.write_bytes(file.read_bytes() + b"more")
    adopt(run / "b", "b", steps=3, ranks=1, complete=True)
    assert compare_dumps(run / "a", run / "b", None)["verdict"] != "identical"


def test_a_run_that_did_not_end_is_never_whole(run: Path) -> None:
    for steps, ranks, complete, words in (
        (4, 1, True, "rank 0 saved nothing in step 3"),
        (3, 2, True, "of 2 processes, rank 1 saved no key data"),
        (3, 1, False, "did not finish"),
    ):
        adopt(run / "a", "a", steps=steps, ranks=ranks, complete=complete)
        dump = read_dump(run / "a")
        assert not dump.complete
        assert words in dump.problems[0]
    assert not list((run / "a").rglob(layout.WINDOW))


def test_a_damaged_value_is_told(run: Path) -> None:
    file = run / "a/data/log_prob/step2/rank0/micro_step0/log_prob.npy"
    file.write_bytes(file.read_bytes()[:-3])
    adopt(run / "a", "a", steps=3, ranks=1, complete=True)
    assert "log_prob.npy: not a readable .npy file" in read_dump(run / "a").problems[0]


def test_nothing_is_nothing(tmp_path: Path) -> None:
    assert not adopt(tmp_path, "a", steps=1, ranks=1, complete=True)
    assert not (tmp_path / "manifest.json").exists()


def test_the_manifest_says_what_was_adopted(run: Path) -> None:
    adopt(run / "a", "a", steps=None, ranks=None, complete=True)
    manifest = json.loads((run / "a/manifest.json").read_text())
    assert manifest["files"] == ["configurations.json"]
    assert manifest["values"] == len(list((run / "a/data").rglob("*.npy")))
