"""The stand-in for MindSpeed-RL's class ``MsProbe``: its workers' calls, replayed with real models."""

from __future__ import annotations

import json
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from probe.adapters.mindspeed_rl import MODULE, install
from probe.store.reader import Dump, read_dump
from probe.types import RunSpec

CONFIG = types.SimpleNamespace(msprobe=True, dump_path="", key_data_dump=True)


@dataclass
class Here:
    """Where an adapter is at home, in a test."""

    observer: Any = None
    problems: list[str] = field(default_factory=list)
    reports: list[str] = field(default_factory=list)

    def taken_over(self) -> Any:
        return self.observer.step_back()

    def report(self, what: str, text: str = "") -> None:
        self.reports.append(what)

    def problem(self, text: str) -> None:
        self.problems.append(text)


def original() -> Any:
    """A class as MindSpeed-RL's, that records nothing."""

    class MsProbe:
        enabled = False

        @classmethod
        def config_init(cls, msprobe_config: Any) -> None: ...
        @classmethod
        def save_configs(cls, data: Any) -> None: ...
        @classmethod
        def save_data(cls, data: Any) -> None: ...
        @classmethod
        def debugger_start(cls, model: Any = None, tag: Any = None) -> None: ...
        @classmethod
        def debugger_stop(cls, tag: Any = None) -> None: ...
        @classmethod
        def step(cls) -> None: ...
        @classmethod
        def need_debugger(cls) -> bool:
            return cls.enabled

    return MsProbe


class Process:
    """A process in which the module has just been imported."""

    def __init__(self, spec: RunSpec, folder: Path, monkeypatch: pytest.MonkeyPatch, own: Any = None) -> None:
        self.host = Here()
        self.folder = Path(spec.dump_path)
        (folder / "spec.json").write_text(spec.to_json())
        monkeypatch.setenv("FIRSTDIFF_SPEC", str(folder / "spec.json"))
        module = types.ModuleType(MODULE)
        module.MsProbe = own or original()  # type: ignore[attr-defined]
        for name in ("mindspeed_rl", "mindspeed_rl.utils"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, MODULE, module)
        install(self.host)
        self.ms = module.MsProbe  # type: ignore[attr-defined]

    @property
    def dump(self) -> Dump:
        return read_dump(self.folder)

    def events(self, rank: int = 0) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"trace/rank{rank}.jsonl").read_text().splitlines()]


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Process]]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    made: list[Process] = []

    def make(own: Any = None, rank: tuple[int, int] | None = None, **fields: Any) -> Process:
        if rank is not None:
            monkeypatch.setenv("RANK", str(rank[0]))
            monkeypatch.setenv("WORLD_SIZE", str(rank[1]))
        spec = RunSpec("a", str(tmp_path / "msprobe_dump"), **{"trace": True, "last_step": 1, **fields})
        made.append(Process(spec, tmp_path, monkeypatch, own))
        return made[-1]

    yield make
    for one in made:
        if (probe := one.host.observer and one.host.observer.step_back()) is not None:
            probe.close()


def model() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=32, num_hidden_layers=1, max_position_embeddings=32, **shape))


def iteration(ms: Any, actor: Any, reference: Any, engine: Any, optimizer: torch.optim.Optimizer) -> None:
    """One iteration of GRPO as the integrated worker runs it; tokens are [4, 6] int64."""
    tokens = torch.arange(24).reshape(4, 6) % 32
    ms.debugger_start(engine, tag="actor_generate_sequences")
    with torch.no_grad():
        engine(tokens)
    ms.save_data({"responses": list(tokens[:, 3:]), "prompts": list(tokens[:, :3])})
    ms.debugger_stop("actor_generate_sequences")
    ms.debugger_start(actor[0], tag="actor_image_embeds")  # of multimodal models
    with torch.no_grad():
        actor[0](tokens[:1])
    ms.debugger_stop("actor_image_embeds")
    ms.debugger_start(model=reference, tag="reference_compute_log_prob")
    with torch.no_grad():
        known = reference[0](tokens).logits.log_softmax(-1)
    ms.debugger_stop("reference_compute_log_prob")
    ms.debugger_start(actor[0], tag="actor_compute_log_prob")
    with torch.no_grad():
        actor[0](tokens)
    ms.debugger_stop("actor_compute_log_prob")
    ms.debugger_start(actor[0], tag="actor_update")
    optimizer.zero_grad()
    for part in range(2):
        log_prob = actor[0](tokens[2 * part : 2 * part + 2]).logits.log_softmax(-1)
        loss = -log_prob.mean()
        ms.save_data({"log_prob": log_prob, "ref_log_prob": known, "loss": loss, "kl_loss": None})
        loss.backward()
    optimizer.step()
    ms.debugger_stop(tag="actor_update")
    ms.step()


def trained(process: Process, iterations: int) -> None:
    actor, reference, engine = [model()], [model()], model()
    optimizer = torch.optim.AdamW(actor[0].parameters(), lr=0.01)
    process.ms.config_init(CONFIG)
    process.ms.save_configs({"actor": {}})
    for _ in range(iterations):
        iteration(process.ms, actor, reference, engine, optimizer)


