"""One run's dump, recorded by several processes: each writes only what is its own, and the reader takes all or none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from probe.compare import compare_key_data
from probe.errors import DumpError, RecordError
from probe.store import layout
from probe.store.reader import read_dump
from probe.store.writer import DumpWriter, Place, mark_incomplete

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def record(tmp_path):
    """Records one rank of a run: a number in each step."""

    def one(name="a", rank=0, size=2, steps=2, complete=True, number=1, launch="x", run="a"):
        folder = tmp_path / name
        layout.claim_for_rank(folder, rank)
        writer = DumpWriter(folder, run, False, Place(rank, size, launch=launch))
        for step in range(steps):
            digest = f"{number:032x}"
            writer.add("loss", step, rank, 0, "", None, None, "int64", (), digest)
            writer.finish_step(step)
        writer.close(complete)
        return folder

    return one


def test_every_process_writes_only_what_is_its_own(record):
    folder = record(rank=0)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    record(rank=1)
    assert {path: path.read_bytes() for path in before} == before
    added = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {
        str(path.relative_to(folder)) for path in before
    }
    assert added == {"manifest.rank1.json", "index/rank1.jsonl"}


def test_all_ranks_are_one_whole_run(record):
    record(rank=1)
    dump = read_dump(record(rank=0))
    assert (dump.complete, dump.problems, sorted(dump.ranks), dump.steps_finished) == (True, [], [0, 1], 2)
    assert all(index.seal for index in dump.ranks.values())


def test_two_whole_runs_are_identical_and_a_rank_that_differs_is_named(record, tmp_path):
    for name, number in (("a", 1), ("b", 1), ("other", 2)):
        record(name, rank=0)
        record(name, rank=1, number=number)
    a, b, other = (read_dump(tmp_path / name) for name in ("a", "b", "other"))
    assert compare_key_data(a, b).verdict == "identical"
    different = compare_key_data(a, other)
    assert different.verdict == "divergent"
    assert {entry.rank for entry in different.differing} == {1}


def test_a_missing_rank_is_no_whole_run(record):
    dumps = [read_dump(record(name, rank=1, size=3)) for name in ("a", "b")]
    assert dumps[0].problems == [
        f"{dumps[0].folder}: of 3 processes, rank 0, 2 did not record; every process opens a Probe"
    ]
    assert not dumps[0].complete
    assert dumps[0].steps_finished == 0
    assert compare_key_data(*dumps).verdict == "inconclusive"


def test_a_rank_that_did_not_finish_is_named(record):
    record(rank=0)
    dump = read_dump(record(rank=1, complete=False))
    assert dump.problems == [f"{dump.folder}: rank 1: the run did not finish; 2 steps are whole"]
    assert not dump.complete


def test_ranks_with_other_numbers_of_steps_are_no_whole_run(record):
    record(rank=0, steps=3)
    dump = read_dump(record(rank=1))
    assert dump.problems == [f"{dump.folder}: rank 1 finished 2 steps, rank 0 3; the run is not whole"]
    assert (dump.complete, dump.steps_finished) == (False, 2)


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({"size": 3}, "two numbers of processes: 2 and 3"),
        ({"launch": "y"}, "two launches: x and y"),
        ({"run": "b"}, "two runs: a and b"),
    ],
)
def test_ranks_of_two_runs_are_refused(record, other, what):
    record(rank=0)
    folder = record(rank=1, **other)
    with pytest.raises(DumpError, match=f"ranks 0 and 1 are of {what}"):
        read_dump(folder)


def test_both_kinds_of_manifest_are_refused(record):
    folder = record(rank=0)
    (folder / "manifest.json").write_bytes((folder / "manifest.rank0.json").read_bytes())
    with pytest.raises(DumpError, match="manifest.json and manifest.rank0.json: the dumps of two runs"):
        read_dump(folder)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rank": 0}, "it is of rank 0"),
        ({"ranks": [0]}, "it lists another rank"),
        ({"ranks": [1, 1]}, "a rank is listed twice"),
        ({"records": {"0": 2}}, "it lists another rank"),
        ({"index_digests": {"0": "00"}}, "it lists another rank"),
        ({"world_size": 1}, "no rank 1 among 1"),
        ({"world_size": -1}, "there are no -1 processes"),
        ({"world_size": True}, "there are no True processes"),
        ({"world_size": "2"}, "wrong type"),
        ({"launch": 7}, "wrong type"),
        ({"launch": ["x"]}, "wrong type"),
        ({"digest": ""}, "wrong type"),
    ],
)
def test_a_forged_manifest_of_a_rank_is_refused(record, edit_json, changes, problem):
    record(rank=0)
    folder = record(rank=1)
    edit_json(folder / "manifest.rank1.json", **changes)
    with pytest.raises(DumpError, match=problem):
        read_dump(folder)


def test_an_index_that_no_manifest_lists_is_found(record):
    record(rank=0)
    folder = record(rank=1)
    (folder / "index/rank2.jsonl").write_bytes(b"")
    assert not read_dump(folder).complete


def test_a_changed_index_of_any_rank_is_found(record):
    record(rank=0)
    folder = record(rank=1)
    index = folder / "index/rank1.jsonl"
    index.write_bytes(
        index.read_bytes().replace(
            b'"digest":"00000000000000000000000000000001"', b'"digest":"00000000000000000000000000000002"'
        )
    )
    assert any("rank1.jsonl: was changed after it was written" in problem for problem in read_dump(folder).problems)


def test_a_failed_run_is_marked_in_every_rank(record):
    record(rank=0)
    folder = record(rank=1)
    mark_incomplete(folder, "out of luck")
    dump = read_dump(folder)
    assert (dump.complete, dump.problems) == (False, [f"{folder}: out of luck"])
    assert all(not json.loads((folder / f"manifest.rank{rank}.json").read_text())["complete"] for rank in (0, 1))


def test_a_process_cannot_record_another_rank(tmp_path):
    layout.claim_for_rank(tmp_path / "a", 1)
    writer = DumpWriter(tmp_path / "a", "a", False, Place(1, 2))
    with pytest.raises(RecordError, match="rank 0 in the process of rank 1"):
        writer.add("loss", 0, 0, 0, "", None, None, "int64", (), "00")


CLAIM = """
import sys
from pathlib import Path
from probe.errors import DumpError
from probe.store import layout
sys.stdin.readline()
try:
    layout.claim_for_rank(Path(sys.argv[1]), int(sys.argv[2]))
except DumpError:
    print("refused")
else:
    print("claimed")
"""


def test_only_one_of_many_processes_claims_a_rank(tmp_path):
    ranks = [0, 0, 0, 1, 1, 1]
    started = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, tmp_path / "dump", str(rank)],
            env={"PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]
    said = [process.communicate("go\n", timeout=60)[0].strip() for process in started]
    assert sorted(zip(ranks, said, strict=True)) == [
        (0, "claimed"), (0, "refused"), (0, "refused"), (1, "claimed"), (1, "refused"), (1, "refused"),
    ]  # fmt: skip


@pytest.mark.parametrize("left", ["manifest.json", "notes.txt", ".reserve"])
def test_a_folder_that_another_run_used_is_refused(tmp_path, left):
    (tmp_path / left).touch()
    with pytest.raises(DumpError, match="is of another run; give every run its own dump_path"):
        layout.claim_for_rank(tmp_path, 0)


def test_a_run_of_one_process_does_not_go_into_the_dump_of_several(record):
    folder = record()
    with pytest.raises(DumpError, match="not empty"):
        layout.claim(folder)
