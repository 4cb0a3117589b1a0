"""Key data compared exactly: whatever SingleComparator crops, converts or skips is found here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe.compare import KeyDataComparison, compare_key_data
from probe.compare.values import describe
from probe.store.reader import read_dump, read_values
from probe.store.writer import DumpWriter

MakeDump = Callable[..., Path]
Compared = Callable[..., KeyDataComparison]

NAN = float("nan")


def statuses(comparison: KeyDataComparison) -> list[tuple[str, str, int, int]]:
    return [(entry.status, entry.record.tag, entry.step, entry.rank) for entry in comparison.entries]


class TestWhatSingleComparatorMisses:
    """The table in ``evidence.md``, row by row."""

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            pytest.param(torch.ones(2, 3), torch.ones(2, 5), id="one response longer, same prefix"),
            pytest.param(torch.arange(6.0).reshape(2, 3), torch.arange(6.0), id="another shape, same numbers"),
            pytest.param(torch.ones(3), torch.ones(3, dtype=torch.float64), id="another dtype"),
            pytest.param(torch.tensor(0.0), torch.tensor(-0.0), id="signed zeros"),
            pytest.param(torch.tensor([True, False]), torch.tensor([True, True]), id="bools"),
            pytest.param(torch.zeros(0), torch.zeros(0, 1), id="empty, of other shapes"),
            pytest.param(torch.zeros(0), torch.zeros(0, dtype=torch.int64), id="empty, of other dtypes"),
            pytest.param(torch.tensor(2**63 - 1), torch.tensor(-(2**63)), id="int64 extremes"),
            pytest.param(torch.tensor(2**24), torch.tensor(2**24 + 1), id="integers above 2^24"),
            pytest.param(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]), id="a permutation"),
            pytest.param({"x": torch.ones(2), "y": torch.ones(2)}, {"x": torch.ones(2)}, id="a nested value missing"),
            pytest.param(
                {"x": torch.ones(2), "y": torch.ones(2)}, {"x": torch.ones(2), "y": torch.zeros(2)}, id="dict"
            ),
            pytest.param(torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.float16), id="16-bit floats"),
            pytest.param("3+4=", "3+5=", id="text"),
            pytest.param(1, True, id="a number and a bool"),
        ],
    )
    def test_differs(self, compared: Compared, left: Any, right: Any) -> None:
        comparison = compared([("loss", left)], [("loss", right)])
        assert comparison.verdict == "divergent"
        assert len(comparison.differing) == 1

    @pytest.mark.parametrize(
        "value",
        [torch.tensor([NAN, 1.0]), torch.tensor([True, False]), torch.zeros(0, 3), torch.tensor(1, dtype=torch.uint8)],
        ids=repr,
    )
    def test_is_the_same(self, compared: Compared, value: torch.Tensor) -> None:
        comparison = compared([("loss", value)], [("loss", value.clone())])
        assert comparison.verdict == "identical"
        assert comparison.counts == {"same": 1}

    def test_another_nan(self, compared: Compared) -> None:
        bits = [torch.tensor([payload], dtype=torch.int32).view(torch.float32) for payload in (0x7FC00000, 0x7FC00001)]
        assert compared([("loss", bits[0])], [("loss", bits[1])]).verdict == "divergent"

    @pytest.mark.parametrize(
        ("extra", "where"),
        [("loss", {"rank": 1}), ("loss", {"step": 1}), ("rewards", {}), ("loss", {"micro_step": 1}), ("loss", {})],
        ids=["rank", "step", "tag", "micro-step", "call"],
    )
    def test_what_only_one_run_has(self, make_dump: MakeDump, extra: str, where: dict[str, int]) -> None:
        fewer = read_dump(make_dump("fewer", [("loss", 1.0)]))
        more = read_dump(make_dump("more", [("loss", 1.0), (extra, 1.0, where)]))
        expected = (extra, where.get("step", 0), where.get("rank", 0))
        for pair, status in (((more, fewer), "missing"), ((fewer, more), "extra")):
            comparison = compare_key_data(*pair)
            assert statuses(comparison) == [(status, *expected)]
            assert comparison.verdict == "divergent"

    def test_a_truncated_file_without_a_digest(self, tmp_path: Path, single_save_tree: Path) -> None:
        whole, cut = (Path(shutil.copytree(single_save_tree, tmp_path / name)) for name in ("whole", "cut"))
        file = cut / "data/loss/step0/rank0/micro_step0/loss.npy"
        file.write_bytes(file.read_bytes()[:-2])
        comparison = compare_key_data(read_dump(whole), read_dump(cut))
        assert comparison.verdict == "inconclusive"
        assert any(str(file) in problem for problem in comparison.problems)


class TestVerdict:
    def test_of_equal_runs(self, compared: Compared) -> None:
        saves = [
            ("prompts", torch.arange(6).reshape(2, 3)),
            ("loss", 1.5, {"micro_step": 1}),
            ("loss", 1.5, {"rank": 1}),
            ("weights", {"actor": {"w": torch.ones(3)}}),
            ("loss", 1.0, {"step": 1}),
        ]
        comparison = compared(saves, saves)
        assert comparison.verdict == "identical"
        assert comparison.compared == 5
        assert comparison.entries == []

    def test_of_nothing(self, compared: Compared) -> None:
        comparison = compared([], [])
        assert comparison.verdict == "inconclusive"
        assert comparison.problems

    def test_of_something_with_nothing(self, compared: Compared) -> None:
        assert compared([("loss", 1.0)], []).verdict == "divergent"

    def test_of_weights_that_differ(self, compared: Compared) -> None:
        pair = [[("weights", {"actor": {"w": torch.tensor(value)}})] for value in (1.0, 1.0000001)]
        assert statuses(compared(*pair)) == [("different", "weights", 0, 0)]

    def test_does_not_depend_on_kept_values(self, make_dump: MakeDump) -> None:
        saves = [("loss", torch.ones(3)), ("rewards", torch.zeros(2))]
        other = [("loss", torch.ones(3)), ("rewards", torch.ones(2))]
        full = make_dump("full", saves)
        for name, content, verdict in (("same", saves, "identical"), ("other", other, "divergent")):
            digests = make_dump(name, content, keep_values=False)
            assert compare_key_data(read_dump(full), read_dump(digests)).verdict == verdict

    def test_of_a_run_with_itself_does_not_depend_on_its_folder(self, make_dump: MakeDump, tmp_path: Path) -> None:
        folder = make_dump("a", [("loss", torch.ones(3))])
        copy = Path(shutil.copytree(folder, tmp_path / "elsewhere" / "b"))
        assert compare_key_data(read_dump(folder), read_dump(copy)).verdict == "identical"

    def test_order_of_saving_is_no_difference(self, compared: Compared) -> None:
        assert compared([("loss", 1.0), ("rewards", 2.0)], [("rewards", 2.0), ("loss", 1.0)]).verdict == "identical"

    def test_a_tag_saved_twice_is_compared_call_by_call(self, compared: Compared) -> None:
        comparison = compared([("loss", 1.0), ("loss", 2.0)], [("loss", 2.0), ("loss", 1.0)])
        assert [(entry.status, entry.record.call) for entry in comparison.entries] == [
            ("different", 0),
            ("different", 1),
        ]


class TestIncompleteRuns:
    TWO_STEPS = (("loss", 1.0), ("rewards", 2.0), ("loss", 3.0, {"step": 1}), ("rewards", 4.0, {"step": 1}))

    def pair(self, make_dump: MakeDump, left: Any, right: Any) -> KeyDataComparison:
        return compare_key_data(
            read_dump(make_dump("a", list(left))), read_dump(make_dump("b", list(right), complete=False))
        )

    def test_that_agree_as_far_as_they_go_are_inconclusive(self, make_dump: MakeDump) -> None:
        comparison = self.pair(make_dump, self.TWO_STEPS, self.TWO_STEPS[:3])
        assert comparison.verdict == "inconclusive"
        assert statuses(comparison) == [("not_compared", "rewards", 1, 0)]
        assert any("did not finish" in problem for problem in comparison.problems)

    def test_that_hold_everything_are_inconclusive_still(self, make_dump: MakeDump) -> None:
        assert self.pair(make_dump, self.TWO_STEPS, self.TWO_STEPS).verdict == "inconclusive"

    def test_that_differ_before_the_end_are_divergent(self, make_dump: MakeDump) -> None:
        comparison = self.pair(make_dump, self.TWO_STEPS, [("loss", 1.0), ("rewards", 2.5), ("loss", 3.0, {"step": 1})])
        assert comparison.verdict == "divergent"
        assert statuses(comparison)[0] == ("different", "rewards", 0, 0)

    def test_that_lack_a_record_of_a_whole_step_are_divergent(self, make_dump: MakeDump) -> None:
        comparison = self.pair(make_dump, self.TWO_STEPS, [("loss", 1.0), ("loss", 3.0, {"step": 1})])
        assert statuses(comparison)[0] == ("missing", "rewards", 0, 0)

    def test_without_any_record_are_inconclusive(self, make_dump: MakeDump) -> None:
        comparison = self.pair(make_dump, self.TWO_STEPS, [])
        assert comparison.verdict == "inconclusive"
        assert comparison.counts == {"not_compared": 4}

    def test_both_are_inconclusive(self, make_dump: MakeDump) -> None:
        dumps = [read_dump(make_dump(name, [("loss", 1.0)], complete=False)) for name in "ab"]
        assert compare_key_data(*dumps).verdict == "inconclusive"

    @pytest.mark.parametrize("damage", ["cut off", "damaged"])
    def test_an_index_that_ends_early_is_inconclusive_not_divergent(self, make_dump: MakeDump, damage: str) -> None:
        a, b = make_dump("a", list(self.TWO_STEPS)), make_dump("b", list(self.TWO_STEPS))
        index = b / "index" / "rank0.jsonl"
        lines = index.read_bytes().splitlines(keepends=True)
        index.write_bytes(b"".join(lines[:2]) + (lines[2][:20] if damage == "cut off" else b"{}\n" + lines[3]))
        comparison = compare_key_data(read_dump(a), read_dump(b))
        assert comparison.verdict == "inconclusive"
        assert comparison.counts == {"same": 2, "not_compared": 2}

    def test_an_index_that_is_missing_is_inconclusive_not_divergent(self, make_dump: MakeDump) -> None:
        a, b = make_dump("a", list(self.TWO_STEPS)), make_dump("b", list(self.TWO_STEPS))
        (b / "index" / "rank0.jsonl").unlink()
        assert compare_key_data(read_dump(a), read_dump(b)).verdict == "inconclusive"


class TestDigestsOfTwoAlgorithms:
    @pytest.fixture
    def pair(self, make_dump: MakeDump, monkeypatch: pytest.MonkeyPatch) -> Callable[..., KeyDataComparison]:
        def compare(left: Any, right: Any, keep_values: bool = True) -> KeyDataComparison:
            a = make_dump("a", left, keep_values=keep_values)
            monkeypatch.setattr("probe.store.digest.xxhash", None)
            monkeypatch.setattr("probe.store.writer.ALGORITHM", "blake2b-128")
            return compare_key_data(read_dump(a), read_dump(make_dump("b", right, keep_values=keep_values)))

        return compare

    def test_equal_values_are_inconclusive(self, pair: Callable[..., KeyDataComparison]) -> None:
        comparison = pair([("loss", 1.0)], [("loss", 1.0)])
        assert comparison.verdict == "inconclusive"
        assert "different algorithms (xxh3-128, blake2b-128)" in comparison.problems[0]
        assert comparison.counts == {"same": 1}

    def test_other_values_are_divergent(self, pair: Callable[..., KeyDataComparison]) -> None:
        assert pair([("loss", 1.0)], [("loss", 2.0)]).verdict == "divergent"

    def test_digests_alone_are_unreadable(self, pair: Callable[..., KeyDataComparison]) -> None:
        comparison = pair([("loss", 1.0)], [("loss", 2.0)], keep_values=False)
        assert comparison.verdict == "inconclusive"
        assert comparison.counts == {"unreadable": 1}

    def test_dtypes_count_although_values_are_stored_wider(self, pair: Callable[..., KeyDataComparison]) -> None:
        value = torch.ones(2)
        assert pair([("loss", value.bfloat16())], [("loss", value)]).verdict == "divergent"


class TestRanks:
    def test_are_compared_each(self, compared: Compared) -> None:
        left = [("loss", 1.0), ("loss", 1.0, {"rank": 1})]
        right = [("loss", 1.0), ("loss", 2.0, {"rank": 1})]
        assert statuses(compared(left, right)) == [("different", "loss", 0, 1)]

    def test_share_the_first_ranks_order(self, compared: Compared) -> None:
        left = [("prompts", 1), ("loss", 1), ("loss", 1, {"rank": 1}), ("prompts", 1, {"rank": 1})]
        right = [("prompts", 1), ("loss", 2), ("loss", 2, {"rank": 1}), ("prompts", 2, {"rank": 1})]
        assert statuses(compared(left, right)) == [
            ("different", "prompts", 0, 1),
            ("different", "loss", 0, 0),
            ("different", "loss", 0, 1),
        ]


class TestSteps:
    def test_come_before_places(self, compared: Compared) -> None:
        left = [("prompts", 1), ("loss", 1), ("prompts", 1, {"step": 1}), ("loss", 1, {"step": 1})]
        right = [("prompts", 1), ("loss", 2), ("prompts", 2, {"step": 1}), ("loss", 1, {"step": 1})]
        assert [entry.order for entry in compared(left, right).entries] == [(0, 1), (1, 0)]

    def test_later_ones_may_be_left_out(self, compared: Compared) -> None:
        left = [("loss", step, {"step": step}) for step in range(3)]
        right = [*left[:2], ("loss", 9, {"step": 2})]
        comparison = compared(left, right, last_step=1)
        assert (comparison.verdict, comparison.compared) == ("identical", 2)

    def test_are_sorted_as_numbers(self, compared: Compared) -> None:
        left = [("loss", 1, {"step": step}) for step in (2, 10)]
        right = [("loss", 2, {"step": step}) for step in (2, 10)]
        assert [entry.step for entry in compared(left, right).entries] == [2, 10]


class TestForeignTrees:
    @pytest.fixture
    def trees(self, single_save_tree: Path, tmp_path: Path) -> tuple[Path, Path]:
        return tuple(Path(shutil.copytree(single_save_tree, tmp_path / name)) for name in "ab")  # type: ignore[return-value]

    def test_that_are_equal(self, trees: tuple[Path, Path]) -> None:
        comparison = compare_key_data(*map(read_dump, trees))
        assert comparison.verdict == "identical"
        assert comparison.counts == {"same": 14}

    @pytest.mark.parametrize("value", [np.float32(0.5000001), np.float64(0.5), np.float32([0.5])])
    def test_that_differ_in_value_dtype_or_shape(self, trees: tuple[Path, Path], value: Any) -> None:
        np.save(trees[1] / "data/loss/step0/rank0/micro_step0/loss.npy", value)
        assert statuses(compare_key_data(*map(read_dump, trees))) == [("different", "loss", 0, 0)]

    def test_where_one_lacks_a_file(self, trees: tuple[Path, Path]) -> None:
        shutil.rmtree(trees[1] / "data/loss/step1/rank0/micro_step1")
        assert statuses(compare_key_data(*map(read_dump, trees))) == [("missing", "loss", 1, 0)]


def test_signed_zeros_of_stored_values_differ(tmp_path: Path) -> None:
    for name, value in (("a", 0.0), ("b", -0.0)):
        place = tmp_path / name / "data/loss/step0/rank0"
        place.mkdir(parents=True)
        np.save(place / "loss.npy", np.float32(value))
    assert compare_key_data(*(read_dump(tmp_path / name) for name in "ab")).verdict == "divergent"


@given(
    data=st.lists(st.floats(width=32), min_size=1, max_size=20),
    where=st.integers(min_value=0),
    keep_values=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_one_flipped_bit_anywhere_is_found(
    tmp_path_factory: pytest.TempPathFactory, data: list[float], where: int, keep_values: bool
) -> None:
    from probe.collect.values import Snapshot

    array = np.array(data, dtype=np.float32)
    bit = where % (32 * array.size)
    other = array.copy()
    other.view(np.uint32)[bit // 32] ^= np.uint32(1 << bit % 32)
    dumps = []
    for values in (array, other):
        folder = tmp_path_factory.mktemp("dump")
        writer = DumpWriter(folder, "a", keep_values)
        for step, content in enumerate((array, values, array)):
            shot = Snapshot.take(content)
            writer.add("loss", step, 0, 0, "", None, shot.values, shot.dtype, shot.shape, shot.digest)
        writer.close(complete=True)
        dumps.append(read_dump(folder))
    comparison = compare_key_data(*dumps)
    assert statuses(comparison) == [("different", "loss", 1, 0)]
    entry = comparison.entries[0]
    if keep_values and entry.a is not None and entry.b is not None:
        found = describe(read_values(dumps[0].folder, entry.a), read_values(dumps[1].folder, entry.b))
        assert found is not None
        assert found.first_index == (bit // 32,)
