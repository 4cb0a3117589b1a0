"""A comparison in parts gives what one pass gives, field by field, whichever ranks are in which part."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.bench.byte_files import write_single_save_tree
from probe.bench.sizes import BytesSize
from probe.collect.values import Snapshot
from probe.compare import KeyDataComparison, Part, Share, compare_key_data, compare_part, entries, merge_parts, split
from probe.errors import InternalError
from probe.locate import first_key_data
from probe.report.summary import summary_rows
from probe.store.reader import Dump, read_dump
from probe.store.writer import DumpWriter

STEPS, RANKS = 3, 5
DAMAGE = ("none", "cut", "gone", "forged", "changed", "steps mixed up")

MakeDump = Callable[..., Path]


def in_parts(a: Dump, b: Dump, last_step: int | None, count: int, source: random.Random) -> KeyDataComparison:
    """What processes would do: shares and results are bytes, and come in any order."""
    shares = [Share.from_bytes(share.to_bytes()) for share in split(a, b, last_step, count)]
    source.shuffle(shares)
    return merge_parts(a, b, last_step, (Part.from_bytes(compare_part(share).to_bytes()) for share in shares))


def assert_same(one: KeyDataComparison, other: KeyDataComparison) -> None:
    assert one.counts == other.counts
    assert one.entries == other.entries
    assert one.problems == other.problems
    assert one.compared_to_step == other.compared_to_step
    assert list(one.cells.items()) == list(other.cells.items())
    assert first_key_data(one) == first_key_data(other)
    assert (one.verdict, one.compared, one.differences) == (other.verdict, other.compared, other.differences)
    assert str(list(summary_rows(one))) == str(list(summary_rows(other)))


def write(folder: Path, source: random.Random, change: float, keep_values: bool, complete: bool) -> None:
    """A dump of some ranks, each with its own records in its own order; some of them changed, left out or added."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    writer = DumpWriter(folder, folder.name, keep_values)
    base = random.Random(1)
    for step in range(STEPS + (source.random() < change / 4)):
        for rank in range(RANKS):
            tags = ["prompts", "loss", "own"][: 2 + (rank % 3 == 2)]
            base.shuffle(tags)
            for tag in tags:
                value = np.float32([base.random(), 2.0])
                if source.random() < change:
                    value = value + np.float32(source.choice([0, 1]))
                if source.random() < change / 3 or (rank == 0 and step == 1):
                    continue
                shot = Snapshot.take(value)
                writer.add(tag, step, rank, 0, "", None, shot.numbers, shot.dtype, shot.shape, shot.digest)
                if source.random() < change / 3:
                    writer.add(tag, step, rank, 1, "x", "actor_update", None, "int64", (), "0" * 32)
        writer.finish_step(step)
    writer.close(complete)


def damage(folder: Path, kind: str, rank: int) -> None:
    index = folder / "index" / f"rank{rank}.jsonl"
    if kind == "none" or not index.exists():
        return
    lines = index.read_bytes().splitlines(keepends=True)
    if kind == "gone":
        index.unlink()
    elif kind == "cut":
        index.write_bytes(b"".join(lines)[: -len(lines[-1]) // 2])
    elif kind == "steps mixed up":
        index.write_bytes(b"".join(reversed(lines)))
    else:
        index.write_bytes(b"".join(lines).replace(b'"path"', b'"paht"', 1))


DRAWN = {
    "seed": st.integers(0, 2**32),
    "change": st.sampled_from([0.0, 0.05, 0.5]),
    "count": st.integers(2, RANKS + 2),
    "kind": st.sampled_from(DAMAGE),
    "damaged": st.sampled_from([0, 1, RANKS - 1]),
    "complete": st.booleans(),
    "last_step": st.sampled_from([None, 0, 1, 5]),
    "kept": st.sampled_from([3, 20, 10_000]),
    "late": st.booleans(),
    "keep_values": st.booleans(),
}
FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=12, deadline=None)


@given(drawn=st.fixed_dictionaries(DRAWN))
@FEW
def test_parts_give_what_one_pass_gives(tmp_path: Path, drawn: dict[str, Any]) -> None:
    assert_parts_give_what_one_pass_gives(tmp_path, **drawn)


@pytest.mark.slow
@given(drawn=st.fixed_dictionaries(DRAWN))
@settings(FEW, max_examples=300)
def test_parts_give_what_one_pass_gives_whatever_is_drawn(tmp_path: Path, drawn: dict[str, Any]) -> None:
    assert_parts_give_what_one_pass_gives(tmp_path, **drawn)


def assert_parts_give_what_one_pass_gives(
    tmp_path: Path, seed: int, change: float, keep_values: bool, complete: bool, **drawn: Any
) -> None:
    source = random.Random(seed)
    write(tmp_path / "a", source, 0.0, keep_values, True)
    write(tmp_path / "b", source, change, keep_values, complete)
    if not drawn["late"]:
        damage(tmp_path / "b", drawn["kind"], drawn["damaged"])
    a, b = read_dump(tmp_path / "a"), read_dump(tmp_path / "b")
    if drawn["late"]:  # what had been checked changes before it is compared
        damage(tmp_path / "b", drawn["kind"], drawn["damaged"])
    if drawn["kind"] == "gone" and keep_values:
        next((tmp_path / "b/data").rglob("*.npy")).unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entries, "KEPT_ENTRIES", drawn["kept"])
        whole = compare_key_data(a, b, drawn["last_step"])
        assert_same(in_parts(a, b, drawn["last_step"], drawn["count"], source), whole)
        assert len(whole.differing) <= drawn["kept"]


