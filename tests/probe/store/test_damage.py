"""Dumps that are incomplete, damaged or hostile: said in one sentence, never trusted, never a traceback."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.collect.values import Snapshot
from probe.errors import DumpError
from probe.store.reader import read_dump, read_values
from probe.store.writer import DumpWriter
from probe.types import Record

MakeDump = Callable[..., Path]

LOSS = "data/loss/step0/rank0/micro_step0"


def record_of(folder: Path, file: str) -> Record:
    """A record of values that lie somewhere."""
    place = {"tag": "loss", "step": 0, "rank": 0, "micro_step": 0, "path": "", "call": 0, "stage": None}
    return Record(**place, dtype="float32", shape=(), digest=None, masked=None, file=file)


class TestIncomplete:
    def test_a_run_that_was_killed(self, tmp_path: Path) -> None:
        living, killed = tmp_path / "living", tmp_path / "killed"
        living.mkdir()
        writer = DumpWriter(living, "a", keep_values=True)
        shot = Snapshot.take(1.0)
        writer.add("loss", 0, 0, 0, "", None, shot.numbers, shot.dtype, shot.shape, shot.digest)
        writer.finish_step(0)
        shutil.copytree(living, killed)  # what a run that was never closed leaves
        writer.close(complete=True)
        dump = read_dump(killed)
        assert not dump.complete
        assert dump.problems == [f"{killed}: the run did not finish; 1 steps are whole"]
        assert len(dump.records[0]) == 1

    def test_a_run_that_was_killed_before_its_first_record(self, tmp_path: Path) -> None:
        DumpWriter(tmp_path, "a", keep_values=True)
        dump = read_dump(tmp_path)
        assert not dump.complete
        assert dump.problems

    def test_a_run_whose_recording_failed(self, tmp_path: Path) -> None:
        writer = DumpWriter(tmp_path, "a", keep_values=True)
        writer.note_error("recording stopped at step 0: no space")
        writer.close(complete=True)
        dump = read_dump(tmp_path)
        assert not dump.complete
        assert dump.problems == [f"{tmp_path}: recording stopped at step 0: no space"]

    @pytest.mark.parametrize("cut", [1, 5, 60])
    def test_an_index_that_was_cut_off(self, make_dump: MakeDump, cut: int) -> None:
        folder = make_dump("a", [("prompts", 1), ("loss", 2)])
        index = folder / "index" / "rank0.jsonl"
        index.write_bytes(index.read_bytes()[:-cut])
        dump = read_dump(folder)
        assert [record.tag for record in dump.records[0]] == ["prompts"]
        assert dump.problems == [f"{index}: line 2 was cut off"]


class TestDamage:
    def test_a_folder_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(DumpError, match="no such dump folder"):
            read_dump(tmp_path / "nowhere")

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "{",
            "[]",
            "3",
            "null",
            "{}",
            "\x00",
            '{"format": 1}',
            '{"format": "1", "ranks": [], "complete": true, "steps_finished": 1, "digest": "x", "errors": []}',
            '{"format": 1, "ranks": 3, "complete": true, "steps_finished": 1, "digest": "x", "errors": []}',
            '{"format": 1, "ranks": [-1], "complete": true, "steps_finished": 1, "digest": "x", "errors": []}',
            '{"format": 1, "ranks": ["../0"], "complete": true, "steps_finished": 1, "digest": "x", "errors": []}',
            '{"format": 1, "ranks": [0], "complete": "true", "steps_finished": 1, "digest": "x", "errors": []}',
        ],
    )
    def test_a_manifest(self, make_dump: MakeDump, text: str) -> None:
        folder = make_dump("a", [("loss", 1)])
        (folder / "manifest.json").write_text(text)
        with pytest.raises(DumpError, match=r"manifest\.json: damaged"):
            read_dump(folder)

    def test_a_manifest_of_a_later_format(self, make_dump: MakeDump, edit_json: Callable[..., None]) -> None:
        folder = make_dump("a", [("loss", 1)])
        edit_json(folder / "manifest.json", format=2)
        with pytest.raises(DumpError, match="format 2 is newer"):
            read_dump(folder)

    def test_a_manifest_that_is_missing_beside_an_index(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", 1), ("weights", {"w": 1.0})])
        (folder / "manifest.json").unlink()
        try:
            dump = read_dump(folder)
        except DumpError as error:
            assert "manifest" in str(error)
        else:
            assert dump.problems, "records without values would be left out silently"

    def test_a_manifest_that_leaves_out_a_rank(self, make_dump: MakeDump, edit_json: Callable[..., None]) -> None:
        folder = make_dump("a", [("loss", 1), ("loss", 2, {"rank": 1})])
        edit_json(folder / "manifest.json", ranks=[0])
        dump = read_dump(folder)
        assert dump.problems or 1 in dump.records, "the records of rank 1 were left out silently"

    def test_an_index_that_is_missing(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", 1)])
        (folder / "index" / "rank0.jsonl").unlink()
        dump = read_dump(folder)
        assert len(dump.problems) == 1
        assert "rank0.jsonl: cannot be read" in dump.problems[0]

    @pytest.mark.parametrize(
        "changes",
        [
            {"step": "0"},
            {"step": -1},
            {"step": 0.5},
            {"shape": [-1]},
            {"shape": None},
            {"shape": ["1"]},
            {"digest": 3},
            {"tag": None},
            {"tag": "../../etc"},
            {"tag": "a/b"},
            {"surplus": 1},
            {"rank": 1},
        ],
    )
    def test_an_index_line(self, make_dump: MakeDump, changes: dict[str, Any]) -> None:
        folder = make_dump("a", [("loss", 1), ("loss", 2)])
        index = folder / "index" / "rank0.jsonl"
        first, second = index.read_text().splitlines()
        index.write_text(first + "\n" + json.dumps({**json.loads(second), **changes}) + "\n")
        dump = read_dump(folder)
        assert len(dump.problems) == 1
        assert str(index) in dump.problems[0]

    @pytest.mark.parametrize("line", ["", "3", "[]", "{", "{}", "\udcff", "[" * 100_000])
    def test_an_index_line_that_is_no_record(self, make_dump: MakeDump, line: str) -> None:
        folder = make_dump("a", [("loss", 1)])
        index = folder / "index" / "rank0.jsonl"
        index.write_bytes(index.read_bytes() + line.encode(errors="surrogateescape") + b"\n")
        dump = read_dump(folder)
        assert len(dump.records[0]) == 1
        assert len(dump.problems) == 1
        assert "line 2" in dump.problems[0]

    def test_an_index_line_that_stands_twice(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", 1)])
        index = folder / "index" / "rank0.jsonl"
        index.write_bytes(index.read_bytes() * 2)
        assert read_dump(folder).problems

    @pytest.mark.parametrize("size", [0, 5, 80, 131, -1])
    def test_values_that_were_cut_off(self, make_dump: MakeDump, size: int) -> None:
        folder = make_dump("a", [("loss", torch.ones(4))])
        (record,) = read_dump(folder).records[0]
        file = folder / LOSS / "loss.npy"
        file.write_bytes(file.read_bytes()[:size])
        with pytest.raises(DumpError, match=r"loss\.npy: not a readable \.npy file"):
            read_values(folder, record)

    def test_values_with_something_after_them(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", torch.ones(4))])
        (record,) = read_dump(folder).records[0]
        with (folder / LOSS / "loss.npy").open("ab") as file:
            file.write(b"\0")
        with pytest.raises(DumpError, match="where its header asks for"):
            read_values(folder, record)

    def test_values_that_are_missing(self, make_dump: MakeDump) -> None:
        folder = make_dump("a", [("loss", torch.ones(4))])
        (record,) = read_dump(folder).records[0]
        (folder / LOSS / "loss.npy").unlink()
        with pytest.raises(DumpError, match=r"loss\.npy: not a readable \.npy file"):
            read_values(folder, record)

    @given(where=st.integers(0, 127), byte=st.integers(0, 255))
    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
    @pytest.mark.filterwarnings("ignore:Reading `.npy`:UserWarning")
    def test_a_changed_byte_of_a_header_is_read_or_said(self, tmp_path: Path, where: int, byte: int) -> None:
        file = tmp_path / "x.npy"
        np.save(file, np.arange(4, dtype=np.float32))
        content = bytearray(file.read_bytes())
        content[where] = byte
        file.write_bytes(content)
        try:
            assert read_values(tmp_path, record_of(tmp_path, "x.npy")).nbytes == 16
        except DumpError as error:
            assert "x.npy" in str(error)


class Boom:
    """Unpickling it writes a file."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.witness), "w"))


