"""From replays to an answer: does the module differ alone, and under which conditions?"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from probe.errors import DumpError, TrainerError, UsageError
from probe.language import join, recall, tell, verdict_word
from probe.launch import run_process
from probe.replay.compared import first_difference
from probe.store import layout
from probe.store.capture import Captured, digests_before, read_capture
from probe.store.packing import is_packed, unpacked

TIMES = 20
PROCESSES = 4
"""Forked processes of each of the two that are started."""
SECONDS = 5.0
"""Time for the replays of one job; the first always runs."""
PATIENCE = 60.0
"""How much longer a single replay may take before it hangs."""

CONFIRMED = tell("confirmed alone")
ACROSS = tell("only across processes")
GONE = tell("gone with deterministic algorithms")
NOT_REPRODUCED = tell("not reproduced alone")
NOT_REPLAYED = tell("not replayed")
_VERDICT = "verdict.json"
_LONGEST_VERDICT = 1 << 28
"""Bytes of a verdict that are read at most."""
SAME, DIFFERS = "same", "differs"
"""When a job is run: where the first one's replays agree, or where they do not."""
_ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Answer:
    """What replaying a module says.

    Example:
        >>> Answer("actor.head", "forward", CONFIRMED, 20, 3).result
        'confirmed alone'
    """

    module: str | None
    direction: str | None
    """``forward`` or ``backward``."""
    result: str
    times: int
    """Replays in one process."""
    distinct: int
    """Different results among those that the answer rests on."""
    run: str | None = None
    """``c`` or ``d``: whose capture it is."""
    equals_captured: bool = False
    """Whether a replay gave what that run had."""
    operation: str | None = None
    """The first operation whose inputs are the same and whose output is not."""
    operation_index: int | None = None
    operation_backward: bool | None = None
    instead: str | None = None
    """What differs first where it is no operation's own doing."""
    tried: list[dict[str, Any]] = field(default_factory=list)
    """Each condition, with its replays and their different results."""
    changed: list[str] = field(default_factory=list)
    """Python modules whose code is not what it was when the module was captured: the answer is that of the new code."""
    why: str | None = None
    """Why nothing was replayed."""
    before: list[str] = field(default_factory=list)
    """What runs c and d no longer had in common when the module was called, such as ``weights.weight`` and ``rng.cpu``;
    looked for where it was not reproduced alone."""

    def as_dict(self) -> dict[str, Any]:
        """For ``verdict.json``."""
        return asdict(self)


def not_replayed(why: str) -> Answer:
    """The answer where nothing is replayed.

    Args:
        why: One sentence without its full stop.
    """
    return Answer(None, None, NOT_REPLAYED, 0, 0, why=why)


def replay_check(folder: Path, times: int = TIMES, seconds: float = SECONDS, patience: float = PATIENCE) -> Answer:
    """Replays the module that a check captured. This runs code of the check's trainer.

    Args:
        folder: A check's folder, or a dump folder.
        times: Replays in one process, 2 or more.
        seconds: Time for those of one condition.
        patience: How much longer a single one may take before it hangs.

    Raises:
        UsageError: The folder does not exist, or one replay would have nothing to agree with.
        DumpError: Nothing was captured, or it is damaged, or cannot be run again.
    """
    if times < 2:
        raise UsageError(f"--times: must be 2 or more, not {times}")
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder of a check")
    with _capture_of(folder) as (run, dump, captured):
        answer = _Replays(dump, captured, seconds, patience).answer(run, times)
        if answer.result != NOT_REPRODUCED or run != "c":
            return answer
        return replace(answer, before=_changed_before(captured, folder / "d" / layout.DUMP))


def summary(answer: Answer) -> str:
    """An answer as one line."""
    parts: list[str] = [_first_part(answer)]
    if answer.operation is not None:
        parts.append(
            tell(
                "the first operation with the same inputs and another output is {operation}", operation=answer.operation
            )
        )
    elif answer.instead is not None:
        parts.append(
            tell("no operation differs by itself; {instead}: code between the operations", instead=answer.instead)
        )
    if answer.before:
        more = tell(" and {more} more", more=len(answer.before) - 1) if len(answer.before) > 1 else ""
        parts.append(
            tell(
                "{name}{more} was not the same in runs c and d when the module was called: look at what changed it"
                " within the stage, before this call",
                name=answer.before[0],
                more=more,
            )
        )
    elif answer.result == NOT_REPRODUCED and not answer.equals_captured:
        parts.append(
            tell("what it reads outside (a global, a file, the clock), memory, streams or what runs beside it differs")
        )
    elif answer.result == NOT_REPRODUCED:
        parts.append(tell("memory, streams or what runs beside it is what differs"))
    gave = answer.equals_captured
    parts.append(tell("a replay gave what the training had") if gave else tell("no replay gave what the training had"))
    if answer.changed:
        changed = join(", ", answer.changed)
        parts.append(tell("the code in {names} has changed since: this is what the new code does", names=changed))
    return join("; ", parts)


