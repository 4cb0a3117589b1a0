"""Steps 1 and 4: run the trainer under the probe."""

from __future__ import annotations

import logging
from pathlib import Path

from prefect import task

from probe.config import Profile, profile_of
from probe.language import tell
from probe.launch import (
    begin_run,
    dump_folder,
    is_finished,
    launcher_for,
    records_as_it_trains,
    run_spec,
    training_steps,
)
from probe.types import CaptureRequest, Target
from tasks import UNCACHED, Begun, begin
from tasks.progress import shown_progress

log = logging.getLogger("firstdiff")


@task(name="1 collect key data", task_run_name="1 collect key data {run}", **UNCACHED)
def collect_key_data(profile: Profile, folder: Path, run: str, last_step: int | None = None) -> Path:
    """Trains once with key data, up to a step where one is given; returns the dump folder."""
    return _collect(profile, folder, run, None, last_step)


@task(name="4 collect layers", task_run_name="4 collect layers {run}", **UNCACHED)
def collect_layers(
    profile: Profile, folder: Path, run: str, target: Target, capture: CaptureRequest | None = None
) -> Path:
    """Trains once more, dumping the layers of one step, and capturing a call; returns the dump folder."""
    return _collect(profile, folder, run, target, None, capture)


def _collect(
    profile: Profile,
    folder: Path,
    run: str,
    target: Target | None,
    last_step: int | None,
    capture: CaptureRequest | None = None,
) -> Path:
    dump = dump_folder(folder, run)
    own = profile_of(profile, run)
    spec = run_spec(own, run, dump, target, last_step, capture)
    if is_finished(dump.parent, spec):
        log.info("%s", tell("run {run}: whole already, from an earlier attempt at this check", run=run))
        return dump
    begin_run(dump.parent)
    steps = training_steps(own, spec)
    live = records_as_it_trains(own)
    what = tell("run {run}, training", run=run)
    if target is not None and not live:
        what = tell(
            "run {run}, training and dumping the layers of what came before step {step}", run=run, step=target.step
        )
    elif target is not None and spec.dump_stages:
        what = tell("run {run}, training and dumping the layers of step {step}", run=run, step=target.step)
    elif target is not None:
        what = tell("run {run}, training and capturing a module of step {step}", run=run, step=target.step)
    begin(Begun(4 if target else 1, what, dump if live else None, steps))
    with shown_progress(run, dump, steps):
        launcher_for(own).run(dump.parent, spec)
    return dump
