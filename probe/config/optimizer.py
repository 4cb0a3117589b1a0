"""How the actor and the critic are updated: optimizer, learning rate, memory, adapters."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from probe.config.base import StrictModel


class UpdateConfig(StrictModel):
    """What the updates of the actor and of the critic have in common."""

    micro_batch_size: int = Field(default=4, ge=1)
    """Responses per forward and backward pass of the update."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of AdamW at its highest."""
    min_lr: float = Field(default=0.0, ge=0)
    """Learning rate at the last step, where it decays."""
    lr_decay_style: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls from ``lr`` to ``min_lr`` over the steps after the warm-up."""
    lr_warmup_fraction: float = Field(default=0.0, ge=0, lt=1)
    """Share of the steps in which the learning rate rises to ``lr``."""
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
    recompute_granularity: Literal["full"] | None = None
    """``full`` keeps the inputs of each decoder layer alone and computes the rest again in the backward pass (gradient
    checkpointing); null keeps all activations."""

    @model_validator(mode="after")
    def _decays_downwards(self) -> UpdateConfig:
        if self.min_lr > self.lr:
            raise ValueError(f"min_lr ({self.min_lr}) is above lr ({self.lr})")
        return self


class ActorConfig(UpdateConfig):
    """The actor's update."""

    lora_r: int | None = Field(default=None, ge=1)
    """Rank of LoRA adapters (Hu et al. 2021, arXiv:2106.09685): they alone are trained. null trains all weights. Needs
    peft: ``pip install 'firstdiff[lora]'``."""
    lora_alpha: int = Field(default=16, ge=1)
    """Scale of the adapters, divided by their rank."""
    lora_target_modules: list[str] = Field(default_factory=lambda: ["q_proj", "v_proj"], min_length=1)
    """Last names of the modules that get adapters."""


class CriticConfig(UpdateConfig):
    """PPO's critic, a value head on a model, and its update."""

    share_backbone: bool = False
    """Put the value head on the actor: it reads the actor's last hidden states, and the critic's update trains the
    head alone. false gives the critic a model of its own, which begins as the actor does."""
