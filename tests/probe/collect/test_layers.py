"""Layer windows: msprobe's dumps, in the folders that the seed names, and none of its surprises.

msprobe's debugger is one object for a whole process, so that each scenario below is a script; the two run side by side,
and many tests look at what they left.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from probe.store.layers import Window, find_windows, load_tensor, read_events
from probe.store.reader import read_dump
from probe.types import RunSpec

STAGES_SCRIPT = """
import json, os
from pathlib import Path
import torch
from probe import Probe

probe = Probe.from_env()
dump, notes = Path("dump"), {}

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    def forward(self, x):
        return self.second(self.first(x))

def note(name):
    found = [path.relative_to(dump) for path in dump.rglob("*")]
    others = ("data", "reserve", "index", "manifest.json", "environment.json")
    first = lambda path: path.parts[0].removesuffix(".partial").lstrip(".")  # also while they are written
    notes[name] = sorted(path.as_posix() for path in found if first(path) not in others)

actor, reference = Model(), Model()
x = [torch.full((1, 2), float(number)) for number in range(9)]
probe.attach(actor=actor, reference=reference)

def step():
    with probe.stage("actor_compute_log_prob", micro_step=0):
        actor(x[0])
    with probe.stage("actor_compute_log_prob", micro_step=1):
        actor(x[1])
    with probe.stage("actor_compute_log_prob", micro_step=1):
        actor(x[2])
    with probe.stage("reference_compute_log_prob", rank=1):
        reference(x[3])
    with probe.stage("reference_compute_log_prob"):
        reference(x[4])
    with probe.stage("actor_generate_sequences"):
        actor(x[5])

step()
probe.step()
note("step 0")

step()
note("before abandoned")
try:
    with probe.stage("actor_update"):
        actor(x[0])
        raise KeyError("mine")
except KeyError as error:
    notes["error"] = str(error)
note("after abandoned")
notes["hidden after abandoned"] = sorted({p.name for p in dump.glob(".*")} - {".reserve"})
with probe.stage("actor_update"):
    actor(x[5]).sum().backward()
actor.zero_grad()
with probe.stage("actor_update", micro_step=5):
    actor(x[6])
    with probe.stage("reference_compute_log_prob"):
        reference(x[0])
    actor(x[7])
with probe.stage("actor_update", micro_step=7):
    actor(x[8])
    try:
        with probe.stage("reference_compute_log_prob"):
            raise KeyError("handled by the trainer")
    except KeyError:
        pass
    actor(x[0])
probe.step()
note("step 1")
step()
probe.step()
note("step 2")
try:
    probe.attach(actor=None)
    probe._step = 1
    with probe.stage("actor_update"):
        pass
except Exception as error:
    notes["no model"] = [type(error).__name__, str(error)]
json.dump(notes, open("notes.json", "w"))
"""

GENERATE_SCRIPT = """
import json
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from probe import Probe

torch.manual_seed(0)
notes = {}
model = Qwen2ForCausalLM(Qwen2Config(vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=1, pad_token_id=0, eos_token_id=31, attn_implementation="eager")).eval()
prompts = torch.tensor([[1, 2, 3], [4, 5, 6]])

@torch.no_grad()
def generate(tokens=5):
    return model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=tokens,
        min_new_tokens=tokens, do_sample=False)

plain = generate()
state = torch.get_rng_state()
probe = Probe.from_env()
probe.attach(actor=model)
with probe.stage("actor_generate_sequences", micro_step=0):
    dumped = generate()
notes["same tokens"] = torch.equal(plain, dumped)
with probe.stage("actor_generate_sequences", micro_step=1):
    generate()
with torch.no_grad(), probe.stage("actor_compute_log_prob"):
    for length in (3, 4, 5):
        model(input_ids=plain[:, :length])
with probe.stage("actor_generate_sequences", micro_step=2):
    generate()
with probe.stage("actor_update"):
    for length in (3, 4, 5):
        model(input_ids=plain[:, :length]).logits.sum().backward()
probe.step()
with probe.stage("actor_generate_sequences"):
    generate()
notes["hooks"] = len(model._forward_pre_hooks)
notes["random state kept"] = torch.equal(state, torch.get_rng_state())
json.dump(notes, open("notes.json", "w"))
with probe.stage("actor_generate_sequences", micro_step=1):
    generate(tokens=1)  # ends before the range of tokens begins
