"""Key data compared exactly: whatever SingleComparator crops, converts or skips is found here."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probe import Probe
from probe.compare import KeyDataComparison, compare_key_data
from probe.compare.values import describe
from probe.report.tables import key_data_tables
from probe.store.layers import msprobe_missing
from probe.store.reader import read_dump, read_values
from probe.store.writer import DumpWriter
from probe.types import RunSpec

MakeDump = Callable[..., Path]
Compared = Callable[..., KeyDataComparison]

NAN, INF = float("nan"), float("inf")


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
    @pytest.mark.parametrize("keep_values", [True, False], ids=["full", "digests"])
    def test_differs(self, make_dump: MakeDump, left: Any, right: Any, keep_values: bool) -> None:
        pair = [
            make_dump(name, [("loss", value)], keep_values=keep_values) for name, value in (("a", left), ("b", right))
        ]
        comparison = compare_key_data(*map(read_dump, pair))
        assert comparison.verdict == "divergent"
        assert len(comparison.differing) == 1

    @pytest.mark.parametrize(
        ("left", "right", "path", "expected"),
        [
            # first index, elements that differ, largest absolute and relative error, largest distance in ULP
            pytest.param(torch.tensor(0.0), torch.tensor(-0.0), "", ((), 1, 0, 0, 0), id="signed zeros"),
            pytest.param(
                torch.tensor([[True, False], [True, True]]),
                torch.tensor([[True, False], [False, True]]),
                "",
                ((1, 0), 1, 1, 1, 1),
                id="bools",
            ),
            pytest.param(
                torch.tensor([7, 1], dtype=torch.uint8),
                torch.tensor([7, 3], dtype=torch.uint8),
                "",
                ((1,), 1, 2, 2 / 3, 2),
                id="uint8",
            ),
            pytest.param(
                torch.tensor(2**63 - 1),
                torch.tensor(-(2**63)),
                "",
                ((), 1, 2**64 - 1, 2, 2**64 - 1),
                id="int64 extremes",
            ),
            pytest.param(
                torch.tensor([5, 2**24]), torch.tensor([5, 2**24 + 1]), "", ((1,), 1, 1, 1 / (2**24 + 1), 1), id="2^24"
            ),
            pytest.param(
                torch.tensor([NAN, 1.0, 4.0]),
                torch.tensor([NAN, 1.0, 4.5]),
                "",
                ((2,), 1, 0.5, 0.5 / 4.5, 1 << 20),
                id="beside the same NaN",
            ),
            pytest.param(
                torch.tensor([[1.0, NAN]]), torch.tensor([[1.0, 2.0]]), "", ((0, 1), 1, INF, INF, None), id="one NaN"
            ),
            pytest.param(
                torch.tensor([1.0, 2.0, 3.0]),
                torch.tensor([2.0, 1.0, 3.0]),
                "",
                ((0,), 2, 1, 0.5, 1 << 23),
                id="permuted",
            ),
            pytest.param(
                {"x": torch.ones(2), "y": {"z": torch.ones(2)}},
                {"x": torch.ones(2), "y": {"z": torch.tensor([1.0, 0.0])}},
                "y.z",
                ((1,), 1, 1, 1, 0x3F800000),
                id="a dict under one tag",
            ),
            pytest.param(
                torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
                torch.tensor([1.0, 2.015625], dtype=torch.bfloat16),
                "",
                ((1,), 1, 1 / 64, 1 / 129, 1),
                id="neighbours in bfloat16",
            ),
            pytest.param(
                torch.tensor([1.0], dtype=torch.float8_e4m3fn),
                torch.tensor([-1.0], dtype=torch.float8_e4m3fn),
                "",
                ((0,), 1, 2, 2, 2 * 0x38),
                id="float8 across zero",
            ),
        ],
    )
    def test_says_where_and_by_how_much(
        self, compared: Compared, left: Any, right: Any, path: str, expected: tuple[Any, ...]
    ) -> None:
        comparison = compared([("loss", left)], [("loss", right)])
        (entry,) = comparison.entries
        assert (entry.record.path, entry.problem) == (path, None)
        found = entry.difference
        assert found is not None
        assert (found.first_index, found.count, found.max_absolute) == expected[:3]
        assert found.max_relative == pytest.approx(expected[3])
        assert found.max_ulp == expected[4]
        cell = comparison.cells["loss", 0, 0]
        assert (cell.elements, cell.max_absolute, cell.max_ulp) == (expected[1], expected[2], expected[4])

    @pytest.mark.parametrize(
        ("left", "right", "problem"),
        [
            (torch.ones(2, 3), torch.ones(2, 5), "float32[2, 3] against float32[2, 5]"),
            (torch.arange(6.0).reshape(2, 3), torch.arange(6.0), "float32[2, 3] against float32[6]"),
            (torch.ones(3), torch.ones(3, dtype=torch.float64), "float32[3] against float64[3]"),
            (torch.zeros(0, 3), torch.zeros(0, 4), "float32[0, 3] against float32[0, 4]"),
            (torch.ones(2, dtype=torch.bfloat16), torch.ones(2), "bfloat16[2] against float32[2]"),
            (torch.tensor([True]), torch.tensor([1], dtype=torch.int8), "bool[1] against int8[1]"),
        ],
        ids=["longer", "reshaped", "wider", "empty", "stored alike", "bool stored as int8"],
    )
    def test_says_why_there_are_no_common_elements(
        self, compared: Compared, left: Any, right: Any, problem: str
    ) -> None:
        (entry,) = compared([("loss", left)], [("loss", right)]).entries
        assert (entry.status, entry.problem, entry.difference, entry.harmless) == ("different", problem, None, None)

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
        (entry,) = comparison.entries
        assert (entry.status, str(file) in str(entry.problem)) == ("unreadable", True)

    @pytest.mark.parametrize("elsewhere", ["the same", "different"])
    @pytest.mark.parametrize("kind", [lambda data: data[:-1], lambda data: data[:40], lambda _: b""])
    def test_a_truncated_file_with_a_digest(
        self, make_dump: MakeDump, elsewhere: str, kind: Callable[[bytes], bytes]
    ) -> None:
        a = make_dump("a", [("loss", torch.ones(3)), ("rewards", 1.0)])
        b = make_dump("b", [("loss", torch.ones(3)), ("rewards", 1.0 if elsewhere == "the same" else 2.0)])
        file = b / "data/loss/step0/rank0/micro_step0/loss.npy"
        file.write_bytes(kind(file.read_bytes()))
        comparison = compare_key_data(read_dump(a), read_dump(b))
        assert comparison.verdict == ("inconclusive" if elsewhere == "the same" else "divergent")
        entry = next(entry for entry in comparison.entries if entry.record.tag == "loss")
        assert (entry.status, str(file) in str(entry.problem)) == ("unreadable", True)

    def test_a_truncated_file_whose_digest_differs(self, make_dump: MakeDump) -> None:
        a, b = make_dump("a", [("loss", torch.ones(3))]), make_dump("b", [("loss", torch.zeros(3))])
        file = b / "data/loss/step0/rank0/micro_step0/loss.npy"
        file.write_bytes(file.read_bytes()[:-1])
        comparison = compare_key_data(read_dump(a), read_dump(b))
        assert comparison.verdict == "divergent"
        (entry,) = comparison.entries
        assert (entry.status, entry.difference, str(file) in str(entry.problem)) == ("different", None, True)


PAIRS_FOR_MSPROBE: dict[str, tuple[Any, Any]] = {
    "longer": (torch.ones(2, 3), torch.ones(2, 5)),
    "reshaped": (torch.arange(6.0).reshape(2, 3), torch.arange(6.0)),
    "wider": (torch.ones(3), torch.ones(3, dtype=torch.float64)),
    "zeros": (torch.tensor([0.0]), torch.tensor([-0.0])),
    "uint8": (torch.tensor([1], dtype=torch.uint8), torch.tensor([3], dtype=torch.uint8)),
    "int64": (torch.tensor([2**63 - 1]), torch.tensor([-(2**63)])),
    "nan": (torch.tensor([NAN]), torch.tensor([NAN])),
    "empty": (torch.zeros(0, 3), torch.zeros(0, 4)),
    "step": (1.0, 1.0),
    "rank": (1.0, 1.0),
}
SAME_PERCENT, FIRST, ABSOLUTE = 6, 7, 8
"""Columns of msprobe's table."""


