"""The integrated trainer's configuration: MindSpeed-RL's YAML sections, with its names where it has one.

Names and meanings follow MindSpeed-RL's ``configs/grpo_*.yaml`` and ``mindspeed_rl/config_cls``. ``model`` and
``device`` are ours.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from probe.config.algorithm import RLConfig
from probe.config.base import StrictModel
from probe.config.msprobe import MsprobeConfig
from probe.config.optimizer import ActorConfig, CriticConfig
from probe.language import tell

NOT_INTEGRATED = "rl_config.use_integrated_worker is false: only integrated mode is recorded; set it to true"


class ModelConfig(StrictModel):
    """Where the model comes from. Nothing is ever downloaded."""

    path: str | None = None
    """Local folder with weights, configuration and tokenizer, as transformers' ``save_pretrained`` writes them;
    relative to the file that names it."""
    config: dict[str, Any] = Field(
        default_factory=lambda: {
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        }
    )
    """Keys of transformers' ``Qwen2Config`` for a model with random weights; used when ``path`` is null. Its
    ``vocab_size`` is the byte-level tokenizer's."""


class MegatronTraining(StrictModel):
    """The run as a whole: its length, its data, its seed."""

    stage: Literal["ray_grpo", "ray_ppo", "ray_dapo"] = "ray_grpo"
    """The algorithm, by MindSpeed-RL's name for it. ``ray_ppo`` has a critic and needs ``rl_config.adv_estimator:
    gae``; the other two need ``group_norm``. What makes DAPO of GRPO are switches in ``rl_config``."""
    seed: int = Field(default=1, ge=0)
    """Seed of the weights, of the prompts, and of every random state."""
    train_iters: int = Field(default=6, ge=1)
    """Training steps."""
    global_batch_size: int = Field(default=4, ge=1)
    """Prompts per step, on all ranks together."""
    data_parallel: Literal["ddp", "fsdp2"] = "ddp"
    """How several ranks train one model: each with a whole copy (``ddp``), or with a shard (``fsdp2``:
    ``fully_shard``). One rank trains it alone in either case."""
    save_interval: int | None = Field(default=None, ge=1)
    """Steps between checkpoints; null saves none."""
    keep_checkpoints: int | None = Field(default=None, ge=1)
    """Newest checkpoints that are kept; null keeps all."""
    save: str | None = None
    """Folder of the checkpoints, relative to the file that names it; required with ``save_interval``."""
    load: str | None = None
    """Folder of checkpoints to go on from, relative to the file that names it: the newest one in it, or one of them.
    null starts anew."""
    bf16: bool = False
    """Compute in bfloat16 under autocast; weights and optimizer stay in float32."""
    data_path: str | None = None
    """JSONL file with ``prompt`` and ``answer`` in each line, relative to the file that names it; null generates
    arithmetic questions from the seed."""
    no_shuffle: bool = True
    """Take the lines of ``data_path`` in their order; false shuffles them by the seed."""


class SamplingConfig(StrictModel):
    """How a token is drawn."""

    max_tokens: int = Field(default=4, ge=1)
    """Longest response, in tokens."""
    temperature: float = Field(default=1.0, gt=0)
    """Divides the logits, in the rollout and in every log-probability."""
    top_k: int = -1
    """Draw among the k likeliest tokens; -1 takes all."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Draw among the likeliest tokens that hold this much probability."""
    seed: int | None = None
    """Seed of the sampling generator; null takes ``megatron_training.seed``."""


class GenerateConfig(StrictModel):
    """The rollout."""

    engine: Literal["transformers", "vllm"] = "transformers"
    """What draws the responses: the actor itself through transformers, or a vLLM (vllm-ascend) engine on the same
    device that gets the actor's weights after each update. vLLM needs an accelerator and one rank."""
    gpu_memory_utilization: float = Field(default=0.3, gt=0, lt=1)
    """Share of the device's memory that a vLLM engine takes."""
    max_num_seqs: int = Field(default=256, ge=1)
    """Most responses generated at once."""
    sampling_config: SamplingConfig = Field(default_factory=SamplingConfig)
    """How a token is drawn."""


