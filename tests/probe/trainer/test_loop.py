"""The training loop as a whole, in this process."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from probe import Probe
from probe.config import (
    ActorConfig,
    CriticConfig,
    GenerateConfig,
    MegatronTraining,
    ModelConfig,
    RLConfig,
    SamplingConfig,
    TrainerRunConfig,
)
from probe.errors import ConfigError
from probe.store.reader import read_dump, read_values
from probe.trainer.loop import Trainer
from probe.trainer.parallel import Ranks
from probe.types import RunSpec

ALONE = Ranks(torch.device("cpu"))


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
        Trainer(config, probe, ALONE).train()
        probe.close()
        return read_dump(folder)

    return train


def weights_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer._actor.state_dict().items()}


@pytest.fixture
def train(configure):
    """Trains without a probe; returns the actor's weights."""

    def run(**sections):
        trainer = Trainer(configure(**sections), Probe(), ALONE)
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


PPO = {
    "megatron_training": MegatronTraining(stage="ray_ppo", train_iters=2, global_batch_size=2),
    "rl_config": RLConfig(adv_estimator="gae", n_samples_per_prompt=2),
}
DAPO = {
    "megatron_training": MegatronTraining(stage="ray_dapo", train_iters=2, global_batch_size=2),
    "rl_config": RLConfig(
        n_samples_per_prompt=2,
        clip_higher_enable=True,
        token_level_loss=True,
        filter_groups_enable=True,
        overlong_buffer_enable=True,
        init_kl_coef=0.0,
    ),
}


@pytest.mark.parametrize("algorithm", [PPO, DAPO], ids=["ppo", "dapo"])
def test_the_other_algorithms_train_the_same_twice_too(train, algorithm):
    assert close(train(**algorithm), train(**algorithm))
    assert not close(train(**algorithm), train(), 1e-6)


def test_ppo_trains_its_critic_and_records_its_stages(configure, dump_of):
    dump = dump_of(configure(**PPO))
    stages = {(record.stage, record.tag) for record in dump.records[0]}
    assert {("critic_compute_values", "values"), ("critic_update", "loss"), ("critic_update", "grad_norm")} <= stages
    heads = [r.digest for r in dump.records[0] if r.path == "critic.value_head.weight"]
    assert len(heads) == 2 and heads[0] != heads[1]


def test_a_shared_critic_trains_its_head_alone(configure):
    trainer = Trainer(configure(**PPO, critic_config=CriticConfig(share_backbone=True, lr=0.5)), Probe(), ALONE)
    assert trainer._critic.backbone is trainer._actor.model
    before = weights_of(trainer)
    head = trainer._critic.value_head.weight.detach().clone()
    for parameter in trainer._updaters["actor"].optimizer.param_groups[0]["params"]:
        parameter.register_hook(torch.zeros_like)  # the actor's own update changes nothing
    trainer._updaters["actor"].optimizer.param_groups[0]["weight_decay"] = 0.0
    trainer._train_step()
    assert close(before, weights_of(trainer)), "the critic's update leaves the backbone alone"
    assert not torch.equal(head, trainer._critic.value_head.weight)


def test_epochs_and_mini_batches_are_optimizer_steps(configure, dump_of):
    config = configure(
        rl_config=RLConfig(n_samples_per_prompt=2, mini_batch_size=1, epochs=3),
        actor_config=ActorConfig(micro_batch_size=1),
    )
    records = [record for record in dump_of(config).records[0] if record.step == 1]
    assert sum(record.tag == "grad_norm" for record in records) == 2 * 3
    losses = [record.micro_step for record in records if record.tag == "loss"]
    assert losses == list(range(4 * 3))


def test_dynamic_batches_change_the_update_only_by_rounding(train):
    actor = ActorConfig(micro_batch_size=4, adam_eps=1.0, lr=0.1)
    dynamic = RLConfig(n_samples_per_prompt=2, use_dynamic_bsz=True, max_packing_token_size=15)
    assert close(train(actor_config=actor), train(actor_config=actor, rl_config=dynamic), 1e-5)


def test_recomputation_changes_no_bit(train):
    assert close(train(), train(actor_config=ActorConfig(recompute_granularity="full")))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft's
@pytest.mark.parametrize("granularity", [None, "full"])
def test_adapters_alone_are_trained(configure, dump_of, granularity):
    pytest.importorskip("peft", reason="LoRA needs peft")
    actor = ActorConfig(lora_r=2, lora_target_modules=["q_proj", "down_proj"], recompute_granularity=granularity)
    records = [record for record in dump_of(configure(actor_config=actor)).records[0] if record.tag == "weights"]
    steps = [{r.path: r.digest for r in records if r.step == step and r.path.startswith("actor.")} for step in (0, 1)]
    changed = {path for path in steps[0] if steps[0][path] != steps[1][path]}
    assert changed and all(".lora_" in path for path in changed)
    assert any("q_proj" in path for path in changed) and any("down_proj" in path for path in changed)


