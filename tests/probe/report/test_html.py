"""``report.html``: one file without the network, that nothing in a dump can break out of."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe.compare import LayerComparison, compare_key_data, compare_layers
from probe.locate import conclude, first_key_data
from probe.report import CheckResult, Tables, verdict_document, write_report
from probe.report.hints import load_hints
from probe.report.html import ROWS
from probe.store.reader import read_dump

MakeDump = Callable[..., Path]
Page = Callable[..., str]

HOSTILE = "<script>alert(1)</script>"
HOSTILE_TAG = "<img src=x onerror=alert(1)>"


class Structure(HTMLParser):
    """Tags, attributes and text of a page; notes tags that are not closed in order."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.text.append(data.strip())


def parse(page: str) -> Structure:
    structure = Structure()
    structure.feed(page)
    assert structure.wrong == []
    assert structure.open == []
    return structure


@pytest.fixture
def page_of(make_dump: MakeDump, tmp_path: Path) -> Page:
    """The report on two dumps, as a check writes it."""

    def write(
        left: list[Any], right: list[Any], layers: LayerComparison | None = None, options: Any = None, **more: Any
    ) -> str:
        folders = {n: make_dump(n, s, **(options or {})) for n, s in (("a", left), ("b", right))}
        a, b = (read_dump(folder) for folder in folders.values())
        comparison = compare_key_data(a, b)
        first = first_key_data(comparison)
        answer = conclude(first, comparison, a, b)
        result = CheckResult(
            comparison.verdict,
            comparison,
            first,
            answer.first,
            answer.cause,
            layers,
            runs=folders,
            **more,
        )
        document = verdict_document(result, tmp_path)
        path = write_report(result, document, tmp_path)
        assert path == tmp_path / "report.html"
        return path.read_text(encoding="utf-8")

    return write


def test_names_verdict_first_difference_and_cause(page_of: Page) -> None:
    place = {"step": 2, "stage": "reference_compute_log_prob"}
    structure = parse(page_of([("ref_log_prob", 1.0, place)], [("ref_log_prob", 2.5, place)]))
    text = " ".join(structure.text)
    assert "divergent" in text
    assert "ref_log_prob at step 2, rank 0, micro-step 0, computed in reference_compute_log_prob" in text
    assert "1.0" in structure.text and "2.5" in structure.text


def test_says_when_no_model_is_involved(page_of: Page) -> None:
    assert "prompts at step 0, rank 0, micro-step 0; no model computes it" in page_of(
        [("prompts", 1)], [("prompts", 2)]
    )


def test_of_equal_runs_has_a_map_and_no_table_of_differences(page_of: Page) -> None:
    page = page_of([("loss", 1.0), ("loss", 1.0, {"step": 1})], [("loss", 1.0), ("loss", 1.0, {"step": 1})])
    structure = parse(page)
    assert ("title", "loss, step 1: same") in structure.attributes
    assert "Records that differ, in execution order" not in structure.text


def test_the_map_shows_the_worst_of_each_cell(page_of: Page) -> None:
    left = [("loss", 1.0), ("loss", 1.0), ("rewards", 1.0, {"step": 1}), ("loss", 1.0, {"rank": 1})]
    right = [("loss", 1.0), ("loss", 2.0), ("loss", 1.0, {"rank": 1})]
    titles = [value for key, value in parse(page_of(left, right)).attributes if key == "title"]
    assert titles == [
        "rewards · rank 0, step 0: none",
        "rewards · rank 0, step 1: missing",
        "loss · rank 0, step 0: different",
        "loss · rank 0, step 1: none",
        "loss · rank 1, step 0: same",
        "loss · rank 1, step 1: none",
    ]


