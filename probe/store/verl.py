"""Making a dump of ours of what a run of verl left: samples become records, dumps of its profiler tool windows.

::

    <run>/verl/samples/rollout/{step}.jsonl      what trainer.rollout_data_dir received
    <run>/verl/samples/validation/{step}.jsonl   what trainer.validation_data_dir received
    <run>/verl/profile/step_{n}/<stage>/…        what the precision_debugger wrote; it is moved into the dump

The samples stay where they are: records hold digests of their texts, and the texts are read again where they differ.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probe.errors import DumpError
from probe.store import layout
from probe.store.rollouts import RolloutFile, convert_rollouts, find_rollouts
from probe.store.windows import DUMP_FILE, Window, find_windows
from probe.store.writer import mark_incomplete, write_json

FOLDER = "verl"
SAMPLES, ROLLOUT, VALIDATION, PROFILE = "samples", "rollout", "validation", "profile"


def samples_of(dump: Path) -> list[RolloutFile]:
    """The samples beside the dump of a run of verl; none beside any other."""
    folder = dump.parent / FOLDER / SAMPLES
    try:
        return find_rollouts(folder) if folder.is_dir() else []
    except DumpError:
        return []


def adopt_verl(
    run: Path, dump: Path, name: str, configuration: dict[str, Any] | None, complete: bool, ranks: int | None
) -> list[str]:
    """Makes a run's dump.

    Args:
        run: The run's folder.
        dump: The dump folder; is made.
        name: What the run is called.
        configuration: What was run.
        complete: Whether the trainer ended as it should.
        ranks: Processes that should have dumped layers, where any has; None where nobody knows.

    Returns:
        What people should know, one sentence each. Nothing is made where there are no samples.
    """
    files = find_rollouts(run / FOLDER / SAMPLES)
    if not files:
        return []
    said: list[str] = []
    problems: list[str] = []
    try:
        said = convert_rollouts(files, dump, name, configuration, complete)
        problems += _gaps(files)
        problems += _adopt_windows(run / FOLDER / PROFILE, dump, ranks)
    except DumpError as error:
        problems.append(str(error))
    if problems:
        mark_incomplete(dump, "; ".join(problems))
    return said


def _gaps(files: Iterable[RolloutFile]) -> list[str]:
    """Steps of the training whose samples are missing."""
    steps = sorted(file.step for file in files if not file.folder)
    gone = sorted(set(range(steps[0], steps[-1] + 1)) - set(steps)) if steps else []
    return [f"there are no samples of step {', '.join(map(str, gone[:5]))}"] if gone else []


def _adopt_windows(profile: Path, dump: Path, ranks: int | None) -> list[str]:
    """Moves layer dumps to where ours lie; returns what is missing."""
    windows = find_windows(profile)
    places: dict[tuple[str, int], set[int]] = {}
    for number, window in enumerate(windows):
        target = dump / window.stage / f"step{window.step}" / f"rank{window.rank}"
        if window.micro_step:
            target /= f"micro_step{window.micro_step}"
        _move(window, target, number)
        places.setdefault((window.stage, window.step), set()).add(window.rank)
    problems = []
    for (stage, step), found in places.items():
        if gone := sorted(set(range(ranks or 0)) - found):
            named = ", ".join(map(str, gone[:5]))
            problems.append(f"{stage} at step {step}: rank {named} of {ranks} dumped no layers into the check's folder")
    return problems


def _move(window: Window, target: Path, number: int) -> None:
    file = window.folder / DUMP_FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.get("dump_data_dir"):
            content["dump_data_dir"] = str(target / "dump_tensor_data")
            file.write_text(json.dumps(content, indent=1), encoding="utf-8")
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            raise DumpError(f"{window.folder}: two layer dumps of the same stage, step and rank")
        place = {"stage": window.stage, "step": window.step, "rank": window.rank, "micro_step": window.micro_step}
        write_json(window.folder / layout.WINDOW, {**place, "role": window.role, "order": number})
        shutil.move(window.folder, target)
    except (OSError, ValueError, AttributeError) as error:
        raise DumpError(f"{window.folder}: the layer dump cannot be taken over ({error})") from error
