"""What a trainer process runs on, and which determinism settings are in effect there.

Requested is not effective: every value is read back from the library or the operating system, not from a
configuration.
"""

from __future__ import annotations

import os
import platform
import random
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import numpy as np
import torch

from probe.collect.limits import cpu_model, limits
from probe.store import layout
from probe.store.digest import digest
from probe.store.writer import DumpWriter, Place

VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "HCCL_DETERMINISTIC",
    "LCCL_DETERMINISTIC",
    "ATB_MATMUL_SHUFFLE_K_ENABLE",
    "CLOSE_MATMUL_K_SHIFT",
    "PYTHONHASHSEED",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
)
"""Environment variables that change results between runs."""

_FAMILIES = ("HCCL_", "LCCL_", "NCCL_", "CUBLAS_", "CUDNN_", "MKL_", "OMP_", "KMP_", "GOMP_", "NVIDIA_TF32_")
"""What further variables of that sort begin with: those that are set are told too."""

_SETTINGS = ("BLAS_INFO", "BUILD_TYPE", "CXX_COMPILER", "LAPACK_INFO", "USE_MKLDNN", "USE_OPENMP")
"""Of the settings that torch was built with, those that change results."""
_PACKAGES = ("torch", "torch-npu", "numpy", "transformers", "mindstudio-probe", "xxhash")


