"""How large the trace of an integrated trainer's step will be, before anything ran."""

from __future__ import annotations

import math

from probe.config import TrainingConfig
from probe.config.optimizer import UpdateConfig

_EVENT = 350
"""Bytes of an event, on average at most: a module's inputs with their digests."""
_ITEM = 150
"""Bytes of a weight in an event that lists all of them."""
_MODULES = 16
"""Modules of a layer of a transformer, and its parameters, at most."""
_AROUND = 8
"""Modules and parameters that belong to no layer."""
_FORWARD, _UPDATE = 2, 7
"""Events of a module's call: entered and left; in an update two gradients, and what its weights collect."""
_RECOMPUTED, _GATHERED = 2, 1
"""Further events in an update: of gradient checkpointing, of FSDP2."""
_OPTIMIZER = 8
"""Lists of all weights for an optimizer's step: gradients, clipped, state (three numbers each), weights."""


def trace_bytes(config: TrainingConfig, layers: int, ranks: int) -> int:
    """Bytes of the traces of one training step, of all ranks together; an upper bound.

    Args:
        config: The trainer's configuration.
        layers: Of the model.
        ranks: Processes that train.
    """
    rl, generate, training = config.rl_config, config.generate_config, config.megatron_training
    responses = math.ceil(training.global_batch_size / ranks) * rl.n_samples_per_prompt
    batches = rl.filter_groups_max_batches if rl.filter_groups_enable else 1
    parts = batches * math.ceil(responses / generate.max_num_seqs)
    tokens = 0 if generate.engine == "vllm" else parts * generate.sampling_config.max_tokens

    def calls(size: int) -> int:
        return responses if rl.use_dynamic_bsz else math.ceil(responses / size)

    sizes = [rl.actor_forward_micro_batch_size, rl.ref_forward_micro_batch_size]
    trained: list[UpdateConfig] = [config.actor_config]
    if training.stage == "ray_ppo":
        sizes.append(rl.critic_forward_micro_batch_size)
        trained.append(config.critic_config)
    mini = responses if rl.mini_batch_size is None else rl.mini_batch_size * rl.n_samples_per_prompt / ranks
    updates = rl.epochs * math.ceil(responses / max(1.0, mini))
    forwards = tokens + sum(map(calls, sizes))
    events = float(_FORWARD * forwards)
    for one in trained:
        each = _UPDATE + (_RECOMPUTED if one.recompute_granularity else 0)
        each += _GATHERED if training.data_parallel == "fsdp2" else 0
        events += each * (rl.epochs * calls(one.micro_batch_size) + updates)
    if training.data_parallel == "fsdp2":
        events += _GATHERED * forwards
    stages = parts + len(sizes) + len(trained)
    lists = stages + _OPTIMIZER * updates * len(trained)
    of_a_layer = _MODULES * (events * _EVENT + lists * _ITEM)
    return math.ceil(ranks * of_a_layer * (layers + _AROUND / _MODULES))