@pytest.fixture(scope="module")
def said_by_msprobe(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, ...]]:
    """What the real SingleComparator says of each tag, row by row, and what we do: ``{tag: (rows, statuses)}``."""
    if (reason := msprobe_missing()) is not None:
        pytest.skip(reason)
    base = tmp_path_factory.mktemp("both")
    for name in "ab":
        probe = Probe(RunSpec(run=name, dump_path=str(base / name)))
        for tag, pair in PAIRS_FOR_MSPROBE.items():
            probe.save({tag: pair["ab".index(name)]})
        probe.step()
        if name == "a":
            probe.save({"step": 1.0})
            probe.save({"rank": 1.0}, rank=1)
        probe.step()
        probe.close()
    tables = key_data_tables(base / "a", base / "b", base / "tables")
    comparison = compare_key_data(*(read_dump(base / name) for name in "ab"))
    found: dict[str, tuple[Any, ...]] = {}
    for table in tables.made:
        sheet = openpyxl.load_workbook(table, read_only=True).worksheets[0]
        rows = [tuple(row) for row in sheet.iter_rows(min_row=2, values_only=True)]
        ours = [entry for entry in comparison.entries if entry.record.tag == table.stem]
        found[table.stem] = rows, ours
    return found


class TestBesideTheRealSingleComparator:
    """That ``evidence.md`` is right about it: a newer msprobe may not be what the tables of the report say."""

    @pytest.mark.parametrize("tag", ["longer", "reshaped", "wider", "zeros"])
    def test_it_finds_all_the_same_where_we_find_a_difference(self, said_by_msprobe: Any, tag: str) -> None:
        (row,), ours = said_by_msprobe[tag]
        assert (row[SAME_PERCENT], row[FIRST], row[ABSOLUTE]) == (100, None, 0)
        assert [entry.status for entry in ours] == ["different"]

    @pytest.mark.parametrize(("tag", "theirs", "right"), [("uint8", 254, 2), ("int64", 1, 2**64 - 1)])
    def test_its_errors_wrap(self, said_by_msprobe: Any, tag: str, theirs: int, right: int) -> None:
        (row,), (entry,) = said_by_msprobe[tag]
        assert (row[ABSOLUTE], entry.difference.max_absolute) == (theirs, right)

    def test_it_finds_a_mismatch_of_the_same_nan(self, said_by_msprobe: Any) -> None:
        (row,), ours = said_by_msprobe["nan"]
        assert (row[SAME_PERCENT], row[FIRST], ours) == (0, 0, [])

    def test_it_says_nothing_of_empty_arrays(self, said_by_msprobe: Any) -> None:
        rows, ours = said_by_msprobe["empty"]
        assert (rows, [entry.status for entry in ours]) == ([], ["different"])

    @pytest.mark.parametrize("tag", ["step", "rank"])
    def test_it_says_nothing_of_what_only_one_run_has(self, said_by_msprobe: Any, tag: str) -> None:
        (row,), ours = said_by_msprobe[tag]
        assert (row[:2], row[SAME_PERCENT]) == ((0, 0), 100)
        assert [(entry.status, entry.step, entry.rank) for entry in ours] == [("missing", 1, int(tag == "rank"))]


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
            for module in ("writer", "index"):
                monkeypatch.setattr(f"probe.store.{module}.ALGORITHM", "lanes-128")
            return compare_key_data(read_dump(a), read_dump(make_dump("b", right, keep_values=keep_values)))

        return compare

    def test_equal_values_are_inconclusive(self, pair: Callable[..., KeyDataComparison]) -> None:
        comparison = pair([("loss", 1.0)], [("loss", 1.0)])
        assert comparison.verdict == "inconclusive"
        assert "different algorithms (xxh3-128, lanes-128)" in comparison.problems[0]
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
        assert statuses(compared(left, right)) == [("different", "loss", 0, 0), ("different", "prompts", 1, 0)]

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
            writer.add("loss", step, 0, 0, "", None, shot.numbers, shot.dtype, shot.shape, shot.digest)
        writer.close(complete=True)
        dumps.append(read_dump(folder))
    comparison = compare_key_data(*dumps)
    assert statuses(comparison) == [("different", "loss", 1, 0)]
    entry = comparison.entries[0]
    if keep_values and entry.a is not None and entry.b is not None:
        found = describe(read_values(dumps[0].folder, entry.a), read_values(dumps[1].folder, entry.b))
        assert found is not None
        assert found.first_index == (bit // 32,)


def test_what_only_a_later_rank_saves_stands_where_that_rank_saves_it(compared):
    def run(loss):
        return [
            ("prompts", 1, {"rank": 0}),
            ("weights", {"w": loss}, {"rank": 0}),
            ("prompts", 1, {"rank": 1}),
            ("loss", loss, {"rank": 1}),
            ("weights", {"w": loss}, {"rank": 1}),
        ]

    result = compared(run(1.0), run(2.0))
    assert [(entry.record.tag, entry.rank) for entry in result.differing] == [
        ("loss", 1),
        ("weights", 0),
        ("weights", 1),
    ]
