"""The integrated trainer's file: MindSpeed-RL's sections, and what makes no sense is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from probe.config import TrainingConfig, load_trainer_config, to_yaml
from probe.errors import ConfigError
from probe.trainer.__main__ import spec_of

SECTIONS = ["megatron_training", "actor_config", "rl_config", "generate_config", "msprobe_config"]


@pytest.fixture
def trainer_file(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        file = tmp_path / "grpo.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_sections_have_mindspeed_rls_names() -> None:
    assert set(SECTIONS) <= set(TrainingConfig.model_fields)


def test_integrated_mode_is_required_where_something_is_recorded(trainer_file: Any) -> None:
    file = trainer_file("rl_config: {use_integrated_worker: false}\nmsprobe_config: {msprobe: true}\n")
    with pytest.raises(ConfigError, match="use_integrated_worker is false: only integrated mode") as caught:
        load_trainer_config(file)
    assert str(file) in str(caught.value)


def test_the_other_mode_is_fine_where_nothing_is_recorded(trainer_file: Any) -> None:
    file = trainer_file("rl_config: {use_integrated_worker: false}\nmsprobe_config: {key_data_dump: true}\n")
    assert load_trainer_config(file).rl_config.use_integrated_worker is False


def test_msprobe_false_records_nothing_at_all(trainer_file: Any) -> None:
    everything = "key_data_dump: true, configurations_dump: true, reference_dump: true, actor_infer_dump: true"
    config = load_trainer_config(trainer_file(f"msprobe_config: {{{everything}}}\n"))
    assert spec_of(config) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("megatron_training: {train_iters: 0}", "megatron_training.train_iters"),
        ("megatron_training: {train_iters: 2.0}", "megatron_training.train_iters"),
        ("actor_config: {lr: 0}", "actor_config.lr"),
        ("actor_config: {lr: '1e-6'}", "actor_config.lr"),
        ("generate_config: {sampling_config: {temperature: 0.0}}", "generate_config.sampling_config.temperature"),
        ("rl_config: {n_samples_per_prompt: 1}", "rl_config"),
        ("rl_config: {use_kl_in_reward: true}", "rl_config"),
        ("rl_config: {filter_groups_metric: strict_format}", "rl_config"),
        ("actor_config: {lr: 1e-4, min_lr: 1e-3}", "actor_config"),
        ("rl_config: {kl_penalty: k9}", "rl_config.kl_penalty"),
        ("device: tpu", "device"),
        ("rl_config: {verifier_weight: [1.0]}", "rl_config"),
    ],
)
def test_a_wrong_value_is_one_sentence_with_file_and_key(trainer_file: Any, text: str, key: str) -> None:
    file = trainer_file(text)
    with pytest.raises(ConfigError) as caught:
        load_trainer_config(file)
    message = str(caught.value)
    assert message.startswith(f"{file}: {key}: ")
    assert "\n" not in message


def test_exponents_without_a_point_are_numbers(trainer_file: Any) -> None:
    file = trainer_file("actor_config: {lr: 1e-6, adam_eps: 1E-8, weight_decay: 0}\n")
    config = load_trainer_config(file).actor_config
    assert (config.lr, config.adam_eps, config.weight_decay) == (1e-6, 1e-8, 0.0)


def test_a_configuration_reads_back_as_it_was_written(trainer_file: Any) -> None:
    config = load_trainer_config(trainer_file("actor_config: {lr: 1e-6}\nmsprobe_config: {msprobe: true}\n"))
    assert load_trainer_config(trainer_file(to_yaml(config))) == config


def test_paths_are_relative_to_the_file_that_names_them(
    trainer_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prompts.jsonl").write_text("{}\n")
    file = trainer_file("model: {path: data}\nmegatron_training: {data_path: data/prompts.jsonl}\n")
    monkeypatch.chdir("/")
    config = load_trainer_config(file)
    assert config.model.path == str(tmp_path / "data")
    assert config.megatron_training.data_path == str(tmp_path / "data" / "prompts.jsonl")


@pytest.mark.parametrize(("section", "key"), [("model", "path"), ("megatron_training", "data_path")])
def test_a_path_that_is_not_there_is_said_before_training(trainer_file: Any, section: str, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.{key}: no such .*nowhere"):
        load_trainer_config(trainer_file(f"{section}: {{{key}: nowhere}}\n"))


PPO = "megatron_training: {stage: ray_ppo}\nrl_config: {adv_estimator: gae}\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("megatron_training: {stage: ray_ppo}", "gae goes with ray_ppo"),
        ("rl_config: {adv_estimator: gae}", "gae goes with ray_ppo"),
        ("critic_config: {lr: 1e-4}", "ray_grpo has no critic"),
        ("rl_config: {mini_batch_size: 3}", "must divide megatron_training.global_batch_size (4)"),
        ("megatron_training: {save_interval: 1}", "name the checkpoints' folder in save"),
        (
            PPO.replace("}\n", ", data_parallel: fsdp2}\n", 1) + "critic_config: {share_backbone: true}",
            "set data_parallel to ddp",
        ),
        (PPO.replace("gae", "gae, filter_groups_enable: true"), "adv_estimator gae has no groups"),
        (
            "msprobe_config: {msprobe: true, reference_dump: true, step_start: 6, step_end: 6}",
            "the last step is 5 (train_iters 6)",
        ),
        (
            "msprobe_config: {msprobe: true, actor_infer_dump: true, token_range_start: 4, token_range_end: 4}",
            "at most 4 tokens are generated (sampling_config.max_tokens)",
        ),
        ("megatron_training: {load: nowhere}", "megatron_training.load: no such folder"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(trainer_file: Any, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        load_trainer_config(trainer_file(text))


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("reference_dump: true, step_end: 5", []),
        ("reference_dump: true, step_end: 6", ["msprobe_config.step_end is 6, the last step 5"]),
        ("step_end: 6, token_range_end: 9", []),
        ("actor_infer_dump: true, token_range_end: 3", []),
        ("actor_infer_dump: true, token_range_end: 4", ["token_range_end is 4, but at most 4 tokens are generated"]),
        ("reference_dump: true, token_range_end: 4", []),
        ("critic_train_dump: true", ["critic_train_dump is true, but ray_grpo has no critic"]),
    ],
)
def test_ranges_that_end_after_the_last_one_are_said(trainer_file: Any, section: str, said: list[str]) -> None:
    config = load_trainer_config(trainer_file(f"msprobe_config: {{msprobe: true, {section}}}"))
    assert len(config.beyond_the_end) == len(said)
    assert all(words in sentence for words, sentence in zip(said, config.beyond_the_end, strict=True))


def test_a_critic_may_be_configured_for_ppo(trainer_file: Any) -> None:
    config = load_trainer_config(trainer_file(PPO + "critic_config: {lr: 1e-4, share_backbone: true}"))
    assert (config.critic_config.lr, config.rl_config.clip_range, config.rl_config.kl_in_loss) == (
        1e-4,
        (0.2, 0.2),
        0.01,
    )
