"""What makes two runs the same experiment: which keys count, and which follow from others."""

from __future__ import annotations

from typing import Any

from probe.keys import CONFIGURATIONS, ENVIRONMENT, KeyPath, is_below, parse_key

NOT_COUNTED: dict[str, str] = {
    "check": "what is compared, not what is trained",
    "record": "what is recorded; recording changes no value",
    "trainer.time_limit": "how long a run may take",
    "trainer.stall_seconds": "how long a run may be silent",
    "trainer.cwd": "a folder",
    "trainer.secrets": "which values are not written down",
    "trainer.node_rank": "which host this is",
    "trainer.rdzv_endpoint": "where the processes meet",
    "trainer.config.msprobe_config": "where a run records, and which layers: its switches, steps and dump_path",
    "trainer.config.megatron_training.save_interval": "when checkpoints are written; that changes no value",
    "trainer.config.megatron_training.keep_checkpoints": "which checkpoints are kept",
    "environment.limits": "what a container leaves of a machine; what changes results is the number of threads",
    "environment.determinism.in_effect.random_states": "what was drawn by then: a result, which the records show",
}
"""Keys that differ between the runs of one check by design, or from one machine to the next, and why they do not count.
Those outside ``environment`` are keys of a profile."""

NOT_COUNTED_ANYWHERE: dict[str, str] = {
    "msprobe_config": "where a run records, and which layers",
    "dump_path": "a folder that a run writes",
    "save": "a folder that a run writes",
    "hostname": "a machine's name",
    "pid": "a process",
    "date": "when it ran",
}
"""Names of keys that do not count wherever they stand in a trainer's configuration."""

_REQUESTED, _IN_EFFECT = "environment.determinism.requested", "environment.determinism.in_effect"
TORCH_SEED = f"{_IN_EFFECT}.torch_seed"
"""The seed of torch's generator on the host: of the operating system's entropy where nobody sets it."""
_VARIABLES = f"{_IN_EFFECT}.variables"
_SEED, _MODEL, _DEVICE = (f"trainer.config.{key}" for key in ("megatron_training.seed", "model", "device"))
_SAMPLING_SEED = "trainer.config.generate_config.sampling_config.seed"

FOLLOWS_FROM: dict[str, tuple[str, ...]] = {
    f"{_REQUESTED}.seed": (_SEED,),
    f"{_REQUESTED}.sampling_seed": (_SEED, _SAMPLING_SEED),
    TORCH_SEED: (_SEED,),
    f"{_IN_EFFECT}.deterministic_algorithms": ("determinism.deterministic_algorithms",),
    f"{_IN_EFFECT}.cudnn_deterministic": ("determinism.deterministic_algorithms",),
    f"{_IN_EFFECT}.hash_randomization": ("determinism.python_hash_seed",),
    f"{_IN_EFFECT}.num_threads": ("determinism.num_threads", "trainer.nproc_per_node"),
    f"{_VARIABLES}.CUBLAS_WORKSPACE_CONFIG": ("determinism.cublas_workspace_config",),
    f"{_VARIABLES}.HCCL_DETERMINISTIC": ("determinism.hccl_deterministic",),
    f"{_VARIABLES}.LCCL_DETERMINISTIC": ("determinism.lccl_deterministic",),
    f"{_VARIABLES}.ATB_MATMUL_SHUFFLE_K_ENABLE": ("determinism.atb_matmul_shuffle_k_enable",),
    f"{_VARIABLES}.CLOSE_MATMUL_K_SHIFT": ("determinism.close_matmul_k_shift",),
    f"{_VARIABLES}.PYTHONHASHSEED": ("determinism.python_hash_seed",),
    f"{_VARIABLES}.OMP_NUM_THREADS": ("determinism.num_threads", "trainer.nproc_per_node"),
    f"{_VARIABLES}.MKL_NUM_THREADS": ("determinism.num_threads",),
    "environment.models": (_MODEL, _DEVICE, "trainer.nproc_per_node", "trainer.nnodes"),
    "environment.devices": (_DEVICE,),
    "environment.world_size": ("trainer.nproc_per_node", "trainer.nnodes"),
}
"""What a run says of itself because its configuration says so: where a key of the configuration differs and is meant
to, so is what follows from it."""

_BY_NAME = {_REQUESTED: "determinism", _VARIABLES: "trainer.env"}
"""Sections whose keys follow from those of the same name."""


class Counting:
    """Which keys count for two configurations.

    Args:
        left: The content of one dump's files, by section.
        right: That of the other's.

    Example:
        >>> Counting({}, {}).counts(parse_key("environment.determinism.in_effect.random_states.torch"))
        False
    """

    def __init__(self, left: dict[str, Any], right: dict[str, Any]) -> None:
        profiles = _is_profile(left) and _is_profile(right)
        paths = [parse_key(key) for key in NOT_COUNTED]
        self._not_counted = [path for path in paths if profiles or path[0] == ENVIRONMENT]

    def counts(self, path: KeyPath) -> bool:
        """Whether a difference in a key makes two experiments of two runs."""
        if path[0] == CONFIGURATIONS and any(part in NOT_COUNTED_ANYWHERE for part in path[1:]):
            return False
        return not any(is_below(path, section) for section in self._not_counted)


def follows(path: KeyPath, causes: list[KeyPath]) -> bool:
    """Whether a key of an environment is what it is because of other keys of the configuration.

    Args:
        path: The key that differs.
        causes: Keys of the configuration that differ and are meant to. Those of a trainer file count as those of a
            profile's ``trainer.config``.
    """
    if path[0] != ENVIRONMENT or not causes:
        return False
    sources = [
        parse_key(key) for effect, keys in FOLLOWS_FROM.items() if is_below(path, parse_key(effect)) for key in keys
    ]
    for effect, key in _BY_NAME.items():
        section = parse_key(effect)
        if is_below(path, section):
            sources.append((*parse_key(key), *path[len(section) :]))
    found = [*causes, *((CONFIGURATIONS, "trainer", "config", *cause[1:]) for cause in causes)]
    return any(is_below(cause, source) for cause in found for source in sources)


def _is_profile(side: dict[str, Any]) -> bool:
    trainer = side.get(CONFIGURATIONS, {}).get("trainer")
    return isinstance(trainer, dict) and isinstance(trainer.get("kind"), str)
