"""Reading traces that are incomplete, damaged or hostile: said in one sentence, never trusted, never a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.errors import DumpError
from probe.store import trace_reader
from probe.store.trace_events import NO_EVENT, TraceEvent, parse_event, parse_place, step_of
from probe.store.trace_reader import TraceFile, TraceReader
from probe.store.traces import read_traces
from tests.probe.traces import seal, trace_bytes, training, write_traces

EVENT: dict[str, Any] = {
    "i": 0, "step": 1, "stage": "actor_update", "micro_step": 0, "kind": "forward_input", "name": "actor.norm",
    "call": 2, "items": [["args.0", "float32", [2, 3], "5a"]], "module": "RMSNorm",
}  # fmt: skip


def line(**changes: Any) -> bytes:
    return json.dumps({**EVENT, **changes}, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def without(key: str) -> bytes:
    return json.dumps({name: value for name, value in EVENT.items() if name != key}).encode() + b"\n"


def events_of(reader: TraceReader) -> list[TraceEvent]:
    found = []
    while reader.has_lines:
        reader.ensure(1, 1)
        found.append(reader.parse(reader.lines[reader.at], reader.events))
        reader.take_lines(1)
    return found


def test_an_event_is_all_that_its_line_says() -> None:
    event = parse_event(line(recomputed=True, note="reduced", rows={"": ["1", "2"]}), 0)
    assert event.key == ("forward_input", "actor.norm", 1, "actor_update", 0, True)
    assert event.items == (("args.0", "float32", (2, 3), "5a"),)
    assert (event.call, event.module, event.note, event.rows) == (2, "RMSNorm", "reduced", {"": ["1", "2"]})
    assert event.line() == line(recomputed=True, note="reduced", rows={"": ["1", "2"]})
    assert parse_place(line()).items == ()
    assert parse_place(line()).key == parse_event(line()).key


@pytest.mark.parametrize(
    "damaged",
    [
        b"\n",
        b"[]\n",
        b"7\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"[" * 100_000 + b"\n",
        b'{"i":' + b"9" * 10_000 + b"}\n",
        *[without(key) for key in ("i", "step", "stage", "micro_step", "kind", "name", "call", "items")],
        line(i=-1),
        line(i=True),
        line(i=1),
        line(i=0.0),
        line(step=-1),
        line(step=2**70),
        line(step=None),
        line(micro_step="0"),
        line(call=-1),
        line(kind="forward"),
        line(kind=["rng"]),
        line(name=3),
        line(stage={}),
        line(note=1),
        line(module=[]),
        line(recomputed=False),
        line(recomputed=1),
        line(items=None),
        line(items=[1]),
        line(items=[["a", "float32", [1]]]),
        line(items=[["a", "float32", [1], None]]),
        line(items=[["a", "float32", [-1], "5a"]]),
        line(items=[["a", "float32", [True], "5a"]]),
        line(items=[["a", "float32", [1] * 300, "5a"]]),
        line(items=[["a", "float32", "12", "5a"]]),
        line(items=[{"a": 1, "b": 2, "c": 3, "d": 4}]),
        line(items="abcd"),
        line(rows=[]),
        line(rows={"": "abc"}),
        line(rows={"": [1]}),
        line(rows={"": ["1"] * 5000}),
    ],
)
def test_what_is_no_event_is_refused(damaged: bytes) -> None:
    with pytest.raises(NO_EVENT):
        parse_event(damaged, 0)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60), st.integers(0, len(line())), st.integers(0, 9))
def test_any_bytes_are_an_event_or_an_error_that_is_expected(piece: bytes, start: int, size: int) -> None:
    text = line()
    for read in (parse_event, parse_place):
        try:
            read(text[:start] + piece + text[start + size :])
        except NO_EVENT:
            continue


@pytest.mark.parametrize("text", [b',"step":', b',"step":x}', b',"step":-1}', b',"step":' + b"1" * 30 + b"}", b""])
def test_a_step_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no step"):
        step_of(text)


class TestReader:
    @pytest.mark.parametrize("size", [1, 7, 300, 4096])
    @pytest.mark.parametrize("sealed", [True, False])
    def test_gives_every_event_in_order(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, sealed: bool
    ) -> None:
        monkeypatch.setattr(trace_reader, "CHUNK", size)
        events = training(1)
        file = read_traces(write_traces(tmp_path / "a", {0: events}, complete=sealed)).ranks[0]
        assert file.sealed is sealed
        with TraceReader(file) as reader:
            found = events_of(reader)
            assert (reader.finish(), reader.problem) == (None, None)
        assert [event.raw for event in found] == [{**event, "i": i} for i, event in enumerate(events)]
        assert reader.offset == len(trace_bytes(events))

    @pytest.mark.parametrize("size", [1, 7, 300, 4096])
    def test_goes_back_from_any_event(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        monkeypatch.setattr(trace_reader, "CHUNK", size)
        content = trace_bytes(training(1))
        file = read_traces(write_traces(tmp_path / "a", {0: training(1)})).ranks[0]
        lines = content.splitlines()
        for number in (0, 1, 2, 40, len(lines)):
            offset = sum(len(text) + 1 for text in lines[:number])
            assert list(file.lines_before(offset)) == lines[:number][::-1]
        assert file.stages_of(0) == ["actor_generate_sequences", "reference_compute_log_prob", "actor_update"]
        assert file.stages_of(7) == []

    def test_a_file_that_was_cut_off(self, tmp_path: Path) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)})
        path = folder / "trace/rank0.jsonl"
        path.write_bytes(path.read_bytes()[:-30])
        with TraceReader(read_traces(folder).ranks[0]) as reader:
            assert len(events_of(reader)) == len(training(1)) - 1
            problem = reader.finish()
        assert problem is not None
        assert problem.startswith(f"{path}: was changed after it was written")
        assert f"line {len(training(1))} was cut off" in problem

    def test_a_run_that_was_killed_in_the_middle_of_a_line(self, tmp_path: Path) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)}, complete=False)
        path = folder / "trace/rank0.jsonl"
        path.write_bytes(path.read_bytes()[:-30])
        with TraceReader(read_traces(folder).ranks[0]) as reader:
            assert len(events_of(reader)) == len(training(1)) - 1
            assert reader.problem == f"{path}: line {len(training(1))} was cut off"

    def test_a_run_that_was_killed_before_it_listed_its_trace(
        self, tmp_path: Path, edit_json: Callable[..., None]
    ) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)}, complete=False)
        edit_json(folder / "manifest.json", traces={})
        found = read_traces(folder)
        assert found.problems == []
        with TraceReader(found.ranks[0]) as reader:
            assert len(events_of(reader)) == len(training(1))

    @pytest.mark.parametrize(
        ("damage", "says"),
        [
            (lambda lines: [*lines[:5], b"{}\n", *lines[6:]], "line 6 is damaged ('i')"),
            (lambda lines: [*lines[:5], *lines[6:]], "line 6 is damaged (it is event 6, not 5)"),
            (lambda lines: [*lines[:5], lines[5].replace(b",", b", "), *lines[6:]], "not as it was written"),
            (lambda lines: [*lines[:5], lines[5].replace(b'"step":0', b'"step":9'), *lines[6:]], "step 0 comes after"),
            (lambda lines: [*lines[:5], lines[5][:-1] + b"\r\n", *lines[6:]], "not as it was written"),
        ],
    )
    def test_a_bad_line_ends_what_no_digest_vouches_for(
        self, tmp_path: Path, damage: Callable[[list[bytes]], list[bytes]], says: str
    ) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)}, complete=False)
        path = folder / "trace/rank0.jsonl"
        path.write_bytes(b"".join(damage(path.read_bytes().splitlines(keepends=True))))
        with TraceReader(read_traces(folder).ranks[0]) as reader:
            assert len(events_of(reader)) in (5, 6)
            assert reader.problem is not None
            assert reader.problem.startswith(f"{path}: line ")
            assert says in reader.problem

    def test_a_manifest_that_counts_otherwise(self, tmp_path: Path) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)})
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["traces"]["0"]["events"] += 1
        (folder / "manifest.json").write_text(json.dumps(manifest))
        with TraceReader(read_traces(folder).ranks[0]) as reader:
            problem = reader.finish()
        assert problem is not None
        assert "events, not" in problem

    def test_a_digest_that_is_null_is_found_also_where_a_manifest_vouches_for_it(self, tmp_path: Path) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)})
        path = folder / "trace/rank0.jsonl"
        text = path.read_bytes()
        at = text.index(b'"]]')
        path.write_bytes(text[: at - 33] + b"null" + text[at + 1 :])
        seal(folder, [0])
        with pytest.raises(DumpError, match="line 1 is damaged"), TraceReader(read_traces(folder).ranks[0]) as reader:
            reader.finish()

    def test_a_line_that_never_ends(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(trace_reader, "LONGEST_LINE", 10_000)
        monkeypatch.setattr(trace_reader, "CHUNK", 1000)
        path = tmp_path / "rank0.jsonl"
        path.write_bytes(line() + b"x" * 50_000 + b"\n" + line())
        with (
            pytest.raises(DumpError, match="line 2 is longer than any event"),
            TraceReader(TraceFile(path, 0)) as found,
        ):
            events_of(found)
        with pytest.raises(DumpError, match="longer than any event"):
            list(TraceFile(path, 0).lines_before(path.stat().st_size))


class TestFolder:
    def test_links_and_pipes_are_not_followed(self, tmp_path: Path) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)})
        path = folder / "trace/rank0.jsonl"
        path.rename(tmp_path / "elsewhere.jsonl")
        path.symlink_to(tmp_path / "elsewhere.jsonl")
        with pytest.raises(DumpError, match="a link is not followed"):
            TraceReader(read_traces(folder).ranks[0])
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(DumpError, match="not a file"):
            TraceReader(read_traces(folder).ranks[0])
        path.unlink()
        (folder / "trace").rename(tmp_path / "trace")
        (folder / "trace").symlink_to(tmp_path / "trace")
        with pytest.raises(DumpError, match="a link is not followed"):
            read_traces(folder)

    def test_a_trace_that_is_gone(self, tmp_path: Path) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)})
        (folder / "trace/rank0.jsonl").unlink()
        with pytest.raises(DumpError, match=r"rank0.jsonl: cannot be read"):
            TraceReader(read_traces(folder).ranks[0])

    def test_a_trace_that_nobody_listed(self, tmp_path: Path) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)})
        for name in ("rank1.jsonl", "notes\n.txt"):
            (folder / "trace" / name).write_bytes(line())
        found = read_traces(folder)
        assert list(found.ranks) == [0]
        assert len(found.problems) == 2
        assert all("does not list it" in problem for problem in found.problems)

    def test_traces_without_a_manifest(self, tmp_path: Path) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)})
        (folder / "manifest.json").unlink()
        assert "has traces but no manifest.json" in read_traces(folder).problems[0]

    @pytest.mark.parametrize(
        "said",
        [
            [],
            {"x": {"digest": "1", "events": 1}},
            {"-1": {"digest": "1", "events": 1}},
            {"00": {"digest": "1", "events": 1}},
            {"²": {"digest": "1", "events": 1}},
            {"0": 3},
            {"0": {}},
            {"0": {"digest": None, "events": 1}},
            {"0": {"digest": "1", "events": "1"}},
            {"0": {"digest": "1", "events": 1, "algorithms": "xxh3"}},
            {"0": {"digest": "1", "events": 1, "algorithms": [1]}},
            {"../../x": {"digest": "1", "events": 1}},
        ],
    )
    def test_a_manifest_that_is_damaged(self, tmp_path: Path, edit_json: Callable[..., None], said: Any) -> None:
        folder = write_traces(tmp_path / "a", {0: training(1)})
        edit_json(folder / "manifest.json", traces=said)
        with pytest.raises(DumpError, match="damaged"):
            read_traces(folder)
