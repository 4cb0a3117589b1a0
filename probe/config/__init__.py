"""Configuration: profiles, MindSpeed-RL style trainer files, the ``msprobe_config`` section, and their JSON schema.

The only package that imports pydantic and yaml.
"""

from __future__ import annotations

from probe.config.algorithm import RLConfig
from probe.config.loading import (
    SHIPPED_PROFILES,
    find_profile,
    load_profile,
    load_trainer_config,
    profile_schema,
    read_override,
    to_yaml,
)
from probe.config.msprobe import MsprobeConfig
from probe.config.optimizer import ActorConfig, CriticConfig, UpdateConfig
from probe.config.profile import (
    Check,
    CommandTrainer,
    Determinism,
    Fault,
    IntegratedTrainer,
    Launch,
    Layers,
    Profile,
    Record,
    TrainerRunConfig,
)
from probe.config.training import GenerateConfig, MegatronTraining, ModelConfig, SamplingConfig, TrainingConfig
from probe.config.variables import Source, env_entries, hand_on
from probe.config.variant import plain, profile_of

__all__ = [
    "SHIPPED_PROFILES",
    "ActorConfig",
    "Check",
    "CommandTrainer",
    "CriticConfig",
    "Determinism",
    "Fault",
    "GenerateConfig",
    "IntegratedTrainer",
    "Launch",
    "Layers",
    "MegatronTraining",
    "ModelConfig",
    "MsprobeConfig",
    "Profile",
    "RLConfig",
    "Record",
    "SamplingConfig",
    "Source",
    "TrainerRunConfig",
    "TrainingConfig",
    "UpdateConfig",
    "env_entries",
    "find_profile",
    "hand_on",
    "load_profile",
    "load_trainer_config",
    "plain",
    "profile_of",
    "profile_schema",
    "read_override",
    "to_yaml",
]