probe.step()
"""


AFTER_A_HANDLED_ERROR = "actor_update/step1/rank0/micro_step7"


class Scenario:
    """What a script left: its notes, and its windows by folder."""

    def __init__(self, folder: Path, status: int, err: str) -> None:
        self.status, self.err = status, err
        self.dump = folder / "dump"
        self.notes = json.loads((folder / "notes.json").read_text())
        self.windows = {w.folder.relative_to(self.dump).as_posix(): w for w in find_windows(self.dump)}

    def root_inputs(self, window: str, module: str) -> list[torch.Tensor]:
        """The first argument of each call of a module in a window, in order."""
        found = self.windows[window]
        events = [e for e in read_events(found) if (e.kind, e.name) == ("forward_input", module)]
        return [load_tensor(found, dict(event.items)["args.0"]["data_name"]) for event in events]

    def window_json(self, window: str) -> dict[str, object]:
        return json.loads((self.dump / window / "window.json").read_text())


# Importing msprobe and transformers takes longer than all that the scenarios do, so both are forks of one process.
FORK = """
import gc, os
import msprobe.pytorch, torch, transformers
from transformers import Qwen2ForCausalLM
gc.freeze()  # forks leave alone what is loaded
pids = []
for name in ("stages", "generate"):
    pid = os.fork()
    if pid == 0:
        os.chdir(name)
        os.dup2(os.open("err", os.O_CREAT | os.O_WRONLY), 2)
        os.environ["FIRSTDIFF_SPEC"] = "spec.json"
        exec(open("script.py").read())
        break
    pids.append(pid)
