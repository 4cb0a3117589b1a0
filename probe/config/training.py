"""The integrated trainer's configuration: MindSpeed-RL's YAML sections, with its names where it has one.

Names and meanings follow MindSpeed-RL's ``configs/grpo_*.yaml`` and ``mindspeed_rl/config_cls``. ``model`` and
``device`` are ours.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from probe.config.base import StrictModel
from probe.config.msprobe import MsprobeConfig

Verifier = Literal["acc", "format"]
NOT_INTEGRATED = "rl_config.use_integrated_worker is false: only integrated mode is recorded; set it to true"
DEFAULT_VERIFIERS: tuple[Verifier, ...] = ("acc", "format")


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

    seed: int = Field(default=1, ge=0)
    """Seed of the weights, of the prompts, and of every random state."""
    train_iters: int = Field(default=6, ge=1)
    """Training steps."""
    global_batch_size: int = Field(default=4, ge=1)
    """Prompts per step."""
    bf16: bool = False
    """Compute in bfloat16 under autocast; weights and optimizer stay in float32."""
    data_path: str | None = None
    """JSONL file with ``prompt`` and ``answer`` in each line, relative to the file that names it; null generates
    arithmetic questions from the seed."""
    no_shuffle: bool = True
    """Take the lines of ``data_path`` in their order; false shuffles them by the seed."""


class ActorConfig(StrictModel):
    """The actor's update."""

    micro_batch_size: int = Field(default=4, ge=1)
    """Responses per forward and backward pass of the update."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of AdamW, constant."""
    weight_decay: float = Field(default=0.01, ge=0)
    """AdamW's decoupled weight decay."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW's first moment coefficient."""
    adam_beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's second moment coefficient."""
    adam_eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon."""
    clip_grad: float = Field(default=1.0, gt=0)
    """Largest L2 norm of the gradient; a larger one is scaled down to it."""


class RLConfig(StrictModel):
    """The algorithm: GRPO (Shao et al. 2024, arXiv:2402.03300)."""

    use_integrated_worker: bool = True
    """Actor, rollout and reference share one device. Only this mode can be recorded."""
    max_prompt_length: int = Field(default=64, ge=1)
    """Longest prompt, in tokens; a longer one is an error."""
    n_samples_per_prompt: int = Field(default=4, ge=2)
    """Responses sampled for each prompt: the group over which rewards are normalised."""
    actor_forward_micro_batch_size: int = Field(default=8, ge=1)
    """Responses per forward pass of ``actor_compute_log_prob``."""
    ref_forward_micro_batch_size: int = Field(default=8, ge=1)
    """Responses per forward pass of ``reference_compute_log_prob``."""
    adv_estimator: Literal["group_norm"] = "group_norm"
    """Advantages are rewards minus their group's mean, over its standard deviation."""
    clip_ratio: float = Field(default=0.2, gt=0, lt=1)
    """PPO's clip range of the probability ratio."""
    kl_penalty: Literal["k3", "low_var_kl"] = "k3"
    """Estimator of the divergence from the reference: k3 of http://joschu.net/blog/kl-approx.html, which MindSpeed-RL
    calls ``low_var_kl``."""
    init_kl_coef: float = Field(default=0.01, ge=0)
    """Weight of the divergence in the loss."""
    rule_reward: Literal[True] = True
    """Rewards come from rules, not from a model."""
    verifier_function: list[Verifier] = Field(default_factory=lambda: list(DEFAULT_VERIFIERS), min_length=1)
    """Rules that score a response: ``acc``, 1 when it is the answer; ``format``, the share of it that is digits with
    an end."""
    verifier_weight: list[float] = Field(default_factory=lambda: [1.0, 0.5])
    """Weight of each rule."""

    @model_validator(mode="after")
    def _one_weight_each(self) -> RLConfig:
        if len(self.verifier_function) != len(self.verifier_weight):
            raise ValueError(
                f"verifier_weight has {len(self.verifier_weight)} entries for {len(self.verifier_function)} rules"
                " in verifier_function"
            )
        return self


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
    rl_config: RLConfig = Field(default_factory=RLConfig)
    """The algorithm."""
    generate_config: GenerateConfig = Field(default_factory=GenerateConfig)
    """The rollout."""
    msprobe_config: MsprobeConfig = Field(default_factory=MsprobeConfig)
    """What is recorded when this file is run alone; a check sets its own."""

    @model_validator(mode="after")
    def _only_integrated_mode_is_dumped(self) -> TrainingConfig:
        if self.msprobe_config.msprobe and not self.rl_config.use_integrated_worker:
            raise ValueError(f"{NOT_INTEGRATED}, or msprobe_config.msprobe to false")
        return self
