"""Where a check lies, and what each of its runs records: key data, and in ``c`` and ``d`` the layers of one step."""

from __future__ import annotations

import secrets
from datetime import datetime
from pathlib import Path

from probe.config import Profile, find_profile
from probe.errors import UsageError
from probe.store import layout
from probe.types import SWITCH_OF_STAGE, RunSpec, Target


def run_spec(
    profile: Profile, run: str, dump_path: Path, target: Target | None = None, last_step: int | None = None
) -> RunSpec:
    """The spec of one run.

    Args:
        profile: The experiment.
        run: ``a``, ``b``, ``c`` or ``d``.
        dump_path: The run's dump folder.
        target: Where to dump layers; None dumps what the profile's own switches say.
        last_step: The last step that is needed; None leaves it to the target or the profile.
    """
    stages: tuple[str, ...] = ()
    seeds: dict[str, int] = {}
    first, last, tokens = 0, 0, (0, 0)
    if profile.trainer.kind == "integrated":
        section = profile.trainer.config.msprobe_config
        stages = section.model_copy(update={"msprobe": True}).dump_stages
        first, last = section.step_start, section.step_end
        tokens = (section.token_range_start, section.token_range_end)
        seeds = profile.trainer.config.seeds
    if target is not None:
        stages = tuple(stage for stage in SWITCH_OF_STAGE if stage in {*stages, *target.stages})
        first = last = target.step
        if target.stage == "actor_generate_sequences":
            tokens = (0, target.token)
    if last_step is None:
        last_step = target.step if target is not None else profile.check.last_step
    return RunSpec(
        run=run,
        dump_path=str(dump_path),
        key_data=profile.record.key_data,
        digest=profile.record.digest,
        dump_stages=stages,
        step_start=first,
        step_end=last,
        token_range=tokens,
        task=profile.record.layers.task,
        level=profile.record.layers.level,
        last_step=last_step,
        on_error=profile.record.on_error,
        determinism={**profile.determinism.model_dump(), **seeds},
        configuration=profile.model_dump(mode="json"),
    )


def dump_folder(check: Path, run: str) -> Path:
    """The dump folder of a run in a check's folder."""
    return check / run / layout.DUMP


def check_folder(profile: str, out: str | None) -> Path:
    """The check's own folder, made and empty.

    Args:
        profile: Name or path of the profile.
        out: The folder asked for; None makes a new one in ``checks``.

    Raises:
        UsageError: It holds files already, or cannot be made.
    """
    now = datetime.now().strftime("%Y%m%d-%H%M%S")
    default = Path("checks", f"{find_profile(profile).stem}-{now}-{secrets.token_hex(2)}")
    folder = (Path(out) if out else default).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=bool(out))
        occupied = any(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder}: the check's folder cannot be made ({error.strerror})") from error
    if occupied:
        raise UsageError(f"{folder}: the check's folder is not empty; name another with --out")
    return folder
