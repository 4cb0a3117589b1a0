"""The process that runs a captured module: ``python -m probe.replay.child REQUEST RESULT``.

It imports torch once, and forks a process for each job, so that each loads the module anew. It runs nothing of the
module itself: a job that crashes or hangs is ended, and that is its answer.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from probe.replay.module import Replayed, digest_of, set_process
from probe.replay.operations import Operations
from probe.store.capture import read_capture
from probe.store.writer import write_json

_RECORDED = 4
"""Replays whose operations are recorded."""


def main() -> None:
    """Runs every job of a request, one after the other."""
    request, result = Path(sys.argv[1]), Path(sys.argv[2])
    asked = json.loads(request.read_text(encoding="utf-8"))
    warnings.simplefilter("ignore")
    with Operations():  # what torch imports for it is imported once, and not in every fork
        torch.zeros(1).add(1)
    answers: list[dict[str, Any]] = []
    for job in asked["jobs"]:
        answers.append(_forked(asked, job) if _is_wanted(job, answers) else {"error": "it was not needed"})
    write_json(result, answers)


def _is_wanted(job: dict[str, Any], answers: list[dict[str, Any]]) -> bool:
    """Whether a job applies after what the first one gave."""
    if "when" not in job:
        return True
    results = set(answers[0].get("digests", ()))
    return bool(results) and job["when"] == ("differs" if len(results) > 1 else "same")


def _forked(asked: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """A job in a process of its own."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        status = 1
        try:
            made = json.dumps(_answer(asked, job)).encode()
            with os.fdopen(write_end, "wb") as pipe:
                pipe.write(made)
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    said, hung = _read(read_end, asked["seconds"] + asked["patience"])
    os.close(read_end)
    if hung:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if hung:
        return {"error": f"the module hung: a replay took more than {asked['patience']:g} s"}
    if os.WIFSIGNALED(status):
        return {"error": f"the module crashed ({signal.Signals(os.WTERMSIG(status)).name})"}
    try:
        answer: dict[str, Any] = json.loads(said)
    except ValueError:
        return {"error": f"the module ended its process (exit status {os.WEXITSTATUS(status)})"}
    return answer


def _read(descriptor: int, seconds: float) -> tuple[bytes, bool]:
    """All that a pipe gives, and whether that took too long."""
    said, deadline = b"", time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return said, True
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return said, False
        said += piece


def _answer(asked: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    try:
        return _run(asked, job)
    except Exception as error:  # noqa: BLE001  (the module may raise anything, and so does what loads it)
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


def _run(asked: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    captured = read_capture(Path(asked["dump"]))
    if captured is None:
        return {"error": "nothing was captured"}
    set_process(captured.info["settings"], job.get("threads"), job.get("deterministic"))
    module = Replayed(captured)
    start = time.monotonic()
    results: list[dict[str, str]] = []
    recorded = []
    for number in range(job["times"]):
        if number and time.monotonic() - start > asked["seconds"]:
            break
        operations = Operations() if job.get("operations") and number < _RECORDED else None
        output, gradients = module.run(operations)
        results.append(gradients if captured.backward else output)
        if operations is not None:
            recorded.append(operations.found)
    same = [_same(one, module.captured_result()) for one in results]
    digests = [digest_of(one) for one in results]
    return {"digests": digests, "captured": sum(same), "operations": recorded, "changed": module.changed_code()}


def _same(result: dict[str, str], captured: dict[str, str]) -> bool:
    """Whether a replay gave what the training had, in all that both have."""
    both = set(result) & set(captured)
    return bool(both) and all(result[path] == captured[path] for path in both)


if __name__ == "__main__":
    main()