def _first_part(answer: Answer) -> str:
    said = {
        "result": answer.result,
        "direction": tell("backward") if answer.direction == "backward" else tell("forward"),
        "module": answer.module,
        "distinct": answer.distinct,
        "times": answer.times,
    }
    if answer.distinct == 1:
        return tell(
            "{result}: the {direction} of {module} gave {distinct} different result ({times} replays in one process)",
            **said,
        )
    return tell(
        "{result}: the {direction} of {module} gave {distinct} different results ({times} replays in one process)",
        **said,
    )


@contextmanager
def _capture_of(folder: Path) -> Iterator[tuple[str | None, Path, Captured]]:
    """The first capture that is whole: of run c, then of run d."""
    problems = []
    runs: list[tuple[str | None, Path]] = [(run, folder / run / layout.DUMP) for run in "cd"]
    found = [(run, dump) for run, dump in runs if dump.is_dir()] or [(None, folder)]
    for run, dump in found:
        if not is_packed(dump) and not (dump / layout.CAPTURE).exists():
            continue
        with unpacked(dump, only=f"{layout.CAPTURE}/") as whole:
            try:
                captured = read_capture(whole)
            except DumpError as error:
                problems.append(error)
                continue
            if captured is not None:
                yield run, whole, captured
                return
    if problems:
        raise problems[0]
    if not any((folder / name).exists() for name in (_VERDICT, layout.MANIFEST, "a")):
        raise UsageError(f"{folder}: is no folder of a check, and no dump folder")
    why = _said_by_the_verdict(folder) or tell(
        "one is captured where a check with record.trace finds a module's forward, its backward, the code between its"
        " children, or its parameter's gradient to differ"
    )
    raise DumpError(tell("{folder}: holds no captured module; {why}", folder=folder, why=why))


def _changed_before(captured: Captured, other: Path) -> list[str]:
    """What another run's capture of the same call had otherwise when the call began; nothing where it has none."""
    if not other.is_dir():
        return []
    try:
        with unpacked(other, only=f"{layout.CAPTURE}/") as whole:
            theirs = read_capture(whole)
            if theirs is None or theirs.info["request"] != captured.info["request"]:
                return []
            one, two = digests_before(captured), digests_before(theirs)
    except DumpError:
        return []  # one whole capture is enough for an answer
    return sorted((name for name in one.keys() | two.keys() if one.get(name) != two.get(name)), reverse=True)


def _said_by_the_verdict(folder: Path) -> str | None:
    """Why a check replayed nothing."""
    try:
        document = layout.read_json(folder / _VERDICT, _LONGEST_VERDICT)
    except (OSError, ValueError):
        return None
    replay = document.get("replay") if isinstance(document, dict) else None
    why = replay.get("why") if isinstance(replay, dict) else None
    if isinstance(document, dict) and document.get("verdict") in ("identical", "equivalent"):
        return tell("the check is {verdict}", verdict=verdict_word(document["verdict"]))
    return recall(why) if isinstance(why, str) else None


def _only_with(threads: list[int]) -> str:
    return tell("only with {count} threads", count=join(" or ", map(str, threads)))


def _cannot(name: str, why: str) -> str:
    return tell("{name} cannot be replayed: {why}", name=name, why=recall(why))