def test_the_calls_of_its_workers_become_stages_tags_models_and_steps(process: Callable[..., Process]) -> None:
    one = process()
    trained(one, 3)  # it goes on where the check needs no more
    dump = one.dump
    assert (dump.complete, dump.steps_finished, dump.problems, one.host.problems) == (True, 2, [], [])
    events = one.events()
    assert [event["stage"] for event in events if event["kind"] == "stage_start" and event["step"] == 0] == [
        "actor_generate_sequences",
        "actor.image_embeds",
        "reference_compute_log_prob",
        "actor_compute_log_prob",
        "actor_update",
    ]
    entered = {(event["stage"], event["name"]) for event in events if event["kind"] == "forward_output"}
    assert {
        ("actor_generate_sequences", "rollout.model.layers.0.mlp"),
        ("reference_compute_log_prob", "reference.model.layers.0.mlp"),
        ("actor_update", "actor.model.layers.0.mlp"),
    } <= entered
    records = [(record.tag, record.stage) for record in dump.records[0] if record.step == 1 and record.tag != "weights"]
    assert records[:2] == [("responses", "actor_generate_sequences")] * 2
    assert records.count(("log_prob", "actor_update")) == 2
    assert not any(tag == "kl_loss" for tag, _ in records)
    roles = {record.path.split(".")[0] for record in dump.records[0] if record.tag == "weights"}
    assert roles == {"actor", "reference", "rollout"}


def test_importers_and_ray_find_the_class_by_its_name(process: Callable[..., Process]) -> None:
    one = process()
    assert pickle.loads(pickle.dumps(one.ms)) is one.ms
    assert (one.ms.__module__, one.ms.__qualname__) == (MODULE, "MsProbe")
    assert one.ms.need_debugger() is False  # what the stand-in does not know stays turned off


def test_a_process_that_only_asks_for_the_configuration_records_nothing(process: Callable[..., Process]) -> None:
    one = process()
    one.ms.config_init(CONFIG)
    one.ms.save_configs({"actor": {"lr": 1e-6}})
    assert not one.folder.exists()


def test_nothing_is_recorded_where_the_configuration_turns_it_off(process: Callable[..., Process]) -> None:
    one = process()
    one.ms.config_init(types.SimpleNamespace(msprobe=False))
    iteration(one.ms, [model()], [model()], model(), torch.optim.SGD(model().parameters(), lr=0.1))
    assert not one.folder.exists()


def test_a_process_without_a_rank_is_not_taken_for_rank_0(process: Callable[..., Process]) -> None:
    one = process(groups={"actor": 2})
    one.ms.config_init(CONFIG)
    one.ms.save_data({"rewards": torch.ones(2)})
    one.ms.step()
    assert not one.folder.exists()
    assert one.host.problems == ["a process without a rank (RANK and WORLD_SIZE, or torch.distributed) called MsProbe"]


def test_a_critics_workers_have_ranks_of_their_own(process: Callable[..., Process]) -> None:
    one = process(rank=(1, 2), groups={"actor": 2, "critic": 2})
    critic = model()
    one.ms.config_init(CONFIG)
    for _ in range(2):
        one.ms.debugger_start(critic, tag="critic_compute_values")
        with torch.no_grad():
            values = critic(torch.ones(1, 3, dtype=torch.int64)).logits
        one.ms.save_data({"values": values})
        one.ms.debugger_stop("critic_compute_values")
        one.ms.debugger_start(critic, tag="critic_update")
        one.ms.debugger_stop(tag="critic_update")
        one.ms.step()
    manifest = json.loads((one.folder / "manifest.rank3.json").read_text())
    assert (manifest["rank"], manifest["world_size"], manifest["complete"]) == (3, 4, True)
    assert not one.dump.complete  # ranks 0 to 2 did not record
    assert {event["stage"] for event in one.events(3) if event["kind"] == "stage_start"} == {
        "critic_compute_values",
        "critic_update",
    }


def test_other_numbers_of_processes_than_the_configuration_says_are_told(process: Callable[..., Process]) -> None:
    one = process(rank=(0, 4), groups={"actor": 2})
    one.ms.config_init(CONFIG)
    one.ms.save_data({"prompts": torch.ones(2)})
    assert "4 processes train the actor, the configuration asks for 2" in one.host.problems[0]


def test_a_model_in_several_chunks_and_one_that_is_no_module(process: Callable[..., Process]) -> None:
    one = process(last_step=0)
    chunks = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    one.ms.config_init(CONFIG)
    one.ms.debugger_start(object(), tag="actor_generate_sequences")
    one.ms.debugger_start(model=chunks, tag="reference_compute_log_prob")  # the stage before was not ended
    chunks[1](chunks[0](torch.ones(1, 2)))
    one.ms.debugger_stop("actor_generate_sequences")
    one.ms.debugger_stop("reference_compute_log_prob")
    one.ms.step()
    assert one.dump.complete
    outputs = [event["name"] for event in one.events() if event["kind"] == "forward_output"]
    assert outputs == ["reference.0", "reference.1"]


def test_a_class_of_another_version_is_left_alone(process: Callable[..., Process]) -> None:
    own = type("MsProbe", (), {"config_init": staticmethod(print)})
    one = process(own)
    assert one.ms is own
    assert "no save_configs, save_data, debugger_start, debugger_stop, step" in one.host.problems[0]


def test_the_trainer_may_open_a_probe_itself(process: Callable[..., Process]) -> None:
    own = original()
    one = process(own)
    one.ms.config_init(CONFIG)
    one.ms.save_data({"prompts": torch.ones(2)})
    probe = one.host.taken_over()
    assert probe.active
    assert sys.modules[MODULE].MsProbe is own
    one.ms.save_data({"prompts": torch.ones(2)})  # of those who imported it before
    probe.step()
    probe.close()
    assert len(one.dump.records[0]) == 1
