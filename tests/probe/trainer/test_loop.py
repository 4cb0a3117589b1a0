"""The training loop as a whole, in this process."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from probe import Probe
from probe.config import (
    ActorConfig,
    GenerateConfig,
    MegatronTraining,
    ModelConfig,
    RLConfig,
    SamplingConfig,
    TrainerRunConfig,
)
from probe.errors import ConfigError
from probe.store.reader import read_dump, read_values
from probe.trainer.loop import GRPOTrainer
from probe.types import RunSpec


@pytest.fixture
def configure(small_config):
    """A training of two steps with four responses each; sections can be exchanged."""

    def make(**sections) -> TrainerRunConfig:
        defaults = {
            "device": "cpu",
            "model": ModelConfig(config=small_config),
            "megatron_training": MegatronTraining(train_iters=2, global_batch_size=2),
            "rl_config": RLConfig(n_samples_per_prompt=2),
            "generate_config": GenerateConfig(sampling_config=SamplingConfig(max_tokens=3)),
        }
        return TrainerRunConfig(**{**defaults, **sections})

    return make


@pytest.fixture
def dump_of(tmp_path):
    """Trains with a recording probe; returns what it recorded."""
    made = []

    def train(config: TrainerRunConfig, **spec):
        folder = tmp_path / f"dump{len(made)}"
        made.append(folder)
        probe = Probe(RunSpec(run="a", dump_path=str(folder), **spec))
        GRPOTrainer(config, probe).train()
        probe.close()
        return read_dump(folder)

    return train


def weights_of(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer._actor.state_dict().items()}


@pytest.fixture
def train(configure):
    """Trains without a probe; returns the actor's weights."""

    def run(**sections):
        trainer = GRPOTrainer(configure(**sections), Probe())
        trainer.train()
        return weights_of(trainer)

    return run


def close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor], tolerance: float = 0.0) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=0, atol=tolerance) for name in one)


def test_training_twice_gives_the_same_weights_and_another_seed_others(train):
    first = train()
    assert close(first, train())
    other = MegatronTraining(train_iters=2, global_batch_size=2, seed=2)
    assert not close(first, train(megatron_training=other), 1e-4)


def test_the_sampling_seed_stands_alone(train):
    first = train()
    sampling = GenerateConfig(sampling_config=SamplingConfig(max_tokens=3, seed=9))
    assert not close(first, train(generate_config=sampling))


def test_micro_batches_change_the_update_only_by_rounding(train):
    # a large epsilon keeps AdamW from blowing up gradients that are nothing but rounding
    whole = train(actor_config=ActorConfig(micro_batch_size=4, adam_eps=1.0, lr=0.1))
    parts = train(actor_config=ActorConfig(micro_batch_size=1, adam_eps=1.0, lr=0.1))
    assert close(whole, parts, 1e-5)


def test_a_recorded_training_gives_the_same_weights(train, configure, tmp_path):
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))
    trainer = GRPOTrainer(configure(), probe)
    trainer.train()
    probe.close()
    assert close(train(), weights_of(trainer))


def test_micro_steps_count_the_batches_of_each_stage(configure, dump_of):
    dump = dump_of(
        configure(
            rl_config=RLConfig(
                n_samples_per_prompt=2, actor_forward_micro_batch_size=3, ref_forward_micro_batch_size=4
            ),
            actor_config=ActorConfig(micro_batch_size=1),
            generate_config=GenerateConfig(max_num_seqs=2, sampling_config=SamplingConfig(max_tokens=3)),
        )
    )
    steps = Counter((r.tag, r.micro_step) for r in dump.records[0] if r.step == 0 and r.path in ("", "tokens"))
    counts = Counter(tag for tag, _ in steps)
    assert {tag: counts[tag] for tag in ("responses", "old_log_prob", "ref_log_prob", "loss", "prompts")} == {
        "responses": 2,
        "old_log_prob": 2,
        "ref_log_prob": 1,
        "loss": 4,
        "prompts": 1,
    }


def test_the_trainer_stops_when_the_probe_has_what_it_needs(configure, dump_of):
    config = configure(megatron_training=MegatronTraining(train_iters=50, global_batch_size=2))
    assert dump_of(config, last_step=0).steps_finished == 1


def test_a_prompt_that_is_too_long_is_named(configure):
    trainer = GRPOTrainer(configure(rl_config=RLConfig(max_prompt_length=3)), Probe())
    with pytest.raises(
        ConfigError, match=r"rl_config.max_prompt_length: the prompt '\d\+\d=' has 4 tokens; allowed are 1 to 3"
    ):
        trainer.train()


@pytest.mark.slow
def test_rewards_rise_when_it_is_trained_long_enough(configure, dump_of):
    config = configure(
        megatron_training=MegatronTraining(train_iters=60, global_batch_size=8),
        rl_config=RLConfig(n_samples_per_prompt=8),
        actor_config=ActorConfig(micro_batch_size=64, lr=3e-3),
    )
    dump = dump_of(config)
    rewards = [read_values(dump.folder, record).mean() for record in dump.records[0] if record.tag == "rewards"]
    assert sum(rewards[-10:]) > 2 * sum(rewards[:10])
