"""Scripts with no call of ours: what is recorded of them, and that they run as they do alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HEAD = """
import os, sys
import torch
from torch import nn
torch.manual_seed(0)
"""
TRAIN = f"""{HEAD}
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    loss = model(torch.randn(3, 4)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_loop_is_observed_by_its_own_names(observe):
    observe.copy("loop.py")
    run = observe("loop.py", "--steps", "2", "--accumulate", "2")
    assert run.error is None
    assert run.dump.complete
    assert run.dump.steps_finished == 3  # what is generated at the end is the beginning of one more
    assert run.stages() == [
        (0, "model.no_grad", 0),
        (0, "model", 0),
        (0, "model", 1),
        (1, "model", 0),
        (1, "model", 1),
        (2, "model.no_grad", 0),
    ]
    assert run.names("param_grad") >= {"model.h.1.mlp.c_proj.weight", "model.wte.weight"}
    assert run.names("optimizer") == {"model:gradients", "model:grad_norm", "model:clipped", "model:state",
                                      "model:weights"}  # fmt: skip
    records = {(one.tag, one.step, one.micro_step, one.path) for one in run.dump.records[0] if one.tag != "weights"}
    assert {
        ("inputs", 1, 1, "args0"),
        ("inputs", 1, 1, "args1"),
        ("outputs", 1, 1, "out0"),
        ("loss", 1, 1, ""),
    } < records
    assert str(observe.folder) in run.log, "it ran in its own folder"
    left = sorted(path.name for path in run.folder.iterdir())
    assert left == ["finished.json", "msprobe_dump", "spec.json", "trainer.log"]


def test_the_training_is_the_same_bit_for_bit_and_so_are_the_random_states(observe):
    observe.copy("loop.py")
    arguments = ("loop.py", "--steps", "2", "--weights")
    assert observe(*arguments, "observed.pt").error is None
    subprocess.run([sys.executable, *arguments, "alone.pt"], cwd=observe.folder, check=True, capture_output=True)
    observed, alone = (torch.load(observe.folder / f"{name}.pt", weights_only=True) for name in ("observed", "alone"))
    assert observed.keys() == alone.keys()
    assert [name for name in alone if not torch.equal(alone[name], observed[name])] == []


def test_its_own_modules_and_sitecustomize_stay_its_own(observe):
    own = {name: f"WHOSE = {name!r}" for name in ("probe", "tasks", "flows")}
    script = f"""{TRAIN}
import probe, tasks, flows, sitecustomize
sys.path.insert(0, "lib")
print(probe.WHOSE, tasks.WHOSE, flows.WHOSE, sitecustomize.WHOSE, sys.path[:2], sys.argv, sep="|")
"""
    observe.keys["env"] = {"PYTHONPATH": str(observe.folder / "site")}
    run = observe("train.py", "x", train=script, site__sitecustomize="WHOSE = 'site'", **own)
    assert run.error is None, run.log
    path = ["lib", str(observe.folder)]
    assert f"probe|tasks|flows|site|{path}|['train.py', 'x']" in run.log
    assert run.stages() == [(0, "model", 0), (1, "model", 0)]


def test_a_package_and_a_hard_exit_and_a_sitecustomize_of_the_scripts_own(observe):
    script = f"""{TRAIN}
from . import sitecustomize as mine
import sitecustomize
assert sitecustomize.WHOSE == mine.WHOSE == "mine", sitecustomize
print("hash of a text", hash("text"), flush=True)
import os
os._exit(0)
"""
    site = "WHOSE = 'mine'"
    run = observe("-m", "package.train", package__train=script, package__sitecustomize=site, sitecustomize=site)
    assert run.error is None, run.log
    assert run.stages() == [(0, "model", 0), (1, "model", 0)]
    assert run.dump.complete
    assert run.dump.steps_finished == 2
    assert run.log != observe("-m", "package.train").log  # the order of sets is drawn anew, as without a check


def test_a_training_in_a_thread_of_its_own_is_recorded_whole(observe):
    lines = "\n".join(f"    {line}" for line in TRAIN.splitlines())
    script = (
        f"import threading\ndef work():\n{lines}\nthread = threading.Thread(target=work)\nthread.start()\nthread.join()"
    )
    run = observe(train=script)
    assert run.error is None, run.log
    assert run.dump.problems == []
    assert run.dump.steps_finished == 2
    assert run.stages() == [(0, "model", 0), (1, "model", 0)]


def test_a_script_that_calls_the_probe_is_observed_as_it_asks(observe):
    script = f"""
from probe import Probe
from probe.errors import RecordError
{TRAIN.replace("for _", "probe = Probe.from_env(); probe.attach(actor=model)" + chr(10) + "for _")}
    with probe.stage("actor_update"):
        probe.save({{"mine": loss}})
    probe.step()
"""
    run = observe(train=script)
    assert run.error is None, run.log
    assert run.stages() == [(0, "actor_update", 0), (1, "actor_update", 0)]
    assert {record.tag for record in run.dump.records[0]} == {"mine", "weights"}
    assert run.dump.complete


@pytest.mark.slow
def test_one_that_calls_it_late_goes_on_in_the_same_dump(observe):
    script = f"""{TRAIN}
from probe import Probe
probe = Probe.from_env()
probe.save({{"mine": loss}})
probe.step()
model(torch.randn(3, 4))
"""
    run = observe(train=script)
    assert run.error is None, run.log
    assert run.stages() == [(0, "model", 0), (1, "model", 0)]
    assert "mine" in {record.tag for record in run.dump.records[0]}
    assert run.dump.complete


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("print('no torch')", "no Python process of the command imported torch"),
        (
            "import os, subprocess, sys; env = {**os.environ, 'PYTHONPATH': ''};"
            " subprocess.run([sys.executable, '-c', 'import torch'], env=env)",
            "with a PYTHONPATH of their own, are not seen",
        ),
        ("import torch; torch.ones(2).sum()", "imported torch, and called no module"),
    ],
)
def test_where_nothing_is_recorded_one_sentence_says_why(observe, script, said):
    run = observe(train=script)
    assert said in str(run.error)


