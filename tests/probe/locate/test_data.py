"""Rows in another order and ranks that exchanged their data are told from data that is new."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.compare import compare_key_data
from probe.locate.data import is_permutation, swapped_ranks
from probe.store.reader import Dump, read_dump

MakeDump = Callable[..., Path]

ROWS = torch.tensor([[1, 2], [3, 4], [5, 6]])


def dumps(make_dump: MakeDump, left: list[Any], right: list[Any], **options: Any) -> tuple[Dump, Dump]:
    return read_dump(make_dump("a", left, **options)), read_dump(make_dump("b", right, **options))


class TestPermutation:
    @pytest.mark.parametrize(
        ("left", "right", "expected"),
        [
            (ROWS, ROWS[[2, 0, 1]], True),
            (torch.tensor([1.0, 2.0, 2.0]), torch.tensor([2.0, 1.0, 2.0]), True),
            (ROWS, ROWS[[0, 0, 1]], False),
            (torch.tensor([1, 1, 2]), torch.tensor([1, 2, 2]), False),
            (ROWS, ROWS.flip(1), False),
            (ROWS, ROWS[:2], False),
            (ROWS, ROWS[[1, 0, 2]].int(), False),
            (ROWS, ROWS.reshape(2, 3), False),
            (1.0, 2.0, False),
            (torch.tensor([0.0, 1.0]), torch.tensor([1.0, -0.0]), False),
        ],
        ids=["rows", "scalars", "a row twice", "other counts", "columns", "fewer", "dtype", "shape", "0-d", "zeros"],
    )
    def test_is_the_same_rows_in_another_order(
        self, make_dump: MakeDump, left: Any, right: Any, expected: bool
    ) -> None:
        a, b = dumps(make_dump, [("prompts", left)], [("prompts", right)])
        (entry,) = compare_key_data(a, b).differing
        assert is_permutation(entry, a, b) is expected

    def test_is_not_known_without_values(self, make_dump: MakeDump) -> None:
        a, b = dumps(make_dump, [("prompts", ROWS)], [("prompts", ROWS.flip(0))], keep_values=False)
        (entry,) = compare_key_data(a, b).differing
        assert not is_permutation(entry, a, b)

    def test_is_not_known_where_a_file_is_damaged(self, make_dump: MakeDump) -> None:
        a, b = dumps(make_dump, [("prompts", ROWS)], [("prompts", ROWS.flip(0))])
        (entry,) = compare_key_data(a, b).differing
        (a.folder / "data/prompts/step0/rank0/micro_step0/prompts.npy").write_bytes(b"")
        assert not is_permutation(entry, a, b)

    def test_is_not_what_only_one_run_has(self, make_dump: MakeDump) -> None:
        a, b = dumps(make_dump, [("loss", 1), ("prompts", ROWS)], [("loss", 1)])
        (entry,) = compare_key_data(a, b).differing
        assert not is_permutation(entry, a, b)


class TestSwappedRanks:
    @pytest.mark.parametrize(
        ("left", "right", "expected"),
        [
            ([1, 2], [2, 1], (0, 1)),
            ([1, 2, 3], [3, 2, 1], (0, 2)),
            ([1, 2, 3], [2, 3, 1], None),
            ([1, 2], [2, 3], None),
            ([1, 1], [2, 2], None),
        ],
        ids=["two", "first and last", "a cycle", "only one way", "both new"],
    )
    def test_are_two_that_exchanged_theirs(
        self, make_dump: MakeDump, left: list[int], right: list[int], expected: tuple[int, int] | None
    ) -> None:
        pair = [[("prompts", value, {"rank": rank}) for rank, value in enumerate(values)] for values in (left, right)]
        comparison = compare_key_data(*dumps(make_dump, *pair))
        assert swapped_ranks(comparison.differing[0], comparison) == expected

    def test_exchange_at_one_step_and_under_one_tag(self, make_dump: MakeDump) -> None:
        left = [("prompts", 1), ("loss", 2, {"rank": 1}), ("prompts", 2, {"rank": 1, "step": 1})]
        right = [("prompts", 2), ("loss", 1, {"rank": 1}), ("prompts", 1, {"rank": 1, "step": 1})]
        comparison = compare_key_data(*dumps(make_dump, left, right))
        assert [swapped_ranks(entry, comparison) for entry in comparison.differing] == [None] * 3