def test_a_wrong_target_of_adapters_is_said(configure):
    pytest.importorskip("peft", reason="LoRA needs peft")
    with pytest.raises(ConfigError, match=r"actor_config\.lora_target_modules"):
        Trainer(configure(actor_config=ActorConfig(lora_r=2, lora_target_modules=["nope"])), Probe(), ALONE)


class TestDynamicSampling:
    def collect(self, configure, rewards, **options):
        """What is collected when each prompt's responses get these rewards, batch after batch."""
        options = {"n_samples_per_prompt": 2, "filter_groups_enable": True, **options}
        trainer = Trainer(configure(rl_config=RLConfig(**options)), Probe(), ALONE)
        made = iter(rewards)
        trainer._score = lambda *_: (torch.tensor(batch := next(made)), torch.tensor(batch))
        return trainer, trainer._collect()[1].tolist()

    def test_groups_of_equal_rewards_are_replaced_by_further_prompts(self, configure):
        trainer, rewards = self.collect(configure, [[1.0, 1.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5], [2.0, 3.0, 4.0, 5.0]])
        assert rewards == [0.0, 1.0, 2.0, 3.0]
        assert trainer._position.batches == 3

    def test_after_so_many_batches_they_fill_the_step_up(self, configure):
        trainer, rewards = self.collect(
            configure, [[1.0, 1.0, 0.0, 1.0], [0.5, 0.5, 0.25, 0.25]], filter_groups_max_batches=2
        )
        assert rewards == [0.0, 1.0, 1.0, 1.0]
        assert trainer._position.batches == 2


class TestResume:
    @pytest.mark.parametrize("algorithm", [{}, PPO, DAPO], ids=["grpo", "ppo", "dapo"])
    def test_going_on_is_bit_identical(self, configure, tmp_path, algorithm):
        def training(**changes):
            base = {**configure(**algorithm).model_dump()["megatron_training"], **changes}
            return configure(
                **{
                    **algorithm,
                    "megatron_training": MegatronTraining(**base),
                    "actor_config": ActorConfig(lr_decay_style="cosine", lr_warmup_fraction=0.3, lr=1e-2),
                    "rl_config": algorithm.get("rl_config", RLConfig(n_samples_per_prompt=2)).model_copy(
                        update={"shuffle_mini_batch": True, "mini_batch_size": 1}
                    ),
                }
            )

        def run(name, config):
            probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / name)))
            trainer = Trainer(config, probe, ALONE)
            trainer.train()
            probe.close()
            return trainer, (tmp_path / name / "index/rank0.jsonl").read_bytes().splitlines()

        straight, lines = run("straight", training(train_iters=6))
        saving = {"train_iters": 6, "save_interval": 3, "save": str(tmp_path / "saved")}
        run("saving", training(**saving))
        assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["step3", "step6"]
        torch.rand(7)
        resumed, rest = run("resumed", training(train_iters=6, load=str(tmp_path / "saved/step3")))
        assert close(weights_of(straight), weights_of(resumed))
        assert rest and rest == [line for line in lines if json.loads(line)["step"] >= 3]

    def test_old_checkpoints_are_pruned_and_the_newest_is_taken(self, configure, tmp_path):
        def training(**changes):
            return configure(megatron_training=MegatronTraining(global_batch_size=2, **changes))

        where = str(tmp_path)
        Trainer(training(train_iters=5, save_interval=1, save=where, keep_checkpoints=2), Probe(), ALONE).train()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["step4", "step5"]
        (tmp_path / ".step6.partial").mkdir()
        assert Trainer(training(train_iters=9, load=where), Probe(), ALONE)._position.step == 5

    def test_what_is_no_checkpoint_is_said(self, configure, tmp_path):
        def load(where=tmp_path, **sections):
            section = MegatronTraining(global_batch_size=2, load=str(where), **sections.pop("training", {}))
            Trainer(configure(megatron_training=section, **sections), Probe(), ALONE)

        with pytest.raises(ConfigError, match="holds no checkpoint"):
            load()
        saved = MegatronTraining(train_iters=1, global_batch_size=2, save_interval=1, save=str(tmp_path))
        Trainer(configure(megatron_training=saved), Probe(), ALONE).train()
        with pytest.raises(ConfigError, match="no whole checkpoint of this algorithm"):
            load(training={"stage": "ray_ppo"}, rl_config=RLConfig(adv_estimator="gae", n_samples_per_prompt=2))
        with pytest.raises(ConfigError, match="cannot be loaded into this model (?!.*Traceback)"):
            load(model=ModelConfig(config={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}))
        position = tmp_path / "step1/position.json"
        position.write_text(position.read_text().replace('"ranks": 1', '"ranks": 2'))
        with pytest.raises(ConfigError, match="was saved by 2 ranks, this training has 1"):
            load()
        position.write_text("{")
        with pytest.raises(ConfigError, match="no whole checkpoint"):
            load()


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
    trainer = Trainer(configure(), probe, ALONE)
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
    trainer = Trainer(configure(rl_config=RLConfig(max_prompt_length=3)), Probe(), ALONE)
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
