"""A very small model, and process-wide settings put back."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
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
def global_state() -> Iterator[None]:
    """Restores random states, threads and determinism settings; one thread in the test."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.set_num_threads(1)  # faster for models as small as these
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn


@pytest.fixture
def small_config() -> dict[str, object]:
    """Keys of a very small Qwen2."""
    return dict(SMALL)


@pytest.fixture
def models(small_config: dict[str, object]) -> Models:
    """A very small actor, its reference, and the byte-level tokenizer."""
    torch.manual_seed(3)
    return build_models(TrainingConfig(model=ModelConfig(config=small_config)), torch.device("cpu"))
