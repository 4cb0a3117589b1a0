"""The determinism check: six steps from two training runs to the first differing module.

::

    1 collect key data a, b ► 2 compare ► 3 locate ► 4 collect layers c, d ► 5 compare layers ► 6 name the cause

Source of the workflow: MindSpeed-RL, ``docs/features/msprobe.md``.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, TypeVar, cast

from prefect import flow
from prefect.utilities.annotations import quote

from flows.permissions import require_allowed
from flows.secrets import with_secrets
from probe.config import Profile, load_profile, to_yaml
from probe.errors import DumpError, InconclusiveError, TrainerError
from probe.launch import check_folder, dump_folder, launcher_for, leading
from probe.locate import Conclusion, SecondPair, target_of
from probe.report import CheckResult, Tables, reservations
from probe.store.reader import Dump, read_dump
from probe.types import Target
from tasks.collect import collect_key_data, collect_layers
from tasks.compare import (
    compare_configurations,
    compare_key_data,
    compare_layers,
    make_key_data_tables,
    make_layer_tables,
)
from tasks.locate import locate_first_divergence, name_first_difference
from tasks.report import write_results

Value = TypeVar("Value")


@flow(name="determinism-check", validate_parameters=False, persist_result=False, log_prints=False)
def determinism_check(profile: str, overrides: list[str] | None = None, out: str | None = None) -> dict[str, Any]:
    """Trains twice, compares, and where the runs differ trains twice more to name the first differing module.

    Args:
        profile: Name or path of the profile.
        overrides: ``dotted.key=value`` entries over the profile.
        out: The check's folder; None makes a new one in ``checks``.

    Returns:
        The content of ``verdict.json``, and the check's folder as ``folder``.

    Raises:
        UsageError: The profile or the folder is wrong.
    """
    start = time.monotonic()
    require_allowed(profile, overrides)
    resolved = with_secrets(load_profile(profile, overrides))
    folder = check_folder(profile, out)
    (folder / "profile.yaml").write_text(profile_yaml(resolved), encoding="utf-8")
    result = CheckResult("inconclusive")
    with leading(resolved, folder):
        try:
            _check(resolved, folder, result)
        except InconclusiveError as error:
            result.verdict = "inconclusive"
            result.error = str(error)
            result.log_tail = error.log_tail
        result.seconds = time.monotonic() - start
        document = write_results(_whole(result), folder)
    return {**document, "folder": str(folder)}


def profile_yaml(profile: Profile) -> str:
    """The resolved profile as YAML that ``firstdiff check`` takes again: without what a check sets itself."""
    if profile.trainer.kind != "integrated":
        return to_yaml(profile)
    own = {"msprobe": True, "dump_path": True}
    return to_yaml(profile, exclude={"trainer": {"config": {"msprobe_config": own}}})


def _check(profile: Profile, folder: Path, result: CheckResult) -> None:
    """Steps 1 to 6; fills in the result as it goes, so that a failure keeps what was found."""
    a, b, last_step, failures = _first_pair(profile, folder, result)
    result.trainer_steps = _steps(a) + _steps(b)
    result.recipe_steps = 2 * max(_steps(a), _steps(b))
    comparison = compare_key_data(_whole(a), _whole(b), last_step)
    result.key_data = comparison
    result.verdict = comparison.verdict
    result.notes += [*map(str, failures), *reservations(a, b, comparison)]
    result.tables.append(make_key_data_tables(a.folder, b.folder, folder / "keydata"))
    result.configurations = compare_configurations(a.folder, b.folder, profile.check.meant_to_differ)
    if failures and not comparison.differences:
        raise failures[0]
    first = locate_first_divergence(_whole(comparison))
    result.first_key_data = first
    result.judge_experiments()
    if (error := result.configurations.error) is not None:
        raise InconclusiveError(error)
    target = None if first is None else target_of(first, a, b)
    second = None if target is None else _second_pair(profile, folder, target, result)
    _answer(result, name_first_difference(first, _whole(comparison), _whole(a), _whole(b), _whole(second)))


def _first_pair(
    profile: Profile, folder: Path, result: CheckResult
) -> tuple[Dump, Dump, int | None, list[TrainerError]]:
    """Step 1: runs a and b, the last step to compare, and which of them failed after recording something.

    When run a fails, run b need not go further than a came: what both have may already differ.

    Raises:
        TrainerError: A run failed before it recorded anything.
    """
    dumps: list[Dump] = []
    failures: list[TrainerError] = []
    last_step = profile.check.last_step
    for run in ("a", "b"):
        try:
            result.runs[run] = collect_key_data(profile, folder, run, last_step)
            dumps.append(read_dump(result.runs[run]))
        except TrainerError as error:
            result.log_tail = result.log_tail or error.log_tail
            failures.append(error)
            dumps.append(_what_is_left(dump_folder(folder, run), failures[0]))
            result.runs[run] = dumps[-1].folder
            last_step = _steps(dumps[-1])
    return dumps[0], dumps[1], last_step, failures


def _what_is_left(folder: Path, failure: TrainerError) -> Dump:
    try:
        dump = read_dump(folder)
    except DumpError:
        raise failure from None
    if all(source.last_step is None for source in dump.ranks.values()):
        raise failure
    return dump


def _second_pair(profile: Profile, folder: Path, target: Target, result: CheckResult) -> SecondPair | None:
    """Steps 4 and 5: the layers of the target in two more runs; None, with a note, when they cannot be had."""
    result.recipe_steps *= 2
    reason = launcher_for(profile).cannot_dump_layers()
    if reason is not None:
        result.notes.append(f"no layers were dumped: {reason}")
        result.tables.append(Tables(not_made=[f"layers: {reason}"]))
        return None
    try:
        for run in ("c", "d"):
            result.runs[run] = collect_layers(profile, folder, run, target)
        _same_experiment(profile, result.runs["c"], result.runs["d"])
        second = compare_layers(result.runs["c"], result.runs["d"])
    except InconclusiveError as error:
        result.notes.append(f"no layers were compared: {error}")
        result.log_tail = error.log_tail
        return None
    result.layers = second.layers
    result.trainer_steps += _steps(second.c) + _steps(read_dump(result.runs["d"]))
    result.tables.append(make_layer_tables(result.runs["c"], result.runs["d"], folder / "layers"))
    return second


def _same_experiment(profile: Profile, c: Path, d: Path) -> None:
    """Raises where the layers of two runs say nothing, since they were not the same experiment."""
    error = compare_configurations(c, d, profile.check.meant_to_differ).error
    if error is not None:
        raise InconclusiveError(f"runs c and d: {error}")


def _whole(value: Value) -> Value:
    """Hands a task a value as it is: Prefect would otherwise walk through every record to look for futures."""
    return cast("Value", quote(value))


def _answer(result: CheckResult, conclusion: Conclusion) -> None:
    result.first, result.cause = conclusion.first, conclusion.cause
    result.reproduced, result.sides_with = conclusion.reproduced, conclusion.sides_with
    result.notes += conclusion.notes


def _steps(dump: Dump) -> int:
    return dump.steps_finished or 0