@pytest.mark.slow
def test_a_process_that_takes_no_variables_is_told_of(observe):
    run = observe("-I", "train.py", train=TRAIN)
    assert "no Python process of the command reported in" in str(run.error)


@pytest.mark.slow
def test_its_signals_are_its_own(observe):
    run = observe(train=f"{TRAIN}\nimport signal\nsignal.raise_signal(signal.SIGINT)\n")
    assert run.error is not None
    assert run.error.exit_code_of_child == -signal.SIGINT
    assert "KeyboardInterrupt" in run.log


def test_its_exit_status_is_its_own(observe):
    run = observe(train=f"{TRAIN}\nsys.exit(3)")
    assert run.error is not None
    assert run.error.exit_code_of_child == 3
    assert not run.dump.complete
    assert run.dump.steps_finished == 2


@pytest.mark.slow
def test_torch_imported_late_in_a_function_and_a_class_names_what_no_variable_holds(observe):
    script = """
def main():
    import torch
    from torch import nn

    class Trainer:
        def __init__(self):
            self.policy = nn.Linear(2, 2)

        def run(self):
            return nn.Linear(2, 2)(self.policy(torch.ones(1, 2)))

    Trainer().run().sum().backward()

main()
"""
    run = observe(train=script)
    assert run.error is None, run.log
    assert [name for _, name, _ in run.stages()] == ["policy", "Linear"]


@pytest.mark.slow
def test_several_optimizers_make_one_step(observe):
    observe.copy("gan.py")
    run = observe("gan.py")
    assert run.error is None
    assert run.dump.steps_finished == 4
    assert [(name, micro) for step, name, micro in run.stages() if step == 2] == [("G", 0), ("D", 0), ("D", 1)]
    assert run.names("forward_output") >= {"criterion", "G.2", "D.2"}


@pytest.mark.slow
def test_what_an_optimizer_updates_and_no_module_holds_is_recorded(observe):
    script = f"""{HEAD}
model, temperature, bias = nn.Linear(4, 2), nn.Parameter(torch.ones(1)), torch.zeros(2, requires_grad=True)
optimizer = torch.optim.SGD([*model.parameters(), temperature, bias], 0.1)
for _ in range(3):
    ((model(torch.randn(3, 4)) + bias) / temperature).square().sum().backward()
    optimizer.step()
"""
    run = observe(train=script)
    assert run.error is None, run.log
    assert "loose:weights" in run.names("optimizer")
    weights = {record.path for record in run.dump.records[0] if record.tag == "weights" and record.step == 1}
    assert weights == {"model.weight", "model.bias", "loose.p0", "loose.p1"}


@pytest.mark.slow
def test_who_looks_at_a_model_calls_it_for_nothing(observe):
    looks = """
x = torch.randn(3, 4)
torch.fx.symbolic_trace(model)(x)
torch.jit.trace(model, x)
weights = {name: one.detach() for name, one in model.named_parameters()}
torch.func.vmap(torch.func.grad(lambda w, row: torch.func.functional_call(model, w, row).sum()), (None, 0))(weights, x)
torch.export.export(model, (x,))
with torch.device("meta"):
    nn.Linear(2, 2)(torch.ones(1, 2))
for _"""
    run = observe(train=TRAIN.replace("for _", looks))
    assert run.error is None, run.log
    assert run.dump.complete, run.dump.problems
    assert {name for _, name, _ in run.stages()} <= {"model", "model.no_grad", "Sequential"}, (
        "what torch.fx makes of it is a model of its own; torch.jit.trace calls it once more to compare"
    )
    assert [name for step, name, _ in run.stages() if step] == ["model"]
    assert run.dump.steps_finished == 2


@pytest.mark.slow
def test_an_update_that_a_scaler_skips_ends_no_step(observe):
    observe.copy("loop.py")
    run = observe("loop.py", "--steps", "3", "--scaler")
    assert run.error is None
    updates = [
        event["step"] for event in run.events() if (event["kind"], event["name"]) == ("optimizer", "model:weights")
    ]
    skipped = 3 - len(updates)
    assert skipped > 0, "the first scale is too large"
    assert run.dump.steps_finished == len(updates) + 1


