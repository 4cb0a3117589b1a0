"""A very small model, and process-wide settings put back."""

from __future__ import annotations

import pytest
import torch

from probe.config import ModelConfig, TrainingConfig
from probe.trainer.models import Models, build_models

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.3,
}


@pytest.fixture(autouse=True)
def global_state(torch_state: None) -> None:
    """Every test here leaves torch as it found it."""


@pytest.fixture
def small_config() -> dict[str, object]:
    """Keys of a very small Qwen2."""
    return dict(SMALL)


@pytest.fixture
def models(small_config: dict[str, object]) -> Models:
    """A very small actor, its reference, and the byte-level tokenizer."""
    torch.manual_seed(3)
    return build_models(TrainingConfig(model=ModelConfig(config=small_config)), torch.device("cpu"))
