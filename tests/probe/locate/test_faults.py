"""Planted faults, run for real: what the traces of two processes of one training name, and that nothing else is named.

One pair of processes records many faults; ``faulty/`` has the training and the faults.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.comparison import compare_dumps
from tests.probe.locate.faulty_answers import FURTHER, RANKS, REPORTED, Answer

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("faulty")
THREADS = "environment.determinism.in_effect.num_threads"

Document = dict[str, Any]
Documents = Callable[[str], list[Document]]


def record(folder: Path, kind: str, faults: list[str]) -> None:
    """Runs ``a`` and ``b`` of some faults, side by side."""
    ranks = 2 if kind.startswith(("ddp", "fsdp2")) else 1
    torchrun = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    head = [sys.executable, *([] if ranks == 1 else [*torchrun, "--rdzv-endpoint=127.0.0.1:0"])]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONHASHSEED", None)
    logs = []
    for run in "ab":
        command = [*head, str(SCRIPT), "--kind", kind, "--folder", str(folder), *faults]
        log = (folder.parent / f"{folder.name}-{run}.log").open("w+")
        started = subprocess.Popen(command, env={**env, "FIRSTDIFF_RUN": run}, stdout=log, stderr=log)
        logs.append((log, started))
    for log, started in logs:
        status = started.wait(600)
        log.seek(0)
        said = log.read()
        log.close()
        assert status == 0, said


def documents(tmp_path_factory: pytest.TempPathFactory, kind: str, answers: list[Answer]) -> Iterator[Documents]:
    """Records faults at once, and compares one when it is asked for."""
    folder = tmp_path_factory.mktemp("faults") / "dumps"
    folder.parent.mkdir(exist_ok=True)
    record(folder, kind, [f"{answer.fault}={answer.times}" for answer in answers])

    def found(fault: str) -> list[Document]:
        dumps = sorted(folder.glob(f"{fault}-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        return [compare_dumps(dump / "a", dump / "b", None, [THREADS]) for dump in dumps]

    yield found


def verify(found: list[Document], answer: Answer) -> None:
    """Whether the first repetition that differs has the right answer, and every one is what it may be."""
    differing = [document for document in found if document["verdict"] != "identical"]
    if answer.kind is None:
        assert not differing, differing[0]["cause"]
        assert all(document["trace"]["compared"] > 500 for document in found)
        return
    assert differing, f"{answer.fault} did not happen in {len(found)} repetitions"
    assert all(document["verdict"] == "divergent" for document in differing)
    for document in differing if answer.every else differing[:1]:
        first, cause = document["first"], document["cause"]
        said = (first["stage"], first["event"], first["name"], cause["kind"], cause["name"])
        assert said == (answer.stage, answer.event, answer.first_name, answer.kind, answer.name), cause
        assert answer.step is None or first["step"] == answer.step
        assert first["rank"] == list(answer.ranks)
        assert answer.micro_step is None or first["micro_step"] == answer.micro_step
        assert cause["permutation"] is answer.permutation
        assert cause["ranks_swapped"] == answer.swapped
        assert answer.says in f"{cause['explanation']} {document['notes']}"


def cases(answers: list[Answer], quick: bool) -> list[Any]:
    return [pytest.param(answer, id=answer.fault) for answer in answers if answer.quick is quick]


@pytest.fixture(scope="module")
def quickly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Documents]:
    yield from documents(tmp_path_factory, "plain", [one for one in (*REPORTED, *FURTHER) if one.quick])


@pytest.fixture(scope="module")
def slowly(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Documents]:
    yield from documents(tmp_path_factory, "plain", [one for one in (*REPORTED, *FURTHER) if not one.quick])


@pytest.mark.parametrize("answer", cases([*REPORTED, *FURTHER], quick=True))
def test_a_fault_is_named(quickly: Documents, answer: Answer) -> None:
    verify(quickly(answer.fault), answer)


@pytest.mark.slow
@pytest.mark.parametrize("answer", cases([*REPORTED, *FURTHER], quick=False))
def test_each_fault_is_named(slowly: Documents, answer: Answer) -> None:
    verify(slowly(answer.fault), answer)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Documents]:
    """Records the faults of a kind of training when the first of them is asked for."""
    known: dict[str, Documents] = {}

    def of(kind: str) -> Documents:
        if kind not in known:
            known[kind] = next(documents(tmp_path_factory, kind, RANKS[kind]))
        return known[kind]

    return of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "answer"),
    [pytest.param(kind, answer, id=f"{kind}-{answer.fault}") for kind, answers in RANKS.items() for answer in answers],
)
def test_a_fault_of_one_rank_is_named(kinds: Callable[[str], Documents], kind: str, answer: Answer) -> None:
    verify(kinds(kind)(answer.fault), answer)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "dropout_redrawn_in_recomputation"])
def test_what_is_the_same_is_identical_twenty_times(tmp_path_factory: pytest.TempPathFactory, fault: str) -> None:
    answer = Answer(fault, times=20)
    verify(next(documents(tmp_path_factory, "plain", [answer]))(fault), answer)


@pytest.fixture
def whole_check(check: Callable[..., Any], tmp_path: Path) -> Callable[..., Document]:
    """``firstdiff check`` of the training with a fault."""

    def run(fault: str) -> Document:
        profile = tmp_path / "faulty.yaml"
        profile.write_text(f"trainer:\n  kind: command\n  command: [python, {SCRIPT}, {fault}]\n", encoding="utf-8")
        out = tmp_path / f"check-{len(list(tmp_path.iterdir()))}"
        done = check(profile, "--out", out, "--set", "record.trace=true", "--set", "check.steps=3")
        assert done.status in (0, 1), done.stderr
        return done.document

    return run


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["none", "attention_backward", "loader_draws", "other_micro_batches"])
def test_a_whole_check_names_it(whole_check: Callable[..., Document], fault: str) -> None:
    (answer,) = (answer for answer in REPORTED if answer.fault == fault)
    document = whole_check(fault)
    verify([document], answer)
    if fault == "attention_backward":
        assert document["key_data"]["first"]["tag"] in ("grad_norm", "weights"), "what it changes differs later"
        assert (document["runs"]["c"], document["layers"]["reproduced"]) == ("c/msprobe_dump", True)
    if fault == "loader_draws":
        assert document["runs"]["c"] is None, "the cause lies in no model"


@pytest.mark.slow
def test_a_whole_check_names_a_fault_that_comes_and_goes(whole_check: Callable[..., Document]) -> None:
    (answer,) = (answer for answer in REPORTED if answer.fault == "data_left_in_a_gradient")
    for _ in range(20):
        document = whole_check(answer.fault)
        if document["verdict"] != "identical":
            break
    verify([document], answer)
    if document["layers"]["reproduced"] is False:
        assert any("not reproduced" in note for note in document["notes"])
