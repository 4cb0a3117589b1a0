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
    actor.to(device)
    reference = copy.deepcopy(actor).eval().requires_grad_(False)
    return Models(actor, reference, tokenizer)