class TrainingConfig(StrictModel):
    """A MindSpeed-RL style trainer file."""

    device: Literal["auto", "npu", "cuda", "cpu"] = "auto"
    """Where to train; ``auto`` takes an NPU before a GPU before the CPU."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """Where the model comes from."""
    megatron_training: MegatronTraining = Field(default_factory=MegatronTraining)
    """The run as a whole."""
    actor_config: ActorConfig = Field(default_factory=ActorConfig)
    """The actor's update."""
    critic_config: CriticConfig = Field(default_factory=CriticConfig)
    """The critic of PPO and its update."""
    rl_config: RLConfig = Field(default_factory=RLConfig)
    """The algorithm."""
    generate_config: GenerateConfig = Field(default_factory=GenerateConfig)
    """The rollout."""
    msprobe_config: MsprobeConfig = Field(default_factory=MsprobeConfig)
    """What is recorded when this file is run alone; a check sets its own."""

    @property
    def seeds(self) -> dict[str, int]:
        """The seeds in effect: that of the run, and that of the sampling."""
        seed, sampling = self.megatron_training.seed, self.generate_config.sampling_config.seed
        return {"seed": seed, "sampling_seed": seed if sampling is None else sampling}

    @property
    def beyond_the_end(self) -> list[str]:
        """What is said of layer dumps that get less than is asked for: a sentence for each key."""
        section, last = self.msprobe_config, self.megatron_training.train_iters - 1
        tokens = self.generate_config.sampling_config.max_tokens
        said: list[str] = []
        if section.critic_train_dump and self.megatron_training.stage != "ray_ppo":
            stage = self.megatron_training.stage
            said.append(
                tell(
                    "msprobe_config.critic_train_dump is true, but {stage} has no critic: it dumps nothing", stage=stage
                )
            )
        if section.chosen_stages and section.step_end > last:
            said.append(
                tell(
                    "msprobe_config.step_end is {step_end}, the last step {last}: layers end there",
                    step_end=section.step_end,
                    last=last,
                )
            )
        if section.actor_infer_dump and section.token_range_end >= tokens:
            said.append(
                tell(
                    "msprobe_config.token_range_end is {token}, but at most {tokens} tokens are generated"
                    " (sampling_config.max_tokens): layers end there",
                    token=section.token_range_end,
                    tokens=tokens,
                )
            )
        return said

    @model_validator(mode="after")
    def _only_integrated_mode_is_dumped(self) -> TrainingConfig:
        if self.msprobe_config.msprobe and not self.rl_config.use_integrated_worker:
            raise ValueError(f"{NOT_INTEGRATED}, or msprobe_config.msprobe to false")
        return self

    @model_validator(mode="after")
    def _algorithm_and_estimator_agree(self) -> TrainingConfig:
        stage, estimator = self.megatron_training.stage, self.rl_config.adv_estimator
        if (stage == "ray_ppo") != (estimator == "gae"):
            raise ValueError(
                f"megatron_training.stage is {stage} and rl_config.adv_estimator {estimator}:"
                " gae goes with ray_ppo, group_norm with ray_grpo and ray_dapo"
            )
        if stage != "ray_ppo" and self.critic_config != CriticConfig():
            raise ValueError(f"critic_config: {stage} has no critic; remove the section")
        return self

    @model_validator(mode="after")
    def _a_shared_critic_is_not_sharded(self) -> TrainingConfig:
        if self.critic_config.share_backbone and self.megatron_training.data_parallel == "fsdp2":
            raise ValueError("critic_config.share_backbone: a sharded actor has one root; set data_parallel to ddp")
        return self

    @model_validator(mode="after")
    def _batches_fit(self) -> TrainingConfig:
        prompts, mini = self.megatron_training.global_batch_size, self.rl_config.mini_batch_size
        if mini is not None and (mini > prompts or prompts % mini):
            raise ValueError(
                f"rl_config.mini_batch_size is {mini}: it must divide megatron_training.global_batch_size ({prompts})"
            )
        if self.megatron_training.save_interval is not None and self.megatron_training.save is None:
            raise ValueError("megatron_training.save_interval is set: name the checkpoints' folder in save")
        return self