@pytest.mark.parametrize("count", [2, 3])
def test_values_without_digests_are_compared_in_parts(tmp_path: Path, count: int) -> None:
    for name in "ab":
        write_single_save_tree(tmp_path / name, BytesSize(files=180, file_bytes=40))
    for file in sorted((tmp_path / "b/data").rglob("*.npy"))[::7]:
        np.save(file, np.load(file) * 2)
    shutil.rmtree(next((tmp_path / "b/data").rglob("rank2")))
    dumps = [read_dump(tmp_path / name) for name in "ab"]
    whole = compare_key_data(*dumps)
    assert whole.counts["different"] > 20 and whole.counts["missing"] > 0
    assert_same(in_parts(*dumps, None, count, random.Random(1)), whole)


def test_a_damaged_rank_ends_the_comparison_of_itself_alone(make_dump: MakeDump) -> None:
    saves = [("loss", step + rank, {"step": step, "rank": rank}) for step in range(2) for rank in range(3)]
    other = [*saves[:-1], ("loss", 9, {"step": 1, "rank": 2})]
    dumps = [read_dump(make_dump(name, what)) for name, what in (("a", saves), ("b", other))]
    index = dumps[1].folder / "index/rank0.jsonl"
    for dump in dumps:  # whole when it was read, and not any more
        (dump.folder / "index/rank0.jsonl").write_bytes(b"{}\n")
    found = compare_key_data(*dumps)
    assert (found.verdict, [entry.rank for entry in found.differing]) == ("divergent", [2])
    assert str(index.parent.parent.with_name("a") / "index/rank0.jsonl") in "\n".join(found.problems)


def test_a_file_that_is_shorter_than_it_was_is_no_end_of_the_records(make_dump: MakeDump) -> None:
    """As a worker may see it whose view of a shared disk is older."""
    saves = [("loss", rank, {"rank": rank}) for rank in range(2)] + [("loss", 1, {"step": 1})]
    dumps = [read_dump(make_dump(name, saves, complete=False)) for name in "ab"]
    for dump in dumps:
        path = dump.folder / "index/rank0.jsonl"
        path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    found = compare_key_data(*dumps)
    assert found.verdict == "inconclusive"
    assert "ends early" in "\n".join(found.problems)


def test_a_lost_part_is_no_comparison(make_dump: MakeDump) -> None:
    saves = [("loss", 1, {"rank": rank}) for rank in range(3)]
    a, b = (read_dump(make_dump(name, saves)) for name in "ab")
    parts = [compare_part(share) for share in split(a, b, None, 3)]
    for wrong in (parts[:2], [*parts, parts[0]]):
        with pytest.raises(InternalError):
            merge_parts(a, b, None, wrong)


def test_what_travels_is_small(make_dump: MakeDump) -> None:
    saves = [("loss", 1, {"rank": rank, "step": step}) for step in range(20) for rank in range(60)]
    a, b = (read_dump(make_dump(name, what, keep_values=False)) for name, what in (("a", saves), ("b", saves)))
    (one, *_) = split(a, b, None, 30)
    assert len(one.to_bytes()) < 4096
    assert len(compare_part(one).to_bytes()) < 4096
