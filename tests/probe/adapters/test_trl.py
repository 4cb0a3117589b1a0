"""TRL's and transformers' trainers: what is recorded of real ones, and that they compute what they compute alone."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from probe import instrument
from probe.adapters.trl import texts
from probe.adapters.wrapped import TABLE, Wrapped, misfits

PARAMETERS = {
    "compute_loss": "model inputs return_outputs num_items_in_batch",
    "prediction_step": "model inputs prediction_loss_only ignore_keys",
    "clip_grad_norm_": "parameters max_norm norm_type",
    "_generate_and_score_completions": "inputs",
    "_generate": "prompts",
    "_calculate_rewards": "inputs prompts completions completion_ids_list",
}
"""What the wrapped methods take in the versions that were tested; of the log-probabilities, see the table."""


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def test_grpo_is_observed_by_its_stages_and_computes_the_same_bits(observe, scripts, tiny_qwen2):
    observe.copy("grpo.py")
    arguments = ("grpo.py", str(tiny_qwen2), "--set", "num_iterations=2", "--weights")
    run = observe(*arguments, "observed.pt")
    assert run.error is None, run.log
    assert run.dump.complete
    assert run.dump.steps_finished == 2
    assert run.stages() == [
        (0, "actor_generate_sequences", 0),
        (0, "actor_compute_log_prob", 0),
        (0, "reference_compute_log_prob", 0),
        (0, "actor_update", 0),
        (0, "actor_update", 1),
        (1, "actor_update", 0),  # of the same responses
        (1, "actor_update", 1),
    ]
    saved = [
        (event["name"], event["stage"], event["micro_step"])
        for event in run.events()
        if event["kind"] == "data" and event["step"] == 0
    ]
    assert saved == [
        ("prompts", None, 0),
        ("responses", "actor_generate_sequences", 0),
        ("old_log_prob", "actor_compute_log_prob", 0),
        ("ref_log_prob", "reference_compute_log_prob", 0),
        ("rewards", None, 0),
        ("advantages", None, 0),
        ("inputs", None, 0),
        ("log_prob", "actor_update", 0),
        ("kl_loss", "actor_update", 0),
        ("loss", "actor_update", 0),
        ("inputs", None, 1),
        ("log_prob", "actor_update", 1),
        ("kl_loss", "actor_update", 1),
        ("loss", "actor_update", 1),
        ("grad_norm", "actor_update", 1),
    ]
    assert run.names("not_observed") == set()
    assert run.names("forward_output") >= {"actor", "reference", "actor.model.layers.1.mlp"}
    assert {event["stage"] for event in run.events() if event["kind"] == "optimizer"} == {"actor_update"}
    records = {(one.tag, one.path, one.shape) for one in run.dump.records[0]}
    assert {("rewards", "reward", (8,)), ("responses", "tokens", (8, 6)), ("prompts", "", (8, 38))} <= records

    command = [sys.executable, *arguments, "alone.pt"]
    subprocess.run(command, cwd=observe.folder, check=True, capture_output=True)
    observed, alone = (torch.load(observe.folder / f"{name}.pt", weights_only=True) for name in ("observed", "alone"))
    assert torch.equal(observed["random"], alone["random"])
    assert observed["weights"].keys() == alone["weights"].keys()
    unlike = [name for name, one in alone["weights"].items() if not torch.equal(one, observed["weights"][name])]
    assert unlike == []


def _classes(row: Wrapped) -> Iterator[Any]:
    import transformers
    import trl
    from accelerate import Accelerator

    if row.library == "accelerate":
        yield Accelerator
        return
    for kind in row.kinds:
        yield getattr(trl if row.library == "trl" else transformers, kind)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_what_is_wrapped_is_there_and_takes_what_it_took(row):
    for kind in _classes(row):
        method = getattr(kind, row.name)
        taken = list(inspect.signature(method).parameters)[1:]
        assert tuple(taken[: len(row.parameters)]) == row.parameters
        if row.name in PARAMETERS:
            assert taken == PARAMETERS[row.name].split()
        assert row.misfit(kind.__name__, method.__get__(object())) is None


def test_a_name_that_vanished_or_takes_something_else_is_told():
    from trl import GRPOTrainer

    class Renamed(GRPOTrainer):
        accelerator = None

        def __init__(self):
            self._generate = None

        def _calculate_rewards(self, rows, prompts):
            return rows, prompts

        def compute_loss(self, *args, **kwargs):  # takes whatever it is given
            return args, kwargs

    found = [text.partition(" (")[0] + text[text.rindex(";") :] for text in misfits(Renamed())]
    assert found == [
        "Renamed.accelerator has no clip_grad_norm_; tested with 1.16.0)",
        "Renamed has no _generate; tested with 1.16.0)",
        "Renamed._calculate_rewards takes; tested with 1.16.0)",
    ]


def test_outside_a_check_a_trainer_is_left_alone(monkeypatch):
    monkeypatch.delenv("FIRSTDIFF_SPEC", raising=False)
    trainer = type("Trainer", (), {})()
    assert not instrument(trainer).active
    assert vars(trainer) == {}


def test_rows_of_a_data_set_are_rows_that_can_be_compared():
    rows = [{"prompt": "ü", "answer": 1}, {"prompt": [{"role": "user", "content": object()}], 3: 4}]
    one, other = texts(rows), texts([dict(reversed(row.items())) for row in rows])
    assert torch.equal(one, other)
    assert bytes(one[0].tolist()).rstrip(b"\0").decode() == '{"answer": 1, "prompt": "ü"}'
    assert texts([]).shape == (0, 0)


SEVERAL = """
import sys
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

