"""Dotted keys of an experiment: those of ``configurations.json``, and below ``environment`` those of its environment.

Standard library only. A part that is no plain name stands in quotes: ``model."a.b".0``.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

KeyPath = tuple[str, ...]
"""The parts of a key; the first says which file: ``configurations`` or ``environment``."""

CONFIGURATIONS = "configurations"
ENVIRONMENT = "environment"

ENVIRONMENT_KEYS = (
    *(f"versions.{name}" for name in ("torch", "torch-npu", "numpy", "transformers", "mindstudio-probe", "xxhash")),
    *(f"versions.{name}" for name in ("cann", "cuda", "cudnn")),
    *(f"platform.{name}" for name in ("python", "system", "machine", "processors", "cpu_model", "cpu_capability")),
    *("build.torch", "build.settings.*", "limits.affinity", "limits.cpus", "limits.memory_bytes"),
    *("world_size", "models.*", "devices.cuda", "devices.npu", "determinism.requested.*"),
    *(
        f"determinism.in_effect.{name}"
        for name in (
            *("deterministic_algorithms", "warn_only", "fill_uninitialized_memory", "cudnn_deterministic"),
            *("cudnn_benchmark", "cudnn_tf32", "cuda_matmul_tf32", "cuda_fp16_reduced_precision"),
            *("cuda_bf16_reduced_precision", "mkldnn", "default_dtype", "sdpa.*", "npu.*", "float32_matmul_precision"),
            *("num_threads", "num_interop_threads"),
            *("hash_randomization", "torch_seed", "random_states.*", "variables.*"),
        )
    ),
)
"""Every key of ``environment.json``; ``*`` stands for whatever a section holds."""

_PLAIN = re.compile(r"[\w-]{1,200}", re.ASCII)
_PART = re.compile(r'("(?:[^"\\]|\\.)*")|([^.]+)')
_LONGEST_PART = 200


def parse_key(key: str) -> KeyPath:
    """The parts of a key as ``show_key`` writes it; ``configurations.`` may stand before one of the configuration.

    Example:
        >>> parse_key("environment.versions.torch")
        ('environment', 'versions', 'torch')
        >>> parse_key("trainer.kind")
        ('configurations', 'trainer', 'kind')
    """
    parts: list[str] = []
    for quoted, plain in _PART.findall(key):
        try:
            parts.append(json.loads(quoted) if quoted else plain)
        except ValueError:
            parts.append(quoted)
    if not parts:
        return (CONFIGURATIONS, "")  # an empty text is no section of everything
    return tuple(parts) if parts[0] in (CONFIGURATIONS, ENVIRONMENT) else (CONFIGURATIONS, *parts)


def show_key(path: KeyPath) -> str:
    """A key as text. Parts of more than 200 characters are cut.

    Example:
        >>> show_key(("configurations", "trainer", "a.b"))
        'trainer."a.b"'
    """
    if path[:1] == (CONFIGURATIONS,) and len(path) > 1 and path[1] not in (CONFIGURATIONS, ENVIRONMENT):
        path = path[1:]
    return ".".join(part if _PLAIN.fullmatch(part) else json.dumps(part[:_LONGEST_PART]) for part in path)


def is_below(path: KeyPath, section: KeyPath) -> bool:
    """Whether a key is a given one, or in its section."""
    return path[: len(section)] == section


def sections(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key of a nested value, and every section of them."""
    if path:
        yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from sections(child, (*path, str(key)))


def is_of_environment(path: KeyPath) -> bool:
    """Whether ``environment.json`` may have a key, or a section of that name."""
    if path[:1] != (ENVIRONMENT,):
        return False
    for key in ENVIRONMENT_KEYS:
        parts = (ENVIRONMENT, *key.split("."))
        if is_below(parts, path) or (parts[-1] == "*" and is_below(path, parts[:-1])):
            return True
    return False


def close_keys(wanted: KeyPath, known: Iterable[KeyPath], most: int = 3) -> list[str]:
    """Known keys that somebody may have meant: those of the same last part, then those that look alike."""
    names = {show_key(path): path[-1] for path in known if path}
    same_end = [name for name, last in names.items() if wanted and last == wanted[-1]]
    alike = difflib.get_close_matches(show_key(wanted), names, n=most, cutoff=0.75)
    return list(dict.fromkeys([*same_end[:most], *alike]))[:most]


def environment_keys() -> list[KeyPath]:
    """The keys of ``environment.json``, without what an open section holds."""
    return [(ENVIRONMENT, *(part for part in key.split(".") if part != "*")) for key in ENVIRONMENT_KEYS]
