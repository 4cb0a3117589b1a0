"""The ``msprobe_config`` section: what is recorded, with the names, types and defaults of MindSpeed-RL's feature.

Source: MindSpeed-RL, ``docs/features/msprobe.md``.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from probe.config.base import StrictModel
from probe.types import SWITCH_OF_STAGE


class MsprobeConfig(StrictModel):
    """What is recorded, and where to."""

    msprobe: bool = False
    """Turns the probe on. While false, every other item here is off."""
    dump_path: str = "./msprobe_dump"
    """The folder that receives the dump. Two runs need two folders; one that holds files already is refused."""
    key_data_dump: bool = False
    """Record key data: statistics (maximum, minimum, mean, L2 norm) and the values themselves."""
    configurations_dump: bool = False
    """Write the resolved training configuration to ``configurations.json``."""
    actor_infer_dump: bool = False
    """Dump the actor's layers in ``actor_generate_sequences``."""
    token_range_start: int = Field(default=0, ge=0)
    """First generated token whose forward pass is dumped, from 0. Used with ``actor_infer_dump``."""
    token_range_end: int = Field(default=0, ge=0)
    """Last generated token whose forward pass is dumped, inclusive."""
    actor_train_dump: bool = False
    """Dump the actor's layers in ``actor_compute_log_prob`` and ``actor_update``."""
    reference_dump: bool = False
    """Dump the reference model's layers."""
    critic_train_dump: bool = False
    """Dump the critic's layers in ``critic_compute_values`` and ``critic_update``."""
    step_start: int = Field(default=0, ge=0)
    """First step whose layers are dumped, from 0. Key data is recorded at every step."""
    step_end: int = Field(default=0, ge=0)
    """Last step whose layers are dumped, inclusive."""

    @model_validator(mode="after")
    def _ranges_run_forward(self) -> MsprobeConfig:
        for what in ("step", "token_range"):
            start, end = getattr(self, f"{what}_start"), getattr(self, f"{what}_end")
            if end < start:
                raise ValueError(f"{what}_end ({end}) is before {what}_start ({start})")
        return self

    @property
    def chosen_stages(self) -> tuple[str, ...]:
        """The stages whose switch is on; a check, which records in any case, dumps their layers."""
        return tuple(stage for stage, switch in SWITCH_OF_STAGE.items() if getattr(self, switch))

    @property
    def dump_stages(self) -> tuple[str, ...]:
        """The stages whose layers are dumped; none while ``msprobe`` is false."""
        return self.chosen_stages if self.msprobe else ()