@pytest.mark.slow
def test_without_an_optimizer_each_call_is_a_step(observe):
    observe.copy("inference.py")
    run = observe("inference.py")
    assert run.dump.steps_finished == 4
    assert run.stages() == [(step, "classifier.no_grad", 0) for step in range(4)]
    observe.keys["step"] = "optimizer"
    assert observe("inference.py").dump.steps_finished == 1


@pytest.mark.slow
def test_compiled_models_are_seen_from_outside_or_eagerly_on_request(observe):
    observe.copy("loop.py")
    run = observe("loop.py", "--steps", "1", "--compile")
    assert run.error is None, run.log
    hidden = [event for event in run.events() if event["kind"] == "not_observed"]
    assert all("torch.compile" in event["note"] for event in hidden)
    assert [(event["name"], event["stage"]) for event in hidden] == [("step", "model.no_grad"), ("step", "step")]
    assert "step._orig_mod.h.1.mlp" not in run.names("forward_output")
    assert {"outputs", "loss"} <= run.names("data")
    observe.keys["compile"] = "eager"
    run = observe("loop.py", "--steps", "1", "--compile")
    assert run.error is None, run.log
    assert "model.h.1.mlp" in run.names("forward_output")
    assert "not_observed" not in {event["kind"] for event in run.events()}


@pytest.mark.slow
def test_a_fork_that_calls_modules_is_not_taken_for_recorded(observe):
    script = f"""{TRAIN}
if os.fork() == 0:
    model(torch.randn(3, 4))
    os._exit(0)
os.wait()
model(torch.randn(3, 4))
"""
    run = observe(train=script)
    assert run.error is None
    assert not run.dump.complete
    assert "a forked process called modules" in str(run.dump.problems)


@pytest.mark.slow
def test_data_loader_workers_and_spawned_ranks(observe):
    script = """
import os
import torch, torch.distributed as dist, torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    augment = nn.Dropout(0.0)
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return self.augment(torch.full((4,), float(index)))

def work(rank):
    dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows in DataLoader(Rows(), batch_size=4, num_workers=1):
        model(rows).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
    run = observe(train=script)
    assert run.error is None, run.log
    assert run.dump.complete, run.dump.problems
    assert sorted(run.dump.ranks) == [0, 1]
    assert run.stages(1) == [(0, "model", 0), (1, "model", 0)]


@pytest.mark.slow
def test_a_step_that_an_error_breaks_off_is_not_taken_for_whole(observe):
    broken = TRAIN.replace("    optimizer.zero_grad()", "    if _: raise ValueError('mine')\n    optimizer.zero_grad()")
    run = observe(train=broken)
    assert run.error is not None
    assert "ValueError: mine" in str(run.error)
    assert run.dump.steps_finished == 1


@pytest.mark.slow
def test_threads_side_by_side_are_told_of(observe):
    script = f"""{TRAIN}
import threading
thread = threading.Thread(target=model, args=(torch.ones(1, 4),))
thread.start(), thread.join()
"""
    run = observe(train=script)
    assert run.error is None, run.log
    assert run.stages() == [(0, "model", 0), (1, "model", 0)]
    assert "more than one thread" in str(run.dump.problems)


@pytest.mark.slow
def test_processes_without_ranks_are_told_of(observe):
    script = f"""
import torch.multiprocessing as mp
def work(rank):
    {TRAIN.replace(chr(10), chr(10) + "    ")}
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
    run = observe(train=script)
    assert run.error is None, run.log
    assert not run.dump.complete
    assert "without a rank" in str(run.dump.problems)


@pytest.mark.slow
def test_torchrun_of_ours_and_of_the_script(observe):
    observe.copy("ddp.py")
    run = observe("torchrun", "--nproc-per-node", "2", "ddp.py")
    assert run.error is None, run.log
    assert (run.dump.complete, sorted(run.dump.ranks)) == (True, [0, 1])
    observe.keys["nproc_per_node"] = 2
    again = observe("ddp.py", probe="WHOSE = 'mine'")
    assert again.error is None, again.log
    for rank in (0, 1):
        one, two = ([event for event in each.events(rank) if event["kind"] != "rng"] for each in (run, again))
        assert [{**event, "i": 0} for event in one] == [{**event, "i": 0} for event in two]


@pytest.mark.slow
def test_a_python_without_torch_pays_little(observe, tmp_path: Path):
    bootstrap = Path(__file__).resolve().parents[3] / "probe/adapters/bootstrap.py"
    (tmp_path / "front").mkdir()
    (tmp_path / "front/sitecustomize.py").symlink_to(bootstrap)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "front"), "FIRSTDIFF_SPEC": str(tmp_path / "spec.json")}
    code = "import sys; print(*sorted(sys.modules))"
    with_us, without = (
        subprocess.run([sys.executable, "-c", code], env=one, capture_output=True, text=True, check=True).stdout.split()
        for one in (env, {**env, "PYTHONPATH": ""})
    )
    assert set(with_us) - set(without) <= {
        "importlib",
        "importlib.machinery",
        "sitecustomize",
        "warnings",
        "_warnings",
    }, with_us
