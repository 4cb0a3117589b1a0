"""The ``mindspeed_rl`` trainer of a profile: a checkout, one of its configurations, and how deep to look."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from probe.config.base import problem_of_text
from probe.config.trainers import PlacedByRay


class MindSpeedRLTrainer(PlacedByRay):
    """MindSpeed-RL, as it is checked out: ``cli/train_grpo.py``, ``train_ppo.py`` or ``train_dapo.py``."""

    workers = "MindSpeed-RL's workers"
    placed_by = "(rl_config.actor_resource); for several hosts start Ray on them and give ray_address"
    kind: Literal["mindspeed_rl"]
    """Which trainer."""
    repo: str
    """The checkout, relative to the profile's folder. Nothing in it is changed; the training runs in it."""
    config: str
    """The configuration by its hydra name: that of a file in ``configs``, without ``.yaml``."""
    script: str | None = None
    """The script that is started, relative to ``repo``; null takes the one that belongs to the configuration's
    ``megatron_training.stage``, as ``cli/train_grpo.py`` to ``ray_grpo``."""
    overrides: list[str] = Field(default_factory=list)
    """Hydra's overrides, one ``key=value`` an entry, as they would stand on the command line."""
    depth: Literal["dumps", "trace"] = "trace"
    """``trace`` puts Firstdiff's probe in the place of MindSpeed-RL's class ``MsProbe``, in each process as it starts:
    exact digests, and every module in execution order. ``dumps`` lets ``MsProbe`` itself record with msprobe, and
    compares that: float32 copies of the key data, and statistics of the layers."""
    python: str = "python"
    """The interpreter that has MindSpeed-RL's libraries; ``python`` is the one that runs Firstdiff."""
    ray_address: str | None = None
    """``host:port`` of a running Ray cluster, or ``auto`` for the one on this host. null has each run start a Ray of
    its own on this host, and end it."""

    @property
    def cwd(self) -> str:
        """Where it runs."""
        return self.repo

    @property
    def workers_are_recorded(self) -> bool:
        """Where our probe is in them. See ``Launch``."""
        return self.depth == "trace"

    @model_validator(mode="after")
    def _a_process_can_be_started(self) -> MindSpeedRLTrainer:
        single = {"repo": self.repo, "config": self.config, "python": self.python}
        optional = {"script": self.script, "ray_address": self.ray_address}
        listed = {f"overrides.{index}": text for index, text in enumerate(self.overrides)}
        for key, text in {**single, **optional, **listed}.items():
            if text == "":
                raise ValueError(f"{key}: must not be empty")
            if problem := problem_of_text(text or ""):
                raise ValueError(f"{key}: {problem}")
        if self.config.endswith((".yaml", ".yml")) or self.config.startswith(("/", ".")):
            given = f"{self.config!r:.80}"
            raise ValueError(f"config: {given} is no hydra name; give it as grpo_qwen25_7b_A3, without .yaml")
        return self

    @model_validator(mode="after")
    def _a_check_sets_what_is_recorded(self) -> MindSpeedRLTrainer:
        for index, text in enumerate(self.overrides):
            key = text.lstrip("+~").partition("=")[0]
            if key == "msprobe_config" or key.startswith(("msprobe_config.", "hydra.run.dir")):
                raise ValueError(f"overrides.{index}: a check sets {key} itself; remove this entry")
        return self