class _Replays:
    """Runs jobs in child processes."""

    def __init__(self, dump: Path, captured: Captured, seconds: float, patience: float) -> None:
        self._dump, self._captured = dump, captured
        self._seconds, self._patience = seconds, patience
        self._tried: list[dict[str, Any]] = []
        self._same = 0

    def answer(self, run: str | None, times: int) -> Answer:
        """Goes from one process to several, to other numbers of threads, to deterministic algorithms."""
        settings = self._captured.info["settings"]
        others = [{"times": 1, "operations": True}] * PROCESSES
        reasons: list[tuple[str, str, dict[str, Any]]] = []
        if not settings.get("deterministic"):
            reasons.append(("deterministic algorithms", GONE, {"deterministic": True}))
        if settings.get("threads") != 1:
            reasons.append(
                ("1 thread", tell("only with {count} threads", count=settings.get("threads")), {"threads": 1})
            )
        base, *more = self._run(
            [
                {"times": times, "operations": True},
                *({**job, "when": SAME} for job in others),
                *({"times": times, "when": DIFFERS, **change} for _, _, change in reasons),
            ]
        )
        self._require(base)
        one = self._note("one process", base)
        if one > 1:
            tried = zip(reasons, more[PROCESSES:], strict=True)
            result = next((result for (what, result, _), job in tried if self._note(what, job) == 1), CONFIRMED)
            return self._made(run, result, base, one, base["operations"])
        counts = sorted({1, 2, os.cpu_count() or 1})
        again = self._run([*others, *({"times": times, "threads": n, "operations": True} for n in counts)])
        processes = [base, *more[:PROCESSES], *again[:PROCESSES]]
        for other in processes:
            self._require(other)
        distinct = self._note(f"{len(processes)} processes", *processes)
        runs = [recording for job in processes for recording in job["operations"][:1]]
        if distinct > 1:
            return self._made(run, ACROSS, base, distinct, runs)
        by_threads = dict(zip(counts, again[PROCESSES:], strict=True))
        unlike = []
        for count, job in by_threads.items():
            if self._note(f"{count} thread{'s' * (count > 1)}", job) > 0 and set(job["digests"]) != set(
                base["digests"]
            ):
                unlike.append(count)
        if unlike:
            jobs = [base, *(by_threads[count] for count in unlike)]
            runs = [recording for job in jobs for recording in job["operations"]]
            distinct = len({digest for job in jobs for digest in job["digests"]})
            only = tell("only with {count} thread", count=1) if unlike == [1] else _only_with(unlike)
            return self._made(run, only, base, distinct, runs)
        return self._made(run, NOT_REPRODUCED, base, 1, [])

    def _made(self, run: str | None, result: str, base: dict[str, Any], distinct: int, runs: list[Any]) -> Answer:
        first = first_difference(runs) or {}
        return Answer(
            self._captured.name,
            "backward" if self._captured.backward else "forward",
            result,
            len(base["digests"]),
            distinct,
            run,
            self._same > 0,
            first.get("operation"),
            first.get("index"),
            first.get("backward"),
            first.get("instead"),
            self._tried,
            base["changed"],
        )

    def _note(self, what: str, *jobs: dict[str, Any]) -> int:
        """Notes what a condition gave; returns the number of different results, 0 where it could not be run."""
        digests = [digest for job in jobs for digest in job.get("digests", ())]
        self._same += sum(job.get("captured", 0) for job in jobs)
        errors = [job["error"] for job in jobs if "error" in job]
        distinct = 0 if errors else len(set(digests))
        self._tried.append(
            {"what": what, "times": len(digests), "distinct": distinct, "error": errors[0] if errors else None}
        )
        return distinct

    def _require(self, job: dict[str, Any]) -> None:
        if "error" in job:
            raise DumpError(_cannot(self._captured.name, str(job["error"])))

    def _run(self, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Runs jobs in a fresh process, each in a fork of it; ``when`` says after which result of the first."""
        with tempfile.TemporaryDirectory(prefix="firstdiff-replay-") as name:
            scratch = Path(name)
            asked = {"dump": str(self._dump), "jobs": jobs, "seconds": self._seconds, "patience": self._patience}
            (scratch / "request.json").write_text(json.dumps(asked), encoding="utf-8")
            command = [sys.executable, "-m", "probe.replay.child", "request.json", "result.json"]
            try:
                run_process(
                    command,
                    cwd=scratch,
                    env=self._environment(scratch),
                    log_file=scratch / "child.log",
                    on_line=lambda line: None,
                    time_limit=len(jobs) * (self._seconds + self._patience) + 300,
                )
                answers: list[dict[str, Any]] = json.loads((scratch / "result.json").read_bytes())
            except TrainerError as error:
                last = error.log_tail.strip().rpartition("\n")[2] or tell("it printed nothing")
                raise DumpError(_cannot(self._captured.name, tell("its process failed ({why})", why=last))) from error
            except (OSError, ValueError) as error:
                raise DumpError(_cannot(self._captured.name, tell("no result ({why})", why=str(error)))) from error
        return answers

    def _environment(self, scratch: Path) -> dict[str, str]:
        """This process's variables, those that the training had for determinism, and where the probe is."""
        said = self._captured.info["settings"].get("variables")
        said = said if isinstance(said, dict) else {}
        environment = {name: value for name, value in os.environ.items() if name not in said}
        environment |= {name: value for name, value in said.items() if isinstance(value, str) and "\0" not in value}
        return {**environment, "PYTHONPATH": str(_ROOT), "TMPDIR": str(scratch)}
