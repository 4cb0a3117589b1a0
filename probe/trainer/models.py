"""The actor and its frozen reference."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch

from probe.config import ModelConfig
from probe.errors import ConfigError
from probe.trainer.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Models:
    """Everything that has weights, and the tokenizer that goes with it.

    Example:
        >>> models = build_models(ModelConfig(), torch.device("cpu"))
        >>> models.reference.training
        False
    """

    actor: Any
    """A transformers causal language model: the policy that is trained and sampled from."""
    reference: Any
    """A frozen copy of the actor as it began."""
    tokenizer: Tokenizer


def build_models(config: ModelConfig, device: torch.device) -> Models:
    """Reads the actor from a local folder, or makes a small Qwen2 with random weights; float32.

    Args:
        config: Folder, or keys of ``Qwen2Config``.
        device: Where the models live.

    Raises:
        ConfigError: The folder or the configuration makes no model.
    """
    from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

    tokenizer = load_tokenizer(config.path)
    try:
        if config.path is not None:
            actor = AutoModelForCausalLM.from_pretrained(
                config.path, local_files_only=True, dtype=torch.float32, attn_implementation="eager"
            )
        else:
            special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
            keys = {"vocab_size": ByteTokenizer.vocab_size, **special, "bos_token_id": None, **config.config}
            actor = Qwen2ForCausalLM(Qwen2Config(**keys, attn_implementation="eager"))
    except (OSError, ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        where = "model.path" if config.path is not None else "model.config"
        raise ConfigError(config.path or "", where, f"makes no model ({' '.join(str(error).split())})") from error
    size = actor.get_input_embeddings().num_embeddings
    if size <= max(tokenizer.pad_token_id, tokenizer.eos_token_id):
        raise ConfigError("", "model", f"has {size} embeddings, fewer than its tokenizer's tokens")
    actor.to(device)
    reference = copy.deepcopy(actor).eval().requires_grad_(False)
    return Models(actor, reference, tokenizer)
