"""What verl's configuration must say so that two runs of it can be the same.

Source: the comments of its configuration files and the code that reads them, of 0.9.1 and of January 2026 (0.8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.language import tell
from probe.launch.requirements import Requirement, is_number, value_at

SEED = 42
"""What verl's own seeds are by default."""
FULL = "full_determinism"
_ROLLOUT = "actor_rollout_ref.rollout"
_TOOL = "global_profiler.global_tool_config.precision_debugger"


def requirements(configuration: Mapping[str, Any]) -> list[Requirement]:
    """What a configuration is held to.

    Args:
        configuration: What verl composed.
    """
    found = []
    if value_at(configuration, "data.validation_shuffle") is not None:
        why = tell("the samples of a validation come in another order in each run")
        found.append(Requirement("data.validation_shuffle", "false", _is_false, False, why))
    for role in roles(configuration):
        found += _of_role(configuration, role)
    rollouts = [_ROLLOUT]
    if value_at(configuration, "reward.reward_model.enable") is True:
        rollouts.append("reward.reward_model.rollout")
    for place in rollouts:
        if _has(configuration, f"{place}.{FULL}"):
            why = tell("requests are scheduled, and tokens drawn, as it happens")
            found.append(Requirement(f"{place}.{FULL}", "true", _is_true, True, why))
        if _has(configuration, f"{place}.seed"):
            found.append(Requirement(f"{place}.seed", "a number", is_number, SEED, tell("tokens are drawn at random")))
    if value_at(configuration, "trainer.use_v1") is True:
        why = tell("it trains on the samples that are ready first")
        found.append(Requirement("trainer.v1.trainer_mode", "sync", lambda value: value == "sync", "sync", why))
    if _saves(configuration):
        why = tell("run b would go on from the checkpoint that run a saves")
        wanted = "disable or resume_path"
        found.append(
            Requirement("trainer.resume_mode", wanted, lambda v: v in ("disable", "resume_path"), "disable", why)
        )
    return found


def roles(configuration: Mapping[str, Any]) -> list[str]:
    """The sections of the models that are trained, or compute log-probs, in this configuration."""
    found = ["actor_rollout_ref.actor"]
    asks = ("algorithm.use_kl_in_reward", "actor_rollout_ref.actor.use_kl_loss")
    if any(value_at(configuration, key) is True for key in asks):
        found.append("actor_rollout_ref.ref")
    if has_critic(configuration):
        found.append("critic")
    return found


def has_critic(configuration: Mapping[str, Any]) -> bool:
    """Whether a critic is trained, by the rule that verl itself follows."""
    enabled = value_at(configuration, "critic.enable")
    return enabled is True or (enabled is None and value_at(configuration, "algorithm.adv_estimator") == "gae")


def not_enforced(configuration: Mapping[str, Any]) -> list[str]:
    """What verl asks for and does not enforce, and what it has no key for: one sentence each."""
    said: list[str] = [
        tell(
            "verl's full_determinism asks for deterministic algorithms with warn_only=True: an operation that has no"
            " deterministic form runs all the same, and only warns; the profile's determinism.deterministic_algorithms"
            " is not enforced in its workers"
        )
    ]
    for role in roles(configuration):
        if not any(_full_keys(configuration, role)):
            strategy = value_at(configuration, f"{role}.strategy")
            said.append(
                tell(
                    "{role}: its engine ({strategy}) has no full_determinism in this version: nothing asks for it"
                    " there",
                    role=role,
                    strategy=strategy,
                )
            )
    if value_at(configuration, "data.shuffle") is True and value_at(configuration, "data.seed") is None:
        said.append(
            tell("data.seed is not set: verl shuffles the data by torch's own default seed, the same in every run")
        )
    engine = value_at(configuration, f"{_ROLLOUT}.name")
    if not _has(configuration, f"{_ROLLOUT}.{FULL}"):
        said.append(
            tell(
                "this version of verl has no actor_rollout_ref.rollout.full_determinism: in which order requests are"
                " scheduled, and so what is sampled, is left to the inference engine"
            )
        )
    elif engine not in (None, "vllm", "???"):
        said.append(
            tell(
                "verl puts rollout.full_determinism into effect for vLLM alone; the rollout is {engine}'s",
                engine=engine,
            )
        )
    return said


def cannot_dump(configuration: Mapping[str, Any]) -> str | None:
    """Why its profiler dumps no layers; None where it does."""
    if _has(configuration, f"{_TOOL}.config_path"):
        return None
    return tell("this version of verl has no precision_debugger among the tools of its profiler (0.9.1 has)")


def follows_the_end(configuration: Mapping[str, Any]) -> bool:
    """Whether a step is another one where fewer are trained: learning rates, and validations, that know the last."""
    for role in ("actor_rollout_ref.actor", "critic"):
        get = f"{role}.optim"
        kinds = [value_at(configuration, f"{get}.{key}") for key in ("lr_scheduler_type", "warmup_style")]
        if any(kind not in (None, "constant") for kind in kinds):
            return True
        ratio = value_at(configuration, f"{get}.lr_warmup_steps_ratio")
        if ratio or value_at(configuration, f"{get}.lr_decay_style") not in (None, "constant"):
            return True
    return bool((value_at(configuration, "trainer.test_freq") or 0) > 0)


def world_size(configuration: Mapping[str, Any]) -> int | None:
    """Processes that train; None where the configuration does not say."""
    each, nodes = (value_at(configuration, f"trainer.{key}") for key in ("n_gpus_per_node", "nnodes"))
    return each * nodes if is_number(each) and is_number(nodes) else None


def _of_role(configuration: Mapping[str, Any], role: str) -> Iterator[Requirement]:
    for key in _full_keys(configuration, role):
        yield Requirement(key, "true", _is_true, True, tell("its operators may add in another order in each run"))
        seed = f"{key.rpartition('.')[0]}.seed"
        if _has(configuration, seed):
            yield Requirement(seed, "a number", is_number, SEED, tell("its random states begin anew in each run"))
    if value_at(configuration, f"{role}.shuffle") is True:
        why = tell("mini-batches are shuffled anew in each run")
        yield Requirement(f"{role}.data_loader_seed", "a number", is_number, SEED, why)


def _full_keys(configuration: Mapping[str, Any], role: str) -> Iterator[str]:
    """The dotted keys ``full_determinism`` of the engines of a role."""
    waiting = [(role, value_at(configuration, role))]
    while waiting:
        place, section = waiting.pop(0)
        if not isinstance(section, Mapping):
            continue
        if FULL in section:
            yield f"{place}.{FULL}"
        waiting += [(f"{place}.{key}", value) for key, value in section.items()]


def _has(configuration: Mapping[str, Any], key: str) -> bool:
    place, _, name = key.rpartition(".")
    section = value_at(configuration, place)
    return isinstance(section, Mapping) and name in section


def _saves(configuration: Mapping[str, Any]) -> bool:
    frequency = value_at(configuration, "trainer.save_freq")
    return is_number(frequency) and frequency > 0


def _is_true(value: Any) -> bool:
    return value is True


def _is_false(value: Any) -> bool:
    return value is False
