"""Moving what a host recorded on its own disk to the run's dump folder."""

from __future__ import annotations

import json
import os

import pytest

from probe.errors import DumpError
from probe.launch.gather import gather
from probe.store import layout
from probe.store.reader import read_dump
from probe.store.writer import DumpWriter, Place


@pytest.fixture
def record(tmp_path):
    def one(name, rank):
        folder = tmp_path / name
        layout.claim_for_rank(folder, rank)
        writer = DumpWriter(folder, "a", False, Place(rank, 2))
        writer.add("loss", 0, rank, 0, "", None, None, "int64", (), "00")
        writer.finish_step(0)
        writer.close(True)
        return folder

    return one


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_what_two_hosts_recorded_becomes_one_whole_dump(record, tmp_path):
    target = tmp_path / "dump"
    for rank in (0, 1):
        gather(record(f"host{rank}", rank), target)
        assert files(tmp_path / f"host{rank}") == set()
    dump = read_dump(target)
    assert (dump.complete, sorted(dump.ranks)) == (True, [0, 1])
    assert not any(name.endswith(".partial") for name in files(target))


@pytest.mark.parametrize("links", [True, False])
def test_no_file_is_ever_replaced(record, tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError(1, "no links here")))
    target = tmp_path / "dump"
    gather(record("host0", 0), target)
    before = {name: (target / name).read_bytes() for name in files(target)}
    again = record("again", 0)
    with pytest.raises(DumpError, match="rank0.jsonl: two hosts recorded this file"):
        gather(again, target)
    assert {name: (target / name).read_bytes() for name in files(target)} == before
    assert "index/rank0.jsonl" in files(again), "what could not be moved stays"


def test_a_gathering_that_was_cut_off_is_no_whole_dump(record, tmp_path, monkeypatch):
    target = tmp_path / "dump"
    gather(record("host0", 0), target)
    source = record("host1", 1)
    (target / "index/rank1.jsonl").touch()  # the first file cannot be moved: the manifest, the last, never is
    with pytest.raises(DumpError):
        gather(source, target)
    assert not read_dump(target).complete
    assert not (target / "manifest.rank1.json").exists()


def test_a_layer_dump_says_where_its_tensors_lie_now(tmp_path):
    window = tmp_path / "host0/actor_update/step0/rank0"
    window.mkdir(parents=True)
    (window / "dump.json").write_text(json.dumps({"dump_data_dir": str(window / "dump_tensor_data"), "data": {}}))
    gather(tmp_path / "host0", tmp_path / "dump")
    moved = tmp_path / "dump/actor_update/step0/rank0"
    assert json.loads((moved / "dump.json").read_text())["dump_data_dir"] == str(moved / "dump_tensor_data")


def test_a_host_that_recorded_nothing_has_nothing_to_move(tmp_path):
    gather(tmp_path / "nothing", tmp_path / "dump")
    assert not (tmp_path / "dump").exists()
