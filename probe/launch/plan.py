"""Where a check lies, and what each of its runs records: key data, and in ``c`` and ``d`` the layers of one step."""

from __future__ import annotations

import glob
import secrets
from datetime import datetime
from pathlib import Path

from probe.config import Profile, find_profile
from probe.errors import UsageError
from probe.launch.claim import is_of
from probe.masking import masked_profile
from probe.store import layout
from probe.types import SWITCH_OF_STAGE, CaptureRequest, RunSpec, Target


def run_spec(
    profile: Profile,
    run: str,
    dump_path: Path,
    target: Target | None = None,
    last_step: int | None = None,
    capture: CaptureRequest | None = None,
) -> RunSpec:
    """The spec of one run.

    Args:
        profile: The experiment.
        run: ``a``, ``b``, ``c`` or ``d``.
        dump_path: The run's dump folder.
        target: Where to dump layers; None dumps what the profile's own switches say.
        last_step: The last step that is needed; None leaves it to the target or the profile.
        capture: The call of a module that is captured, in a run with a trace; None captures none.
    """
    stages: tuple[str, ...] = ()
    seeds: dict[str, int] = {}
    first, last, tokens = 0, 0, (0, 0)
    if profile.trainer.kind == "integrated":
        section = profile.trainer.config.msprobe_config
        stages = section.chosen_stages
        first, last = section.step_start, section.step_end
        tokens = (section.token_range_start, section.token_range_end)
        seeds = profile.trainer.config.seeds
    if target is not None:
        stages = tuple(stage for stage in SWITCH_OF_STAGE if stage in {*stages, *target.stages})
        first = last = target.step
        if target.stage == "actor_generate_sequences":
            tokens = (0, target.token)
    if last_step is None:
        last_step = target.step if target is not None else profile.last_step
    return RunSpec(
        run=run,
        dump_path=str(dump_path),
        key_data=profile.record.key_data,
        trace=profile.record.trace,
        digest=profile.record.digest,
        dump_stages=stages,
        step_start=first,
        step_end=last,
        token_range=tokens,
        task=profile.record.layers.task,
        level=profile.record.layers.level,
        capture=capture if profile.record.trace else None,
        last_step=last_step,
        step=profile.trainer.step if profile.trainer.kind == "script" else "auto",
        on_error=profile.record.on_error,
        determinism={**profile.determinism.asked_for, **seeds},
        configuration=masked_profile(profile.model_dump(mode="json")),
    )


def training_steps(profile: Profile, spec: RunSpec) -> int | None:
    """How many training steps a run takes: up to the last that is needed; None where only its trainer knows."""
    if not records_as_it_trains(profile):
        return None
    if spec.last_step is not None:
        return spec.last_step + 1
    if profile.trainer.kind != "integrated":
        return None
    return profile.trainer.config.megatron_training.train_iters


def records_as_it_trains(profile: Profile) -> bool:
    """Whether a run's dump grows while it lasts; of a run of verl it is made when that has ended."""
    return profile.trainer.kind != "verl"


def dump_folder(check: Path, run: str) -> Path:
    """The dump folder of a run in a check's folder."""
    return check / run / layout.DUMP


def check_folder(profile: str, out: str | None, flow_run: str | None = None) -> Path:
    """The check's own folder, made and empty; or that of the same flow run, when it is tried again.

    Args:
        profile: Name or path of the profile.
        out: The folder asked for; None makes a new one in ``checks``.
        flow_run: The flow run that the check is, which has one folder however often it is tried.

    Raises:
        UsageError: It holds files already, or cannot be made.
    """
    name = find_profile(profile).stem
    try:
        if out is None:
            return _folder_of(flow_run, name) or _new_folder(name, flow_run)
        folder = Path(out).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        place = Path(out or "checks").absolute()
        raise UsageError(f"{place}: the check's folder cannot be made ({error.strerror})") from error
    if occupied and not is_of(folder, flow_run):
        raise UsageError(f"{folder}: the check's folder is not empty; name another with --out")
    return folder


def _folder_of(flow_run: str | None, name: str) -> Path | None:
    """The folder in ``checks`` that a flow run began with."""
    if flow_run is None:
        return None
    return next(
        (path.absolute() for path in Path("checks").glob(f"{glob.escape(name)}-*") if is_of(path, flow_run)), None
    )


def _new_folder(name: str, flow_run: str | None) -> Path:
    """A folder that no other process made, also within the same second."""
    Path("checks").mkdir(exist_ok=True)
    token = secrets.token_hex(2) if flow_run is None else flow_run[:8]
    while True:
        now = datetime.now().strftime("%Y%m%d-%H%M%S")
        folder = Path("checks", f"{name}-{now}-{token}").absolute()
        try:
            folder.mkdir()
        except FileExistsError:
            token = secrets.token_hex(4)
        else:
            return folder
