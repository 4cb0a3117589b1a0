"""The algorithm: one loop's settings, of which GRPO, PPO and DAPO are special cases."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from probe.config.base import StrictModel

Verifier = Literal["acc", "base_acc", "acc_for_ppo", "acc_for_dapo", "format", "strict_format"]
DEFAULT_VERIFIERS: tuple[Verifier, ...] = ("acc", "format")


class RLConfig(StrictModel):
    """The algorithm, with MindSpeed-RL's names.

    GRPO: Shao et al. 2024, arXiv:2402.03300. PPO: Schulman et al. 2017, arXiv:1707.06347. DAPO: Yu et al. 2025,
    arXiv:2503.14476.
    """

    use_integrated_worker: bool = True
    """Actor, rollout and reference share one device. Only this mode can be recorded."""
    max_prompt_length: int = Field(default=64, ge=1)
    """Longest prompt, in tokens; a longer one is an error."""
    n_samples_per_prompt: int = Field(default=4, ge=1)
    """Responses sampled for each prompt: the group over which ``group_norm`` normalises rewards, which takes two or
    more."""

    mini_batch_size: int | None = Field(default=None, ge=1)
    """Prompts, on all ranks together, whose responses make one optimizer step; null takes all of the step's."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the step's responses in an update."""
    shuffle_mini_batch: bool = False
    """Draw the order of responses anew in each pass, from the seed."""
    actor_forward_micro_batch_size: int = Field(default=8, ge=1)
    """Responses per forward pass of ``actor_compute_log_prob``."""
    ref_forward_micro_batch_size: int = Field(default=8, ge=1)
    """Responses per forward pass of ``reference_compute_log_prob``."""
    critic_forward_micro_batch_size: int = Field(default=8, ge=1)
    """Responses per forward pass of ``critic_compute_values``."""
    use_dynamic_bsz: bool = False
    """Fill micro-batches by tokens instead of by responses: each holds at most ``max_packing_token_size``."""
    max_packing_token_size: int = Field(default=4096, ge=1)
    """Most tokens, of prompts and responses without padding, in a micro-batch; a single longer sequence makes one by
    itself."""

    adv_estimator: Literal["group_norm", "gae"] = "group_norm"
    """``group_norm``: rewards minus their group's mean, over its standard deviation. ``gae``: generalised advantage
    estimation over the critic's values (Schulman et al. 2015, arXiv:1506.02438)."""
    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of a later token's reward; ``gae``."""
    lam: float = Field(default=0.95, ge=0, le=1)
    """Weight of later temporal differences; ``gae``."""
    advantage_whiten: bool = True
    """Shift and scale advantages to mean 0 and standard deviation 1 over all tokens of all ranks; ``gae``."""
    cliprange_value: float = Field(default=0.5, gt=0)
    """How far a value may move from what it was before the update, in the clipped value loss; ``gae``."""

    clip_ratio: float = Field(default=0.2, gt=0, lt=1)
    """PPO's clip range of the probability ratio."""
    clip_higher_enable: bool = False
    """DAPO's decoupled clipping: ``clip_ratio_low`` and ``clip_ratio_high`` instead of ``clip_ratio``."""
    clip_ratio_low: float = Field(default=0.2, gt=0, lt=1)
    """How far below 1 the ratio may fall."""
    clip_ratio_high: float = Field(default=0.28, gt=0)
    """How far above 1 the ratio may rise."""
    token_level_loss: bool = False
    """Every token of a mini-batch counts the same (DAPO); false gives every response the same weight (GRPO)."""
    entropy_coeff: float = Field(default=0.0, ge=0)
    """Weight of the policy's entropy, which is subtracted from the loss."""
    kl_penalty: Literal["kl", "k3", "low_var_kl"] = "k3"
    """Estimator of the divergence from the reference, of http://joschu.net/blog/kl-approx.html: ``kl`` is its k1,
    ``low_var_kl`` MindSpeed-RL's name for k3."""
    init_kl_coef: float = Field(default=0.01, ge=0)
    """Weight of the divergence, in the loss or in the reward."""
    use_kl_in_reward: bool = False
    """Take the divergence off each token's reward instead of adding it to the loss; ``gae``."""

    filter_groups_enable: bool = False
    """DAPO's dynamic sampling: groups whose rewards are all the same teach nothing; sample further prompts until
    enough other groups are there."""
    filter_groups_metric: Verifier | None = None
    """The rule of ``verifier_function`` whose scores decide; null takes the weighted reward."""
    filter_groups_max_batches: int = Field(default=10, ge=1)
    """Most batches that are sampled for one step; then groups that were left out fill it up."""
    overlong_buffer_enable: bool = False
    """DAPO's soft punishment of long responses."""
    overlong_buffer: int = Field(default=1, ge=1)
    """Tokens before ``generate_config.sampling_config.max_tokens`` over which the punishment rises from 0."""
    overlong_buffer_penalty_factor: float = Field(default=1.0, gt=0)
    """Reward taken off a response of the greatest length."""

    rule_reward: Literal[True] = True
    """Rewards come from rules, not from a model."""
    verifier_function: list[Verifier] = Field(default_factory=lambda: list(DEFAULT_VERIFIERS), min_length=1)
    """Rules that score a response. ``acc``: 1 when it ended and is the answer. ``base_acc``: 1 when it holds the
    answer. ``acc_for_ppo``, ``acc_for_dapo``: 1 or -1 for ``acc``. ``format``: the share of it that is digits with an
    end. ``strict_format``: 1 when it is digits and an end, and nothing else."""
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

    @model_validator(mode="after")
    def _switches_agree(self) -> RLConfig:
        grouped = self.adv_estimator == "group_norm"
        if grouped and self.n_samples_per_prompt < 2:
            raise ValueError("n_samples_per_prompt is 1: group_norm needs groups of two or more")
        if grouped and self.use_kl_in_reward:
            raise ValueError("use_kl_in_reward: rewards of single tokens need adv_estimator gae")
        if not grouped and self.filter_groups_enable:
            raise ValueError("filter_groups_enable: adv_estimator gae has no groups; set it to false")
        if self.filter_groups_metric is not None and self.filter_groups_metric not in self.verifier_function:
            raise ValueError(f"filter_groups_metric: {self.filter_groups_metric} is not in verifier_function")
        return self

    @property
    def clip_range(self) -> tuple[float, float]:
        """How far the probability ratio may fall below 1, and rise above it."""
        return (self.clip_ratio_low, self.clip_ratio_high) if self.clip_higher_enable else (self.clip_ratio,) * 2

    @property
    def kl_in_loss(self) -> float:
        """Weight of the divergence in the loss."""
        return 0.0 if self.use_kl_in_reward else self.init_kl_coef