def describe(requested: dict[str, Any], models: Mapping[str, torch.nn.Module] | None = None) -> dict[str, Any]:
    """This process: versions, devices, determinism. ``probe.keys.ENVIRONMENT_KEYS`` lists every key.

    Args:
        requested: The profile's ``determinism`` section, repeated beside what is in effect.
        models: The attached models, by role.
    """
    return {
        "versions": versions(),
        "platform": {
            "python": platform.python_version(),
            "system": platform.platform(),
            "machine": platform.machine(),
            "processors": os.cpu_count(),
            "cpu_model": cpu_model(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
        "build": {"torch": torch.version.git_version, "settings": _build_settings()},
        "limits": limits(),
        "devices": devices(),
        "world_size": world_size(),
        "models": {role: describe_model(model) for role, model in (models or {}).items()},
        "determinism": {"requested": requested, "in_effect": in_effect()},
    }


def write(
    writer: DumpWriter, place: Place | None, requested: dict[str, Any], models: Mapping[str, torch.nn.Module]
) -> None:
    """Writes ``environment.json``; of several processes, each writes its own.

    Args:
        writer: Writes the dump.
        place: This process among several; None where it is the only one.
        requested: See ``describe``.
        models: See ``describe``.
    """
    rank = None if place is None or place.rank == 0 else place.rank
    writer.write_file(layout.of_rank(layout.ENVIRONMENT, rank), describe(requested, models))


def versions() -> dict[str, str | None]:
    """Installed versions of what changes results; None where a package is absent."""
    found: dict[str, str | None] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    backends = {"cann": _cann(), "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {**found, **{name: None if value is None else str(value) for name, value in backends.items()}}


def _cann() -> str | None:
    """CANN's version, as torch_npu tells it; None where it is not loaded or too old to tell."""
    torch_npu = sys.modules.get("torch_npu")
    tell = getattr(getattr(torch_npu, "utils", None), "get_cann_version", None)
    try:
        return (tell() or None) if callable(tell) else None
    except (OSError, RuntimeError, ValueError):  # it reads CANN's own files
        return None


def _build_settings() -> dict[str, str]:
    """How torch was built: its settings and libraries, as its own description has them."""
    lines = [line.strip(" -") for line in torch.__config__.show().splitlines()]
    found = {"libraries": "; ".join(line for line in lines if line and not line.startswith("Build settings"))}
    settings = next((line for line in lines if line.startswith("Build settings")), "")
    pairs = (part.partition("=") for part in settings.partition(":")[2].split(", "))
    return {**found, **{name.strip(): value.strip() for name, _, value in pairs if name.strip() in _SETTINGS}}


def world_size() -> int:
    """Processes that train together."""
    distributed = torch.distributed
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def describe_model(model: torch.nn.Module) -> dict[str, Any]:
    """What kind of model an attached one is, and where it lies: dtypes and kinds of device of its parameters."""
    parameters = [one for one in model.parameters() if not torch.nn.parameter.is_lazy(one)]
    config = getattr(getattr(model, "module", model), "config", None)
    attention = getattr(config, "_attn_implementation", None)  # of transformers
    return {
        "class": type(model).__qualname__,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "dtypes": sorted({str(parameter.dtype).removeprefix("torch.") for parameter in parameters}),
        "devices": sorted({parameter.device.type for parameter in parameters}),
        "attention": attention if isinstance(attention, str) else None,
    }


def devices() -> dict[str, list[str]]:
    """Accelerators that this process sees, by kind."""
    found: dict[str, list[str]] = {"cuda": [], "npu": []}
    if torch.cuda.is_available():
        found["cuda"] = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    npu = getattr(torch, "npu", None)  # there once torch_npu is imported
    if npu is not None and npu.is_available():
        found["npu"] = [npu.get_device_name(index) for index in range(npu.device_count())]
    return found


def random_states() -> dict[str, str]:
    """Digests of the global random states now, by library and device: the seed of most cannot be read back."""
    states = {
        "python": repr(random.getstate()).encode(),
        "numpy": repr(np.random.get_state(legacy=False)).encode(),
        "torch": bytes(torch.get_rng_state().tolist()),
    }
    for kind in ("cuda", "npu"):
        backend: Any = getattr(torch, kind, None)
        if backend is not None and backend.is_available():
            states[kind] = bytes(backend.get_rng_state().tolist())
    return {name: digest("state", (len(state),), state) for name, state in states.items()}


def in_effect() -> dict[str, Any]:
    """Determinism settings as the libraries report them now."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": bool(getattr(torch.utils.deterministic, "fill_uninitialized_memory", False)),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_tf32": _told(lambda: torch.backends.cudnn.allow_tf32),
        "cuda_matmul_tf32": _told(lambda: torch.backends.cuda.matmul.allow_tf32),
        "cuda_fp16_reduced_precision": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "cuda_bf16_reduced_precision": torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "mkldnn": torch.backends.mkldnn.enabled,
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "sdpa": _sdpa(),
        "npu": _npu(),
        "float32_matmul_precision": _told(torch.get_float32_matmul_precision),
        "num_threads": torch.get_num_threads(),
        "num_interop_threads": torch.get_num_interop_threads(),
        "hash_randomization": bool(sys.flags.hash_randomization),
        "torch_seed": torch.initial_seed(),
        "random_states": random_states(),
        "variables": {name: os.environ.get(name) for name in (*VARIABLES, *_further_variables())},
    }


def _told(ask: Callable[[], Any]) -> Any:
    """A setting; why torch tells it to nobody where that is so, as with old and new names of one precision mixed."""
    try:
        return ask()
    except RuntimeError as error:
        return f"not told: {' '.join(str(error).split())[:200]}"


def _further_variables() -> list[str]:
    return sorted(name for name in os.environ if name.startswith(_FAMILIES) and name not in VARIABLES)


def _sdpa() -> dict[str, bool]:
    """Which kernels ``scaled_dot_product_attention`` may choose from on CUDA."""
    kernels = ("flash", "mem_efficient", "math", "cudnn")
    asked = {name: getattr(torch.backends.cuda, f"{name}_sdp_enabled", None) for name in kernels}
    return {name: bool(ask()) for name, ask in asked.items() if callable(ask)}


def _npu() -> dict[str, bool] | None:
    """CANN's own switches, as torch_npu tells them; None where it is not loaded."""
    npu: Any = getattr(torch, "npu", None) if "torch_npu" in sys.modules else None
    if npu is None:
        return None
    found: dict[str, bool] = {}
    for name in ("matmul", "conv"):
        value = getattr(getattr(npu, name, None), "allow_hf32", None)
        if isinstance(value, bool):
            found[f"{name}_hf32"] = value
    told = getattr(npu, "is_jit_compile_false", None)
    if callable(told):
        found["jit_compile"] = not told()
    return found
