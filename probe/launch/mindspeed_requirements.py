"""What MindSpeed-RL's configuration must say so that two runs of it can be the same.

Source: MindSpeed-RL, ``docs/zh/features/deterministic_computation.md``, and what its configuration classes default to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probe.launch.requirements import Requirement, is_number, value_at

VARIABLES = {
    "HCCL_DETERMINISTIC": (("true", "strict", "1"), "order of reductions between NPUs"),
    "LCCL_DETERMINISTIC": (("1", "true"), "the same for LCCL"),
    "CLOSE_MATMUL_K_SHIFT": (("1", "true"), "order of the K axis in CANN's matrix products"),
    "ATB_MATMUL_SHUFFLE_K_ENABLE": (("0", "false"), "the same in ATB's"),
}
"""Variables of the workers: what each may be, in lower case, and what it is for."""
SWITCHES = ("actor_infer_dump", "actor_train_dump", "reference_dump", "critic_train_dump")
ENVIRONMENT = "environment"
"""The section that the workers' variables are put into, beside the configuration's own."""


def requirements(configuration: Mapping[str, Any], save_to: str) -> list[Requirement]:
    """What a configuration is held to, in the order of its sections.

    Args:
        configuration: What hydra composed, with the workers' variables as the section ``environment``.
        save_to: The folder that checkpoints go to where the configuration would overwrite what it loads.
    """

    def true(value: Any) -> bool:
        return value is True

    def not_true(value: Any) -> bool:
        return value is None or value is False

    unshuffled = value_at(configuration, "megatron_training.no_shuffle") is True
    found = [
        Requirement(
            "megatron_training.seed",
            "a number (or no_shuffle true)",
            lambda value: unshuffled or is_number(value),
            1234,
            "the prompts are shuffled at random",
        ),
        Requirement(
            "megatron_training.full_shuffle_instruction_dataset",
            "false",
            not_true,
            False,
            "the whole data set is shuffled anew",
        ),
        Requirement(
            "megatron_training.npu_deterministic", "true", true, True, "operators may add in another order in each run"
        ),
        Requirement(
            "rl_config.guarantee_order", "true", true, True, "samples are taken in the order in which they are ready"
        ),
        Requirement(
            "rl_config.filter_groups_enable", "false", not_true, False, "groups are sampled anew until enough are kept"
        ),
        Requirement(
            "rl_config.partial_rollout_max_split",
            "1",
            lambda value: value in (None, 1),
            1,
            "responses are cut where a step ends, and guarantee_order refuses that",
        ),
        Requirement(
            "rl_config.use_integrated_worker",
            "true",
            lambda value: value is not False,
            True,
            "msprobe sees the integrated worker only",
        ),
        Requirement(
            "generate_config.sampling_config.seed", "a number", is_number, 1234, "responses are sampled at random"
        ),
    ]
    return [*found, *_checkpoints(configuration, save_to), *_variables()]


def _checkpoints(configuration: Mapping[str, Any], save_to: str) -> list[Requirement]:
    """Runs that save where they load from: the second goes on from what the first one saved."""
    held = []
    for section in ("actor_config", "critic_config"):
        load = value_at(configuration, f"{section}.load")
        if load is None:
            continue

        def elsewhere(value: Any, load: Any = load) -> bool:
            return bool(value != load)

        why = f"run b would begin with what run a saved over {section}.load"
        goal = f"{save_to}/{section.removesuffix('_config')}"
        held.append(Requirement(f"{section}.save", f"another folder than {load}", elsewhere, goal, why))
    return held


def _variables() -> list[Requirement]:
    def among(value: Any, allowed: tuple[str, ...]) -> bool:
        return str(value).strip().lower() in allowed

    return [
        Requirement(
            f"{ENVIRONMENT}.{name}",
            allowed[0],
            lambda value, allowed=allowed: among(value, allowed),  # type: ignore[misc]
            allowed[0],
            f"{what} is left open",
        )
        for name, (allowed, what) in VARIABLES.items()
    ]
