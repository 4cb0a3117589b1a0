"""Real verdicts of every kind in Chinese: report, artifacts of the page and terminal hold no English sentence."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe import comparison
from probe.compare import compare_on_this_machine
from probe.comparison import compare_dumps
from probe.language import said, say, speaking
from probe.report import (
    certainty_line,
    difference_rows,
    hint_line,
    last_line,
    log_block,
    markdown_summary,
    summary_lines,
    verdict_document,
    write_report,
    write_verdict,
)
from probe.store.opened import opened
from probe.store.trace_events import KINDS
from tests.probe.language.leftovers import english_in, visible
from tests.probe.locate.faulty_answers import FURTHER, RANKS, REPORTED, Answer
from tests.probe.locate.test_faults import THREADS, record
from tests.probe.test_trace_verdicts import OTHER, PLAIN, SIGNED, run_with
from tests.probe.traces import write_traces

MakeDump = Callable[..., Path]
NAMES = ("actor", "critic", "reference", "rollout", "prompts", "rewards", "advantages", "values", "weights", "numpy",
         "sampler", "batch", "mask", "data", "rng", "buffers", "optimizer", "sampling", "calls", "gradient",
         "out", "_StopRecomputationError")  # fmt: skip
"""What the trainings of these tests call their models, generators and tags, and the words of causes and events."""


def names_of(document: dict[str, Any]) -> set[str]:
    """Names that a verdict and its report hold: of files, modules, tags, stages, kinds."""
    found = {*NAMES, *KINDS, *(str(path) for path in document["runs"].values() if path)}
    found |= {name for name in (document["cause"]["name"], document["cause"]["kind"]) if name}
    first = document["first"] or {}
    found |= {name for key in ("stage", "event", "name", "tag") if (name := first.get(key))}
    found |= {row["tag"] for row in document["key_data"]["summary"]}
    around = (*(document["trace"]["after"] or ()), *(document["trace"]["before"] or ()))
    found |= {str(event[key]) for event in around for key in ("name", "module", "stage") if event.get(key)}
    return found


def texts_of(document: dict[str, Any], page: str) -> Iterator[str]:
    """Everything that people read of a verdict in Chinese."""
    seen = visible(page)
    assert seen.language == "zh-CN"
    yield from seen.texts
    with speaking("zh"):
        yield markdown_summary(document, "title", "host:folder", None) + log_block("the log")
        for row in difference_rows(document):
            yield " ".join([*row, str(row["差异类型"])])
        yield last_line(document, Path("report.html"))
        lines = [*summary_lines(document["key_data"]["summary"]), certainty_line(document), hint_line(document)]
        yield from (said(line) for line in lines if line)


def left_over(document: dict[str, Any], page: str) -> dict[str, list[str]]:
    names = {*names_of(document), "title", "host:folder", "report.html"}
    return {text: words for text in texts_of(document, page) if (words := english_in(text, names))}


def compared(a: Path, b: Path, out: Path, *allowed: str) -> tuple[dict[str, Any], str]:
    out.mkdir()
    with speaking("zh"), opened(a) as left, opened(b) as right:  # without msprobe's tables, which take seconds each
        result = comparison._compare(left, right, allowed, compare_on_this_machine)
        result.runs = {"a": a, "b": b}
        document = verdict_document(result, None)
        write_verdict(document, out)
        write_report(result, document, out)
    written = json.loads((out / "verdict.json").read_text(encoding="utf-8"))
    assert written == document and written["cause"]["explanation"] == document["cause"]["explanation"]
    assert not any(ord(c) > 0x2E80 for c in (out / "verdict.json").read_text(encoding="utf-8")), "it stays English"
    return document, (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("left", "right", "verdict", "begins"),
    [
        pytest.param(PLAIN, PLAIN, "identical", "一致（identical）；全部 2 条记录和"),
        pytest.param(PLAIN, SIGNED, "equivalent", "等价（equivalent）；第 0 步"),
        (PLAIN, OTHER, "divergent", "有差异（divergent）；第 0 步，actor_update"),
    ],
    ids=["identical", "equivalent", "divergent"],
)
def test_each_verdict(tmp_path: Path, left: Any, right: Any, verdict: str, begins: str) -> None:
    for name, saves in (("a", left), ("b", right)):
        events, save = run_with(saves)
        write_traces(tmp_path / name, {0: events}, save=save)
    document, page = compared(tmp_path / "a", tmp_path / "b", tmp_path / "out")
    assert document["verdict"] == verdict
    assert left_over(document, page) == {}
    with speaking("zh"):
        assert last_line(document, None).startswith(begins)


def test_what_cannot_be_compared(make_dump: MakeDump, tmp_path: Path) -> None:
    a = make_dump("a", [("loss", np.float32([1, 2]), {"step": 0}), ("rewards", np.float32([1]), {"step": 1})])
    b = make_dump("b", [("loss", np.float32([1, 2]), {"step": 0})], complete=False)
    (b / "configurations.json").write_text("{")
    document, page = compared(a, b, tmp_path / "out")
    assert document["verdict"] == "inconclusive" and document["not_compared"]
    assert {text: words for text, words in left_over(document, page).items() if "configurations.json" not in text} == {}


def test_a_verdict_that_was_read_from_its_file_is_said_too(make_dump: MakeDump, tmp_path: Path) -> None:
    a = make_dump("a", [("ref_log_prob", np.float32([1, 2]), {"step": 0, "stage": "reference_compute_log_prob"})])
    b = make_dump("b", [("ref_log_prob", np.float32([1, 3]), {"step": 0, "stage": "reference_compute_log_prob"})])
    document, page = compared(a, b, tmp_path / "out")
    written = json.loads((tmp_path / "out/verdict.json").read_text(encoding="utf-8"))
    assert left_over(written, page) == {}
    with speaking("zh"):
        assert last_line(written, None) == last_line(document, None)
        assert markdown_summary(written, "x", "y") == markdown_summary(document, "x", "y")


def test_english_is_what_it_was(make_dump: MakeDump, tmp_path: Path) -> None:
    a = make_dump("a", [("ref_log_prob", np.float32([1, 2]), {"step": 2, "stage": "reference_compute_log_prob"})])
    b = make_dump("b", [("ref_log_prob", np.float32([1, 3]), {"step": 2, "stage": "reference_compute_log_prob"})])
    document = compare_dumps(a, b, tmp_path / "out")
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert last_line(document, Path("report.html")) == (
        "divergent; step 2, reference_compute_log_prob, ref_log_prob (none); report report.html"
    )
    assert say(document["cause"]["explanation"], "en") == (
        "no layers were compared that show which module of reference_compute_log_prob"
    )
    assert '<html lang="en">' in page and not any(0x2E80 < ord(c) < 0xFF00 for c in page)
    assert 'id="words"' not in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "answers"), [("plain", [*REPORTED, *FURTHER]), ("ddp", RANKS["ddp"])], ids=["one rank", "two ranks"]
)
def test_every_cause(tmp_path_factory: pytest.TempPathFactory, kind: str, answers: list[Answer]) -> None:
    folder = tmp_path_factory.mktemp("chinese") / "dumps"
    often = [answer for answer in answers if answer.times == 1]
    record(folder, kind, [f"{answer.fault}=1" for answer in often])
    left, kinds = {}, set()
    for dump in sorted(folder.glob("*-*")):
        if (dump / "a").is_dir():
            document, page = compared(dump / "a", dump / "b", dump / "out", THREADS)
            kinds.add(document["cause"]["kind"])
            left |= {f"{dump.name}: {text}": words for text, words in left_over(document, page).items()}
    assert left == {}
    assert kinds >= {"module_forward", "module_backward", "weights", "rng", "data", "loss", "gradient", "optimizer"}
    if kind == "plain":
        assert kinds >= {"module_input", "buffers", "sampling", "advantages", "calls"}