class Words(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        ids = torch.arange(index, index + 4) % 15
        return {"input_ids": ids, "labels": ids.clone()}

def trained(steps, broken=False):
    model = GPT2LMHeadModel(GPT2Config(vocab_size=15, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    settings = TrainingArguments("out", max_steps=steps, report_to=[], save_strategy="no", use_cpu=True,
                                 per_device_train_batch_size=4)
    trainer = Trainer(model=model, args=settings, train_dataset=Words())
    trainer.train()
    assert "compute_loss" not in vars(trainer) and "clip_grad_norm_" not in vars(trainer.accelerator)
    return trainer

set_seed(7)
net = torch.nn.Linear(2, 2)
net(torch.ones(1, 2))  # before: a part of the first step
trained(2)
with torch.no_grad():
    net(torch.ones(1, 2))
"""


@pytest.mark.slow
def test_what_comes_before_between_and_behind_trainings_is_observed_as_any_script(observe):
    run = observe("train.py", train=f"{SEVERAL}\ntrained(1)\nnet(torch.ones(1, 2))\n")
    assert run.error is None, run.log
    assert run.dump.complete
    assert run.stages() == [
        (0, "net", 0),
        (0, "actor_update", 0),
        (1, "actor_update", 0),
        (2, "net.no_grad", 0),
        (2, "actor_update", 0),
        (3, "net", 0),
    ]
    assert run.dump.steps_finished == 4
    weights = {(one.step, one.path.split(".")[0]) for one in run.dump.records[0] if one.tag == "weights"}
    assert weights == {(0, "actor"), (1, "actor"), (2, "actor"), (3, "net")}, "of what trains, or is called"


@pytest.mark.slow
def test_a_training_that_is_broken_off_keeps_what_was_recorded_and_its_own_error(observe):
    script = SEVERAL.replace(
        "    trainer.train()\n",
        """
    run, calls = trainer.compute_loss, []
    def compute_loss(*args, **kwargs):
        calls.append(1)
        return run(*args, **kwargs) if len(calls) < 2 else 1 / 0
    trainer.compute_loss = compute_loss
    try:
        trainer.train()
    finally:
        print("its own again:", trainer.compute_loss is compute_loss)
""",
    )
    run = observe("train.py", train=script)
    assert run.error is not None
    assert "ZeroDivisionError" in run.log
    assert "its own again: True" in run.log
    assert run.dump.steps_finished == 1
    assert run.stages() == [(0, "net", 0), (0, "actor_update", 0), (1, "actor_update", 0)]


@pytest.mark.slow
def test_a_line_of_ours_takes_over_from_what_observes_any_script(observe, tiny_qwen2):
    observe.copy("grpo.py")
    run = observe("grpo.py", str(tiny_qwen2), "--line", "--set", "max_steps=1")
    assert run.error is None, run.log
    assert [name for _, name, _ in run.stages()] == [
        *("actor_generate_sequences", "reference_compute_log_prob", "actor_update", "actor_update"),
    ]