class TestHostile:
    def test_python_objects_are_never_unpickled(self, tmp_path: Path) -> None:
        witness = tmp_path / "witness"
        np.save(tmp_path / "x.npy", np.array([Boom(witness)], dtype=object), allow_pickle=True)
        with pytest.raises(DumpError, match="Python objects, which are never unpickled"):
            read_values(tmp_path, record_of(tmp_path, "x.npy"))
        assert not witness.exists()

    def test_a_pickle_with_another_name_is_never_unpickled(self, tmp_path: Path) -> None:
        witness = tmp_path / "witness"
        (tmp_path / "x.npy").write_bytes(pickle.dumps(Boom(witness)))
        with pytest.raises(DumpError, match="not a readable"):
            read_values(tmp_path, record_of(tmp_path, "x.npy"))
        assert not witness.exists()

    @pytest.mark.parametrize(
        "file", ["../secret.npy", "/secret.npy", "data/../../secret.npy", "link.npy", "link/x.npy"]
    )
    def test_files_outside_the_folder_are_never_read(self, tmp_path: Path, file: str) -> None:
        folder = tmp_path / "dump"
        folder.mkdir()
        np.save(tmp_path / "secret.npy", np.ones(2))
        np.save(tmp_path / "x.npy", np.ones(2))
        (folder / "link.npy").symlink_to(tmp_path / "secret.npy")
        (folder / "link").symlink_to(tmp_path)
        name = str(tmp_path / "secret.npy") if file.startswith("/") else file
        with pytest.raises(DumpError, match="lies outside the dump folder|a link is not followed"):
            read_values(folder, record_of(folder, name))

    @pytest.mark.parametrize("file", ["", ".", "a\0b", "x" * 5000, "loop"])
    def test_names_that_are_no_file_are_said(self, tmp_path: Path, file: str) -> None:
        (tmp_path / "loop").symlink_to(tmp_path / "loop")
        with pytest.raises(DumpError):
            read_values(tmp_path, record_of(tmp_path, file))

    def test_a_header_that_asks_for_the_impossible(self, tmp_path: Path) -> None:
        with (tmp_path / "x.npy").open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**40)}
            np.lib.format.write_array_header_1_0(file, header)
        with pytest.raises(DumpError, match=r"x\.npy: not a readable \.npy file"):
            read_values(tmp_path, record_of(tmp_path, "x.npy"))