@pytest.mark.parametrize(
    ("left", "right", "words"),
    [
        (torch.ones(2, 3), torch.ones(2, 5), "float32[2, 3] against float32[2, 5]"),
        (torch.ones(2), torch.ones(2).double(), "float32[2] against float64[2]"),
        (torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 4.0]), "1 of 3"),
        (torch.tensor(float("nan")), torch.tensor(1.0), "inf"),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 3j]), "(1+3j)"),
        ("3+4=", "3+5=", "'3+4=' against '3+5='"),
        (torch.tensor([1.0]).to(torch.float8_e4m3fn), torch.tensor([2.0]).to(torch.float8_e4m3fn), "1 of 1"),
    ],
    ids=["shape", "dtype", "element", "nan", "complex", "text", "float8"],
)
def test_says_how_values_differ(page_of: Page, left: Any, right: Any, words: str) -> None:
    assert words in " ".join(parse(page_of([("loss", left)], [("loss", right)])).text)


def test_says_when_values_were_not_kept(page_of: Page) -> None:
    page = page_of([("loss", 1.0)], [("loss", 2.0)], options={"keep_values": False})
    assert "digests differ; the values were not kept" in page


def test_says_what_only_one_run_has(page_of: Page) -> None:
    page = page_of([("loss", 1.0), ("rewards", 1)], [("loss", 1.0), ("values", 1)])
    assert "only in run a" in page
    assert "only in run b" in page


def test_is_written_although_a_file_is_gone(page_of: Page, tmp_path: Path) -> None:
    page_of([("loss", 1.0)], [("loss", 2.0)])
    a, b = tmp_path / "a", tmp_path / "b"
    (b / "data/loss/step0/rank0/micro_step0/loss.npy").unlink()
    result = CheckResult("divergent", compare_key_data(read_dump(a), read_dump(b)), runs={"a": a, "b": b})
    page = write_report(result, verdict_document(result, tmp_path), tmp_path).read_text()
    assert "not a readable .npy file" in page


def test_lists_layers_in_order(page_of: Page, layer_runs: Path) -> None:
    layers = compare_layers(layer_runs / "base", layer_runs / "both-ranks")
    structure = parse(page_of([("loss", 1.0)], [("loss", 2.0)], layers))
    names = [text for text in structure.text if text.startswith("reference.b")]
    assert names[0] == "reference.b.fc1"
    assert names.count("reference.b.fc1") == 2


def test_cuts_long_tables_and_says_so(page_of: Page) -> None:
    left, right = ([("loss", value, {"step": step}) for step in range(ROWS + 5)] for value in (1, 2))
    structure = parse(page_of(left, right))
    assert "5 more records differ." in structure.text
    assert structure.tags.count("tr") < 2 * ROWS


def test_shows_why_there_is_no_verdict(tmp_path: Path) -> None:
    result = CheckResult("inconclusive", error="run a: it failed", log_tail=f"Traceback\n{HOSTILE}\nValueError: no")
    page = write_report(result, verdict_document(result, tmp_path), tmp_path).read_text()
    structure = parse(page)
    assert "run a: it failed" in structure.text
    assert any("ValueError: no" in text for text in structure.text)
    assert "script" not in structure.tags


def test_shows_where_the_environments_differ(page_of: Page, tmp_path: Path) -> None:
    page_of([("loss", 1.0)], [("loss", 1.0)])
    runs = {name: tmp_path / name for name in "ab"}
    for name, threads in (("a", 1), ("b", 2)):
        (runs[name] / "environment.json").write_text(f'{{"versions": {{"torch": "2.13"}}, "num_threads": {threads}}}')
    result = CheckResult("identical", compare_key_data(*map(read_dump, runs.values())), runs=runs)
    structure = parse(write_report(result, verdict_document(result, tmp_path), tmp_path).read_text())
    assert "a: 1; b: 2" in structure.text
    assert '"2.13"' in structure.text
    assert structure.attributes.count(("class", "warn")) == 1


