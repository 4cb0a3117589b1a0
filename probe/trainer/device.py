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
from probe.trainer.parallel import Ranks, local_rank


def pick_device(wanted: str) -> torch.device:
    """The device of a configuration: ``auto`` takes an NPU before a GPU before the CPU.

    Raises:
        UsageError: The wanted device is not here.
    """
    if wanted in ("auto", "npu") and _npu_is_there(required=wanted == "npu"):
        return _own_device("npu")
    if wanted == "cuda" and not torch.cuda.is_available():
        raise UsageError("device: cuda is asked for, but torch finds no CUDA device; set device to auto or cpu")
    if wanted in ("auto", "cuda") and torch.cuda.is_available():
        return _own_device("cuda")
    return torch.device("cpu")


def _own_device(kind: str) -> torch.device:
    """This process's accelerator, one a process."""
    count = _backend(kind).device_count()
    if local_rank() >= count:
        raise UsageError(f"trainer.nproc_per_node: process {local_rank()} has no {kind} device, there are {count}")
    device = torch.device(kind, local_rank())
    _backend(kind).set_device(device)
    return device


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


class RandomStates:
    """Every random state of a training: the global ones, and the trainer's own generators.

    Args:
        sampling_seed: Of the rollout's generator; each rank has a stream of its own.
        seed: Of the order of responses in an update.
        ranks: This process, and its device.
    """

    def __init__(self, sampling_seed: int, seed: int, ranks: Ranks) -> None:
        self._device = ranks.device
        self.sampling = torch.Generator(device=ranks.device)
        """The rollout's, on the device, so that no other draw moves it."""
        self.sampling.manual_seed(sampling_seed + ranks.rank)
        self.shuffling = torch.Generator()
        """Order of responses in an update; on the CPU, of the same state on every rank."""
        self.shuffling.manual_seed(seed)

    def state(self) -> dict[str, Any]:
        """All states, of types that ``torch.load(weights_only=True)`` reads."""
        name, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002  (third-party code draws from it)
        state = {
            "python": random.getstate(),
            "numpy": [str(name), torch.from_numpy(np.asarray(words, np.int64)), *rest],
            "torch": torch.get_rng_state(),
            "sampling": self.sampling.get_state(),
            "shuffling": self.shuffling.get_state(),
        }
        if self._device.type != "cpu":
            state["device"] = _backend(self._device.type).get_rng_state(self._device)
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Puts what ``state`` gave into effect again."""
        random.setstate(state["python"])
        name, words, *rest = state["numpy"]
        np.random.set_state((name, words.numpy().astype(np.uint32), *rest))  # noqa: NPY002
        torch.set_rng_state(state["torch"])
        self.sampling.set_state(state["sampling"])
        self.shuffling.set_state(state["shuffling"])
        if self._device.type != "cpu":
            _backend(self._device.type).set_rng_state(state["device"], self._device)
