"""The actor, its frozen reference, and PPO's critic."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from probe.config import ActorConfig, ModelConfig, TrainingConfig, UpdateConfig
from probe.errors import ConfigError
from probe.trainer.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Models:
    """Everything that has weights, and the tokenizer that goes with it.

    Example:
        >>> models = build_models(TrainingConfig(), torch.device("cpu"))
        >>> models.reference.training
        False
    """

    actor: Any
    """A transformers causal language model: the policy that is trained and sampled from."""
    reference: Any
    """A frozen copy of the actor as it began."""
    critic: ValueModel | None
    """PPO's critic; None for the other algorithms."""
    tokenizer: Tokenizer

    @property
    def trained(self) -> dict[str, list[torch.nn.Parameter]]:
        """The parameters that each role's update trains."""
        actor = [parameter for parameter in self.actor.parameters() if parameter.requires_grad]
        return {"actor": actor, "reference": [], "critic": [] if self.critic is None else self.critic.own_parameters}


class ValueModel(torch.nn.Module):
    """A value head on the hidden states of a language model.

    Args:
        backbone: A transformers model without a language-model head.
        hidden_size: Width of its hidden states.
        frozen: Whether the backbone is somebody else's: the head alone is trained then.
    """

    def __init__(self, backbone: Any, hidden_size: int, frozen: bool) -> None:
        super().__init__()
        self.backbone = backbone
        self.frozen = frozen
        self.value_head = torch.nn.Linear(hidden_size, 1)

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """The value after each token; [B, tokens]."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            hidden = self.backbone(**inputs, use_cache=False).last_hidden_state
        values: torch.Tensor = self.value_head(hidden).squeeze(-1)
        return values

    @property
    def own_parameters(self) -> list[torch.nn.Parameter]:
        """What the critic's update trains."""
        return list(self.value_head.parameters() if self.frozen else self.parameters())


def build_models(config: TrainingConfig, device: torch.device) -> Models:
    """Reads the actor from a local folder, or makes a small Qwen2 with random weights; float32.

    Args:
        config: Folder, or keys of ``Qwen2Config``; adapters, critic.
        device: Where the models live.

    Raises:
        ConfigError: The folder or the configuration makes no model.
    """
    actor, tokenizer = _language_model(config.model)
    reference = copy.deepcopy(actor).eval().requires_grad_(False)
    critic = None
    if config.megatron_training.stage == "ray_ppo":
        shared = config.critic_config.share_backbone
        backbone = actor.base_model if shared else copy.deepcopy(actor.base_model)
        critic = ValueModel(backbone, actor.config.hidden_size, frozen=shared)
        if not shared:
            _recompute(backbone, config.critic_config)
    _recompute(actor, config.actor_config)
    if config.actor_config.lora_r is not None:
        actor = _with_adapters(actor, config.actor_config)
    for model in (actor, reference, critic):
        if model is not None:
            model.to(device)
    return Models(actor, reference, critic, tokenizer)


def decoder_layers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated layers of a transformers model, in order; what is sharded one by one."""
    lists = [list(module) for module in model.modules() if isinstance(module, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])


def _recompute(model: Any, config: UpdateConfig) -> None:
    if config.recompute_granularity != "full":
        return
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable({"use_reentrant": False})
    else:  # transformers before 5
        model.gradient_checkpointing_enable({"use_reentrant": False})


def _with_adapters(actor: Any, config: ActorConfig) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        problem = f"peft cannot be imported ({error}); pip install 'firstdiff[lora]'"
        raise ConfigError("", "actor_config.lora_r", problem) from error
    if config.recompute_granularity == "full":
        actor.enable_input_require_grads()  # else nothing that is recomputed asks for a gradient
    settings = LoraConfig(
        r=config.lora_r or 0, lora_alpha=config.lora_alpha, target_modules=config.lora_target_modules, lora_dropout=0.0
    )
    try:
        return get_peft_model(actor, settings)
    except ValueError as error:
        raise ConfigError("", "actor_config.lora_target_modules", str(error)) from error


def _language_model(config: ModelConfig) -> tuple[Any, Tokenizer]:
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    tokenizer = load_tokenizer(config.path)
    try:
        if config.path is not None:
            actor, report = AutoModelForCausalLM.from_pretrained(
                config.path,
                local_files_only=True,
                dtype=torch.float32,
                attn_implementation="eager",
                output_loading_info=True,
            )
            if report["missing_keys"]:
                raise ValueError(f"its weights lack {sorted(report['missing_keys'])[0]}")
        else:
            special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
            unknown = sorted(set(config.config) - set(Qwen2Config().to_dict()))
            if unknown:
                raise ValueError(f"unknown key {unknown[0]!r}")
            keys = {"vocab_size": ByteTokenizer.vocab_size, **special, "bos_token_id": None, **config.config}
            actor = Qwen2ForCausalLM(Qwen2Config(**keys, attn_implementation="eager"))
    except Exception as error:  # noqa: BLE001  (transformers raises anything on a wrong configuration or file)
        where = "model.path" if config.path is not None else "model.config"
        raise ConfigError(config.path or "", where, f"makes no model ({' '.join(str(error).split())})") from error
    size = actor.get_input_embeddings().num_embeddings
    if size <= max(tokenizer.pad_token_id, tokenizer.eos_token_id):
        raise ConfigError("", "model", f"has {size} embeddings, fewer than its tokenizer's tokens")
    actor.generation_config = GenerationConfig()  # a folder's own would change what is sampled
    return actor, tokenizer