else:
    for pid in pids:
        open(f"{pids.index(pid)}.status", "w").write(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
"""


@pytest.fixture(scope="module")
def scenarios(start_script, tmp_path_factory) -> dict[str, Scenario]:
    base = tmp_path_factory.mktemp("layers")
    scripts = {"stages": STAGES_SCRIPT, "generate": GENERATE_SCRIPT}
    specs = {
        "stages": {
            "dump_stages": ("actor_compute_log_prob", "reference_compute_log_prob", "actor_update"),
            "step_start": 1,
            "step_end": 1,
        },
        "generate": {
            "dump_stages": ("actor_generate_sequences", "actor_compute_log_prob", "actor_update"),
            "step_end": 1,
            "token_range": (1, 2),
        },
    }
    for name, code in scripts.items():
        (base / name).mkdir()
        (base / name / "script.py").write_text(code)
        spec = RunSpec(run="c", dump_path=str(base / name / "dump"), **specs[name])
        (base / name / "spec.json").write_text(spec.to_json())
    _, err = start_script(base, FORK).communicate(timeout=120)
    assert (base / "1.status").exists(), err
    found = {}
    for number, name in enumerate(scripts):
        err = (base / name / "err").read_text()
        assert (base / name / "notes.json").exists(), err
        found[name] = Scenario(base / name, int((base / f"{number}.status").read_text()), err)
    return found


@pytest.fixture
def stages(scenarios):
    return scenarios["stages"]


@pytest.fixture
def generate(scenarios):
    return scenarios["generate"]


class TestStages:
    def test_only_the_chosen_stages_of_the_chosen_steps_are_dumped_and_under_rank_never_pid(self, stages):
        assert stages.notes["step 0"] == []
        assert stages.notes["step 2"] == stages.notes["step 1"]
        assert sorted(set(stages.windows) - {AFTER_A_HANDLED_ERROR}) == [
            "actor_compute_log_prob/step1/rank0",
            "actor_compute_log_prob/step1/rank0/micro_step1",
            "actor_compute_log_prob/step1/rank0/micro_step2",
            "actor_update/step1/rank0",
            "actor_update/step1/rank0/micro_step5",
            "reference_compute_log_prob/step1/rank0",
            "reference_compute_log_prob/step1/rank1",
        ]
        assert not [path for path in stages.dump.rglob("*") if "proc" in path.name]

    @pytest.mark.parametrize(
        ("window", "inputs"),
        [
            ("actor_compute_log_prob/step1/rank0", [0]),
            ("actor_compute_log_prob/step1/rank0/micro_step1", [1]),
            ("actor_compute_log_prob/step1/rank0/micro_step2", [2]),
            ("reference_compute_log_prob/step1/rank1", [3]),
            ("reference_compute_log_prob/step1/rank0", [4]),
            ("actor_update/step1/rank0", [5]),
        ],
    )
    def test_every_window_holds_what_ran_in_it(self, window, inputs, stages):
        assert [tensor.tolist() for tensor in stages.root_inputs(window, "first")] == [[[x, x]] for x in inputs]

    def test_backward_passes_are_dumped(self, stages):
        kinds = {(e.kind, e.name) for e in read_events(stages.windows["actor_update/step1/rank0"])}
        assert {("grad_output", "second"), ("param_grad", "second.weight"), ("param_grad", "first.weight")} <= kinds

    def test_a_stage_inside_a_dumped_one_belongs_to_its_window(self, stages):
        inputs = stages.root_inputs("actor_update/step1/rank0/micro_step5", "first")
        assert [tensor[0, 0].item() for tensor in inputs] == [6, 7]

    def test_a_failed_inner_stage_that_the_trainer_handled_does_not_cost_the_outer_window(self, stages):
        inputs = stages.root_inputs(AFTER_A_HANDLED_ERROR, "first")
        assert [tensor[0, 0].item() for tensor in inputs] == [8, 0]

    def test_an_abandoned_window_leaves_nothing_and_the_error_is_the_trainer_s(self, stages):
        assert stages.notes["error"] == "'mine'"
        assert stages.notes["after abandoned"] == stages.notes["before abandoned"]
        assert stages.notes["hidden after abandoned"] == []

    def test_window_json_says_what_it_is(self, stages):
        assert stages.window_json("actor_compute_log_prob/step1/rank0/micro_step1") == {
            "stage": "actor_compute_log_prob",
            "step": 1,
            "rank": 0,
            "micro_step": 1,
            "role": "actor",
            "order": 1,
        }
        assert stages.window_json("reference_compute_log_prob/step1/rank1")["role"] == "reference"

    def test_windows_are_numbered_in_the_order_in_which_they_ran(self, stages):
        windows = [window for name, window in stages.windows.items() if name != AFTER_A_HANDLED_ERROR]
        ran = sorted(windows, key=lambda window: window.order)
        assert [(w.stage, w.rank, w.micro_step) for w in ran] == [
            ("actor_compute_log_prob", 0, 0),
            ("actor_compute_log_prob", 0, 1),
            ("actor_compute_log_prob", 0, 2),
            ("reference_compute_log_prob", 1, 0),
            ("reference_compute_log_prob", 0, 0),
            ("actor_update", 0, 0),
            ("actor_update", 0, 5),
        ]
        assert all(isinstance(window, Window) and window.complete for window in ran)

    def test_dump_json_names_the_folder_where_its_tensors_lie(self, stages):
        for window in stages.windows.values():
            dump = json.loads((window.folder / "dump.json").read_text())
            assert Path(dump["dump_data_dir"]) == window.folder / "dump_tensor_data"
            assert (dump["task"], dump["level"]) == ("tensor", "L0")

    def test_no_scratch_folder_is_left(self, stages, generate):
        assert not [path for scenario in (stages, generate) for path in scenario.dump.glob(".*")]

    def test_a_dumped_stage_without_a_model_is_a_usage_error(self, stages):
        kind, message = stages.notes["no model"]
        assert kind == "UsageError"
        assert "actor_update" in message and "attached as actor" in message and "probe.attach" in message
        assert not read_dump(stages.dump).complete


class TestGeneration:
    def test_the_token_range_dumps_exactly_those_forward_passes(self, generate):
        (first, second) = generate.root_inputs("actor_generate_sequences/step0/rank0", "lm_head")
        assert (first.shape[:2], second.shape[:2]) == ((2, 1), (2, 1))
        tokens = generate.root_inputs("actor_generate_sequences/step0/rank0", "model.embed_tokens")
        assert [tuple(ids.shape) for ids in tokens] == [(2, 1), (2, 1)]

    def test_every_window_of_generation_has_its_own_token_range(self, generate):
        windows = [f"actor_generate_sequences/step0/rank0{end}" for end in ("", "/micro_step1", "/micro_step2")]
        windows.append("actor_generate_sequences/step1/rank0")
        first, *later = (generate.root_inputs(window, "lm_head") for window in windows)
        for calls in later:
            assert [a.tolist() for a in calls] == [b.tolist() for b in first]

    def test_counting_tokens_does_not_cut_off_the_windows_after_it(self, generate):
        for stage in ("actor_compute_log_prob", "actor_update"):
            calls = generate.root_inputs(f"{stage}/step0/rank0", "lm_head")
            assert [call.shape[1] for call in calls] == [3, 4, 5]

    def test_dumping_changes_neither_the_tokens_nor_the_random_state(self, generate):
        assert generate.notes["same tokens"] and generate.notes["random state kept"]

    def test_the_hook_that_counts_tokens_is_taken_away(self, generate):
        assert generate.notes["hooks"] == 0

    def test_a_generation_that_ends_before_the_range_does_not_end_the_trainer(self, generate):
        assert generate.status == 0, generate.err
        dump = read_dump(generate.dump)
        assert (dump.complete, dump.steps_finished) == (True, 2)
