"""The determinism check: six steps from two training runs to the first differing module.

::

    1 collect key data a, b ► 2 compare ► 3 locate ► 4 collect layers c, d ► 5 compare layers ► 6 name the cause

Source of the workflow: MindSpeed-RL, ``docs/features/msprobe.md``.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any, TypeVar, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.utilities.annotations import quote

from flows.logs import bearable_trainer_log
from flows.names import NOT_OF_THE_PROFILE, check_name
from flows.orphaned import outliving_its_worker
from flows.page import show_check
from flows.permissions import require_allowed
from flows.secrets import with_secrets
from flows.spoken import AS_ON_WORKER, Lang, spoken_by
from flows.stale import MOST_TRIES
from flows.states import state_of, state_of_error
from probe.checks import open_check
from probe.compare import LayerComparison, worker_notes
from probe.compare.rollouts import sample_notes
from probe.config import Profile, Request, mapping_yaml, parse_request, resolve, to_yaml
from probe.config.request import (
    SOURCE,
    Algorithm,
    Cublas,
    Device,
    Hccl,
    KeyDataChoice,
    Lines,
    OneOrZero,
    OnErrorChoice,
    OptionalInteger,
    OptionalNumber,
    OptionalText,
    ProfileName,
    Switch,
)
from probe.disk import require_room, settle
from probe.errors import ConfigError, DumpError, FirstdiffError, InconclusiveError, TrainerError
from probe.history import begin
from probe.language import recall, speaking, tell
from probe.launch import devices_reserved, dump_folder, launcher_for, leading
from probe.locate import (
    FirstKeyData,
    SecondPair,
    capture_of_answer,
    is_earliest,
    target_before,
    target_of,
    target_of_answer,
    why_no_capture,
)
from probe.masking import masked_profile
from probe.replay import not_replayed, summary
from probe.report import CheckResult, Tables, reservations
from probe.store.reader import Dump, read_dump
from probe.types import CaptureRequest, Target
from tasks.collect import collect_key_data, collect_layers
from tasks.compare import (
    compare_configurations,
    compare_key_data,
    compare_last_layers,
    compare_layers,
    compare_traces,
    make_key_data_tables,
    make_layer_tables,
)
from tasks.locate import locate_first_divergence, name_first_difference
from tasks.replay import replay_module
from tasks.report import write_results
from tasks.runners import require_runner

Value = TypeVar("Value")


@flow(
    name="determinism-check",
    flow_run_name=check_name,
    validate_parameters=False,  # they are validated inside, in one sentence
    persist_result=False,
    log_prints=False,
)
def determinism_check(
    profile: ProfileName = "deterministic",
    steps: OptionalInteger = -1,
    algorithm: Algorithm = "as in the profile",
    device: Device = "as in the profile",
    nproc_per_node: OptionalInteger = -1,
    seed: OptionalInteger = -1,
    sampling_seed: OptionalInteger = -1,
    deterministic_algorithms: Switch = "as in the profile",
    cublas_workspace_config: Cublas = "as in the profile",
    hccl_deterministic: Hccl = "as in the profile",
    lccl_deterministic: OneOrZero = "as in the profile",
    atb_matmul_shuffle_k_enable: OneOrZero = "as in the profile",
    close_matmul_k_shift: OneOrZero = "as in the profile",
    python_hash_seed: OptionalInteger = -1,
    num_threads: OptionalInteger = -1,
    key_data: KeyDataChoice = "as in the profile",
    trace: Switch = "as in the profile",
    on_error: OnErrorChoice = "as in the profile",
    time_limit: OptionalNumber = -1,
    stall_seconds: OptionalNumber = -1,
    overrides: Lines = "",
    out: OptionalText = "",
    force: bool = False,
    lang: Lang = AS_ON_WORKER,
) -> State[Any]:
    """Trains twice, compares bit for bit, and where the runs differ trains twice more to name the first module.

    Args:
        profile: The experiment: one of the profiles present when this was deployed, or the path of a .yaml file on the
            worker's machine.
        steps: Training steps that are recorded and compared, 1 to 1,000,000. -1: as in the profile.
        algorithm: GRPO, PPO or DAPO, for the integrated trainer.
        device: Where the integrated trainer trains; auto takes an NPU before a GPU before the CPU.
        nproc_per_node: Processes that torchrun starts, 1 to 4,096. -1: as in the profile.
        seed: Seed of weights, data and random states of the integrated trainer, 0 to 4,294,967,295. -1: as in the
            profile.
        sampling_seed: Seed of the rollout's sampling, 0 to 4,294,967,295. -1: as in the profile.
        deterministic_algorithms: torch.use_deterministic_algorithms; on makes an operation without a deterministic
            form an error.
        cublas_workspace_config: CUBLAS_WORKSPACE_CONFIG for the trainer.
        hccl_deterministic: HCCL_DETERMINISTIC for the trainer, the order of reductions between NPUs.
        lccl_deterministic: LCCL_DETERMINISTIC for the trainer.
        atb_matmul_shuffle_k_enable: ATB_MATMUL_SHUFFLE_K_ENABLE for the trainer.
        close_matmul_k_shift: CLOSE_MATMUL_K_SHIFT for the trainer.
        python_hash_seed: PYTHONHASHSEED for the trainer, 0 to 4,294,967,295. -1: as in the profile.
        num_threads: Threads of one CPU operation, 1 to 4,096. -1: as in the profile.
        key_data: What is recorded of what the trainer saves: full keeps values, digests only what is needed for the
            verdict, off nothing but what traces have.
        trace: Whether every event of each rank is recorded, which names the first cause; on unless the profile says
            otherwise.
        on_error: What an error inside the probe does: raise ends the trainer, continue trains on unrecorded.
        time_limit: Longest time of one of the runs in seconds, above 0, at most 2,592,000. -1: as in the profile.
        stall_seconds: Longest time without progress in seconds, above 0, at most 2,592,000. -1: as in the profile.
        overrides: Any other keys of the profile, one dotted.key=value a line, such as
            trainer.config.actor_config.lr=1e-6. They are applied last.
        out: The check's folder on the worker's machine, new or empty. Empty makes one in checks.
        force: Start though the disk has too little room.
        lang: Language of the report and of what this page shows, en or zh.

    Returns:
        A final state by the name of the verdict. ``flows.states.document_of`` reads the content of ``verdict.json``
        from it, with the check's folder as ``folder``.
    """
    values = locals()
    if (flow_run.run_count or 0) > MOST_TRIES:  # a process that dies each time is not started for ever
        return state_of_error(
            InconclusiveError(f"this run was started {MOST_TRIES} times and did not end; start a new one")
        )
    fields = {name: value for name, value in values.items() if name not in NOT_OF_THE_PROFILE}
    try:
        spoken = spoken_by(lang)
    except FirstdiffError as error:
        return state_of_error(error)
    with speaking(spoken):
        try:
            _require_types(out, force)
            request = parse_request(fields)
            require_allowed(request)
            require_runner()
            with outliving_its_worker():
                document = _run(request, out or None, force)
        except (FirstdiffError, OSError) as error:
            return state_of_error(error, str(out or "checks"))
        return state_of(document)


def _require_types(out: object, force: object) -> None:
    """Checks the two parameters that are none of the profile's: a deployment's schema may be off."""
    if out is not None and (not isinstance(out, str) or "\0" in out or not out.isprintable()):
        raise ConfigError(SOURCE, "out", f"must be the path of a folder, not {out!r:.60}")
    if not isinstance(force, bool):
        raise ConfigError(SOURCE, "force", f"must be true or false, not {force!r:.60}")


def _run(request: Request, out: str | None, force: bool) -> dict[str, Any]:
    start = time.monotonic()
    resolved = resolve(request)
    trained = with_secrets(resolved)
    entries = request.entries()
    if not force:
        require_room(Path(out or "checks/new"), request.profile, resolved, entries)
    result = CheckResult("inconclusive", notes=[*resolved.remarks, *launcher_for(trained).preflight()])
    for remark in result.notes:
        logging.getLogger("firstdiff").warning("%s", remark)
    with (
        bearable_trainer_log(),
        open_check(request.profile, out, flow_run.id) as folder,
        leading(resolved, folder),
        devices_reserved(resolved),
    ):
        begin(folder, request.profile, resolved, entries)
        (folder / "profile.yaml").write_text(profile_yaml(resolved), encoding="utf-8")
        try:
            _check(trained, folder, result)
        except InconclusiveError as error:
            result.verdict = "inconclusive"
            result.error = recall(str(error))
            result.log_tail = error.log_tail
        result.seconds = time.monotonic() - start
        document = write_results(_whole(result), folder)
        show_check(request.profile, resolved, result, document, folder)
    settle(folder, resolved)
    return {**document, "folder": str(folder)}


def profile_yaml(profile: Profile) -> str:
    """The resolved profile as YAML that ``firstdiff check`` takes again: without what a check sets itself.

    Secret values are masked; whoever uses the file gives them by ``--set``.
    """
    if profile.trainer.kind != "integrated":
        return mapping_yaml(masked_profile(profile.model_dump(mode="json")))
    own = {"msprobe": True, "dump_path": True}
    return to_yaml(profile, exclude={"trainer": {"config": {"msprobe_config": own}}})


def _check(profile: Profile, folder: Path, result: CheckResult) -> None:
    """Steps 1 to 6; fills in the result as it goes, so that a failure keeps what was found."""
    a, b, last_step, failures = _first_pair(profile, folder, result)
    trained = [_trained(profile, dump) for dump in (a, b)]
    result.trainer_steps = sum(trained)
    result.recipe_steps = 2 * max(trained)
    comparison = compare_key_data(_whole(a), _whole(b), last_step)
    result.key_data = comparison
    result.verdict = comparison.verdict
    traces = compare_traces(a.folder, b.folder, last_step)
    result.judge_traces(traces)
    last = None
    if profile.trainer.kind == "verl":  # whose samples show no weights
        result.judge_last_layers(last := compare_last_layers(a.folder, b.folder))
    result.notes += [
        *(recall(str(failure)) for failure in failures),
        *reservations(a, b, comparison),
        *worker_notes(a.folder),
        *sample_notes(comparison, a.folder, b.folder),
    ]
    result.tables.append(make_key_data_tables(a.folder, b.folder, folder / "keydata"))
    result.configurations = compare_configurations(a.folder, b.folder, profile.check.meant_to_differ)
    if failures and not (comparison.differences or traces.differences or (last and last.differences)):
        raise failures[0]
    first, answer = locate_first_divergence(_whole(comparison), _whole(traces))
    result.first_key_data, result.trace_answer = first, answer
    result.judge_experiments()
    if (error := result.configurations.error) is not None:
        raise InconclusiveError(error)
    target = _target(first, a, b, last)
    leads = answer if answer is not None and is_earliest(answer, first) else None
    capture = None
    unlike = bool(profile.check.b)  # on purpose: what either run does by itself would say nothing of the difference
    if leads is not None:
        target = target_of_answer(leads, target)
        capture = capture_of_answer(leads) if profile.check.replay and not unlike else None
    second = None if target is None or result.equivalent else _second_pair(profile, folder, target, result, capture)
    dumps = _whole(a), _whole(b)
    found = _whole(first), _whole(comparison), *dumps, _whole(second), _whole(answer), _whole(last)
    result.conclude(name_first_difference(*found))
    if result.verdict != "divergent":
        return
    if not profile.check.replay:
        result.replay = not_replayed(tell("check.replay is false")).as_dict()
    elif unlike:
        result.replay = not_replayed(tell("check.b makes the runs differ on purpose")).as_dict()
    elif capture is None:
        result.replay = not_replayed(why_no_capture(leads, traces.recorded)).as_dict()
    elif second is None:
        why = tell("runs c and d, of which one captures the module, could not be had")
        result.replay = not_replayed(why).as_dict()
    else:
        _replay(folder, result)


def _target(first: FirstKeyData | None, a: Dump, b: Dump, last: LayerComparison | None) -> Target | None:
    """Which layers to dump by what the first pair shows, traces aside; None where that leads to none."""
    if first is not None:
        return target_of(first, a, b)
    return None if last is None else target_before(last)


def _replay(folder: Path, result: CheckResult) -> None:
    """Runs the captured module alone; a note says what that gave, or why it could not be done."""
    try:
        answer = replay_module(folder)
    except (InconclusiveError, OSError) as error:
        why = recall(str(error))
        result.replay = not_replayed(why).as_dict()
        result.notes.append(tell("not replayed: {why}", why=why))
        return
    result.replay = answer.as_dict()
    result.notes.append(tell("replay: {summary}", summary=summary(answer)))


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
    last_step = profile.last_step
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


def _second_pair(
    profile: Profile, folder: Path, target: Target, result: CheckResult, capture: CaptureRequest | None
) -> SecondPair | None:
    """Steps 4 and 5: the layers of the target in two more runs; None, with a note, when they cannot be had."""
    result.recipe_steps *= 2
    reason = launcher_for(profile).cannot_dump_layers()
    if reason is not None:
        result.notes.append(tell("no layers were dumped: {why}", why=recall(reason)))
        result.tables.append(Tables(not_made=[tell("layers: {why}", why=recall(reason))]))
        if capture is None or profile.trainer.kind != "script":
            return None
    try:
        for run in ("c", "d"):
            result.runs[run] = collect_layers(profile, folder, run, target, capture)
        _same_experiment(profile, result.runs["c"], result.runs["d"])
        second = compare_layers(result.runs["c"], result.runs["d"])
    except InconclusiveError as error:
        result.notes.append(tell("no layers were compared: {why}", why=recall(str(error))))
        result.log_tail = error.log_tail
        return None
    result.layers = second.layers
    result.trainer_steps += _trained(profile, second.c) + _trained(profile, read_dump(result.runs["d"]))
    if reason is None:
        result.tables.append(make_layer_tables(result.runs["c"], result.runs["d"], folder / "layers"))
    return second


def _same_experiment(profile: Profile, c: Path, d: Path) -> None:
    """Raises where the layers of two runs say nothing, since they were not the same experiment."""
    error = compare_configurations(c, d, profile.check.meant_to_differ).error
    if error is not None:
        raise InconclusiveError(tell("runs c and d: {why}", why=error))


def _whole(value: Value) -> Value:
    """Hands a task a value as it is: Prefect would otherwise walk through every record to look for futures."""
    return cast("Value", quote(value))


def _steps(dump: Dump) -> int:
    return dump.steps_finished or 0


def _trained(profile: Profile, dump: Dump) -> int:
    """How many training steps a run took."""
    return max(0, _steps(dump) - profile.first_step)
