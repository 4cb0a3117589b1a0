"""What each of the four runs records: ``a`` and ``b`` key data, ``c`` and ``d`` the layers of one step as well."""

from __future__ import annotations

from pathlib import Path

from probe.config import Profile
from probe.types import SWITCH_OF_STAGE, RunSpec, Target


def run_spec(profile: Profile, run: str, dump_path: Path, target: Target | None = None) -> RunSpec:
    """The spec of one run.

    Args:
        profile: The experiment.
        run: ``a``, ``b``, ``c`` or ``d``.
        dump_path: The run's dump folder.
        target: Where to dump layers; None dumps what the profile's own switches say.
    """
    stages: tuple[str, ...] = ()
    first, last, tokens = 0, 0, (0, 0)
    if profile.trainer.kind == "integrated":
        section = profile.trainer.config.msprobe_config
        stages = section.model_copy(update={"msprobe": True}).dump_stages
        first, last = section.step_start, section.step_end
        tokens = (section.token_range_start, section.token_range_end)
    if target is not None:
        stages = tuple(stage for stage in SWITCH_OF_STAGE if stage in {*stages, *target.stages})
        first = last = target.step
        if target.stage == "actor_generate_sequences":
            tokens = (0, target.token)
    steps = profile.check.steps
    return RunSpec(
        run=run,
        dump_path=str(dump_path),
        key_data=profile.record.key_data,
        dump_stages=stages,
        step_start=first,
        step_end=last,
        token_range=tokens,
        task=profile.record.layers.task,
        level=profile.record.layers.level,
        last_step=target.step if target is not None else None if steps is None else steps - 1,
        on_error=profile.record.on_error,
        determinism=profile.determinism.model_dump(),
        configuration=profile.model_dump(mode="json"),
    )
