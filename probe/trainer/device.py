"""The device to train on, its random states, and the determinism that it is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import random
from typing import Any

import numpy as np
import torch

from probe.config import Determinism
from probe.errors import UsageError


def pick_device(wanted: str) -> torch.device:
    """The device of a configuration: ``auto`` takes an NPU before a GPU before the CPU.

    Raises:
        UsageError: The wanted device is not here.
    """
    if wanted in ("auto", "npu") and _npu_is_there(required=wanted == "npu"):
        return torch.device("npu", 0)
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError("device: cuda is asked for, but torch finds no CUDA device; set device to auto or cpu")
    if wanted in ("auto", "cuda") and torch.cuda.is_available():
        return torch.device("cuda", 0)
    return torch.device("cpu")


def _npu_is_there(required: bool) -> bool:
    """Imports torch_npu, which adds ``torch.npu``; it imports only where CANN is."""
    if importlib.util.find_spec("torch_npu") is None:
        if required:
            raise UsageError("device: npu is asked for, but torch_npu is not installed; pip install 'firstdiff[npu]'")
        return False
    try:
        importlib.import_module("torch_npu")
    except (ImportError, OSError) as error:
        if required:
            raise UsageError(f"device: npu is asked for, but torch_npu cannot be imported ({error})") from error
        return False
    available = bool(_backend("npu").is_available())
    if required and not available:
        raise UsageError("device: npu is asked for, but torch_npu finds no NPU")
    return available


def _backend(kind: str) -> Any:
    """``torch.cuda`` or, once torch_npu is imported, ``torch.npu``."""
    return getattr(torch, kind)


def make_deterministic(settings: Determinism, seed: int, device: torch.device) -> None:
    """Seeds every random state and puts the settings into effect.

    The environment variables among the settings must stand before the interpreter starts; see
    ``probe.trainer.__main__``.

    Args:
        settings: What is asked for.
        seed: Seed of all random states.
        device: Where training happens.
    """
    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  (the global state is what third-party code draws from)
    torch.manual_seed(seed)
    if device.type != "cpu":
        _backend(device.type).manual_seed_all(seed)
    torch.use_deterministic_algorithms(settings.deterministic_algorithms, warn_only=False)
    torch.backends.cudnn.deterministic = settings.deterministic_algorithms
    torch.backends.cudnn.benchmark = False


def sampling_generator(seed: int, device: torch.device) -> torch.Generator:
    """The rollout's own generator, on the device, so that no other draw moves it."""
    generator = torch.Generator(device=device)
    generator.manual_seed(seed)
    return generator
