"""Configuration: profiles, MindSpeed-RL style trainer files, the ``msprobe_config`` section, and their JSON schema.

The only package that imports pydantic and yaml.
"""

from __future__ import annotations

from probe.config.algorithm import RLConfig
from probe.config.loading import (
    find_profile,
    load_profile,
    load_trainer_config,
    mapping_yaml,
    profile_schema,
    read_yaml,
    to_yaml,
)
from probe.config.mindspeed import MindSpeedRLTrainer
from probe.config.msprobe import MsprobeConfig
from probe.config.optimizer import ActorConfig, CriticConfig, UpdateConfig
from probe.config.profile import (
    Check,
    Determinism,
    Fault,
    Keep,
    Layers,
    Profile,
    Record,
    TrainerRunConfig,
)
from probe.config.request import Request, override_lines, parse_request, profile_names, resolve
from probe.config.trainers import CommandTrainer, IntegratedTrainer, Launch, ScriptTrainer
from probe.config.training import GenerateConfig, MegatronTraining, ModelConfig, SamplingConfig, TrainingConfig
from probe.config.variables import Source, filled_in, hand_on, has_sources
from probe.config.variant import plain, profile_of
from probe.config.yaml_text import with_values

__all__ = [
    "ActorConfig",
    "Check",
    "CommandTrainer",
    "CriticConfig",
    "Determinism",
    "Fault",
    "GenerateConfig",
    "IntegratedTrainer",
    "Keep",
    "Launch",
    "Layers",
    "MegatronTraining",
    "MindSpeedRLTrainer",
    "ModelConfig",
    "MsprobeConfig",
    "Profile",
    "RLConfig",
    "Record",
    "Request",
    "SamplingConfig",
    "ScriptTrainer",
    "Source",
    "TrainerRunConfig",
    "TrainingConfig",
    "UpdateConfig",
    "filled_in",
    "find_profile",
    "hand_on",
    "has_sources",
    "load_profile",
    "load_trainer_config",
    "mapping_yaml",
    "override_lines",
    "parse_request",
    "profile_names",
    "plain",
    "profile_of",
    "profile_schema",
    "read_yaml",
    "resolve",
    "to_yaml",
    "with_values",
]
