"""The ``verl`` trainer of a profile: hydra's overrides, and the interpreter that has verl."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from probe.config.base import problem_of_text
from probe.config.trainers import PlacedByRay

_OWN = ("global_profiler", "trainer.rollout_data_dir", "trainer.validation_data_dir", "hydra.run.dir")
"""Keys, and sections, of verl's configuration that a check sets itself."""


class VerlTrainer(PlacedByRay):
    """verl, as it is installed: ``python -m verl.trainer.main_ppo`` with overrides."""

    workers = "verl's workers"
    placed_by = "(the overrides trainer.n_gpus_per_node and trainer.nnodes)"
    kind: Literal["verl"]
    """Which trainer."""
    overrides: list[str] = Field(default_factory=list)
    """Hydra's overrides, one ``key=value`` an entry, as they stand on verl's command line."""
    entry: str = Field(default="verl.trainer.main_ppo", pattern=r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$")
    """The module that is run: verl's own, or that of a recipe with the same configuration."""
    python: str = Field(default="python", min_length=1)
    """The interpreter that has verl; ``python`` is the one that runs Firstdiff."""
    cwd: str = "."
    """Working folder, relative to the profile's folder."""
    last_step: Literal["layers", "samples"] = "layers"
    """What is compared of the last step: ``layers`` dumps all modules in both runs, whole tensors with the weights that
    they have; with ``samples``, equal runs are at best inconclusive, as texts and rewards may be the same where weights
    differ. The number of steps must be known: ``check.steps``, or the override ``trainer.total_training_steps``."""
    look_back: int = Field(default=1, ge=1)
    """Steps before the first samples that differ whose layers are dumped, whole tensors of all modules. A difference in
    the weights shows in the samples as soon as another token is drawn, which may take some steps: where the answer is
    that the weights differed before, a larger number looks further back."""

    @property
    def workers_are_recorded(self) -> bool:
        """Nothing of ours runs in them. See ``Launch``."""
        return False

    @model_validator(mode="after")
    def _a_process_can_be_started(self) -> VerlTrainer:
        texts = {"python": self.python, "cwd": self.cwd}
        texts |= {f"overrides.{index}": text for index, text in enumerate(self.overrides)}
        for key, text in texts.items():
            if problem := problem_of_text(text):
                raise ValueError(f"{key}: {problem}")
        return self

    @model_validator(mode="after")
    def _a_check_sets_what_is_recorded(self) -> VerlTrainer:
        for index, text in enumerate(self.overrides):
            key, equals, _ = text.lstrip("+~").partition("=")
            if not equals and not text.startswith("~"):
                raise ValueError(f"overrides.{index}: must be key=value, not {text!r:.80}")
            if any(key == own or key.startswith(f"{own}.") for own in _OWN):
                raise ValueError(f"overrides.{index}: a check sets {key} itself; remove this entry")
        return self
