"""``recording``: a training step with key data on, against the same step with an inert probe, and with SingleSave.

The trainings run in a process of their own, which SingleSave's singleton has to itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.bench.processes import run_child
from probe.bench.rounds import described, ratio
from probe.bench.sizes import RecordingSize, qwen2

if TYPE_CHECKING:
    from probe.config import TrainerRunConfig

OFF, KEY_DATA, SINGLE_SAVE = "off", "key_data", "single_save"
PASSIVE = {"OMP_WAIT_POLICY": "passive"}
"""Threads of a CPU operation sleep while they wait, for all contenders: threads that spin make a step many times longer
as soon as anything else runs on the machine, and rounds no longer compare."""


def measure_recording(size: RecordingSize, scratch: Path) -> dict[str, Any]:
    """Runs the benchmark.

    Args:
        size: How much is trained.
        scratch: An empty folder.

    Returns:
        ``contenders`` with seconds for all steps of a round, the ratios ``key_data_over_off`` and
        ``single_save_over_off`` (None without msprobe), and what it ran on.

    Raises:
        InconclusiveError: The process that measures failed.
    """
    variables = {**training(size).determinism.environment, **PASSIVE}
    measured: dict[str, Any] = run_child("probe.bench.trainings", [size.to_json()], scratch, variables)
    seconds = measured.pop("seconds")
    return {
        "size": size.to_dict(),
        **measured,
        "variables": variables,
        "contenders": described(seconds),
        "key_data_over_off": ratio(seconds, KEY_DATA, OFF),
        "single_save_over_off": ratio(seconds, SINGLE_SAVE, OFF),
    }


def training(size: RecordingSize) -> TrainerRunConfig:
    """The integrated trainer's configuration for a size."""
    from probe.config import (
        ActorConfig,
        GenerateConfig,
        MegatronTraining,
        ModelConfig,
        RLConfig,
        SamplingConfig,
        TrainerRunConfig,
    )

    return TrainerRunConfig(
        model=ModelConfig(config=dict(qwen2(size.layers, size.hidden))),
        megatron_training=MegatronTraining(train_iters=size.steps, global_batch_size=size.prompts),
        actor_config=ActorConfig(micro_batch_size=size.micro_batch),
        rl_config=RLConfig(n_samples_per_prompt=size.samples),
        generate_config=GenerateConfig(sampling_config=SamplingConfig(max_tokens=size.response_tokens)),
    )