class TestHostileDumps:
    def test_tags_paths_and_values_are_escaped(self, page_of: Page) -> None:
        left = [("img src=x onerror=alert(1) &amp;'", 1.0), ("loss", {HOSTILE: 1.0}), ("prompts", HOSTILE)]
        right = [(tag, {HOSTILE: 2.0} if isinstance(value, dict) else 2.0) for tag, value in left]
        page = page_of(left, right)
        structure = parse(page)
        assert "script" not in structure.tags
        assert "img" not in structure.tags
        assert not any(key.startswith("on") for key, _ in structure.attributes)
        assert f"loss.{HOSTILE}" in structure.text
        assert "img src=x onerror=alert(1) &amp;'" in " ".join(structure.text)

    def test_tags_of_a_foreign_tree_are_escaped(self, tmp_path: Path) -> None:
        runs = {}
        for name, value in (("a", 1.0), ("b", 2.0)):
            place = tmp_path / name / "data" / HOSTILE_TAG / "step0" / "rank0"
            place.mkdir(parents=True)
            np.save(place / f'x"{HOSTILE_TAG}.npy', np.float32(value))
            runs[name] = tmp_path / name
        comparison = compare_key_data(*map(read_dump, runs.values()))
        result = CheckResult("divergent", comparison, first_key_data(comparison), runs=runs)
        structure = parse(write_report(result, verdict_document(result, tmp_path), tmp_path).read_text())
        assert "img" not in structure.tags
        assert any(HOSTILE_TAG in text for text in structure.text)

    def test_environments_notes_and_table_names_are_escaped(self, page_of: Page, tmp_path: Path) -> None:
        more = {"notes": [HOSTILE], "tables": [Tables([tmp_path / f"{HOSTILE_TAG}.xlsx"], [HOSTILE])], "error": HOSTILE}
        page_of([("loss", 1.0)], [("loss", 2.0)])
        runs = {name: tmp_path / name for name in "ab"}
        (runs["a"] / "environment.json").write_text(f'{{"{HOSTILE}": "{HOSTILE}"}}')
        result = CheckResult("divergent", compare_key_data(*map(read_dump, runs.values())), runs=runs, **more)
        structure = parse(write_report(result, verdict_document(result, tmp_path), tmp_path).read_text())
        assert not {"script", "img"} & set(structure.tags)

    @pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\x00", "3"])
    def test_a_damaged_environment_does_not_matter(self, page_of: Page, tmp_path: Path, content: str) -> None:
        page_of([("loss", 1.0)], [("loss", 1.0)])
        (tmp_path / "a" / "environment.json").write_text(content)
        runs = {name: tmp_path / name for name in "ab"}
        result = CheckResult("identical", compare_key_data(*map(read_dump, runs.values())), runs=runs)
        parse(write_report(result, verdict_document(result, tmp_path), tmp_path).read_text())


def test_needs_no_network(page_of: Page) -> None:
    page = page_of([("loss", 1.0)], [("loss", 2.0)])
    structure = parse(page)
    assert not {"script", "link", "img", "iframe"} & set(structure.tags)
    links = [value or "" for key, value in structure.attributes if key in ("href", "src")]
    assert links
    sources = {hint.source for hint in load_hints().entries}  # followed on a click only
    assert not any(re.match(r"[a-z]+:|//", link) for link in links if link not in sources)
    assert "url(" not in page
    assert "@import" not in page


@pytest.mark.parametrize(
    ("reproduced", "sides_with", "replay", "said"),
    [
        (True, None, None, "yes: runs c and d differed too"),
        (True, None, {"result": "only across processes"}, "runs c and d differed too; replay: only across processes"),
        (False, "b", None, "not reproduced: runs c and d agree with each other; they side with b"),
        (None, None, None, "two runs were compared, no second pair"),
    ],
)
def test_the_story_says_whether_the_cause_is_confirmed(
    reproduced: bool | None, sides_with: str | None, replay: dict[str, Any] | None, said: str, tmp_path: Path
) -> None:
    result = CheckResult("divergent", reproduced=reproduced, sides_with=sides_with, replay=replay)
    document = verdict_document(result, tmp_path)
    write_report(result, document, tmp_path)
    assert said in (tmp_path / "report.html").read_text(encoding="utf-8")
