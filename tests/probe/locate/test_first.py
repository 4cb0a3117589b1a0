"""The first difference of the key data, and which layers to dump to look inside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.compare import KeyDataComparison, compare_key_data
from probe.locate import FirstKeyData, first_key_data, target_of
from probe.locate.first import ALL_TOKENS
from probe.store.reader import Dump, read_dump
from probe.types import Target

MakeDump = Callable[..., Path]
Locate = Callable[..., tuple[FirstKeyData, Dump, Dump]]


@pytest.fixture
def locate(make_dump: MakeDump) -> Locate:
    """Writes two dumps and finds their first difference."""

    def find(left: list[Any], right: list[Any], keep_values: bool = True) -> tuple[FirstKeyData, Dump, Dump]:
        a, b = (read_dump(make_dump(n, s, keep_values=keep_values)) for n, s in (("a", left), ("b", right)))
        first = first_key_data(compare_key_data(a, b))
        assert first is not None
        return first, a, b

    return find


def where(first: FirstKeyData) -> tuple[int, str, tuple[int, ...]]:
    return first.entry.step, first.entry.record.tag, first.ranks


class TestFirst:
    def test_of_equal_runs_is_none(self, compared: Callable[..., KeyDataComparison]) -> None:
        assert first_key_data(compared([("loss", 1)], [("loss", 1)])) is None

    def test_is_the_earliest_step(self, locate: Locate) -> None:
        places = [(tag, step) for step in range(3) for tag in ("prompts", "loss")]
        left = [(tag, 1, {"step": step}) for tag, step in places]
        right = [(tag, 1 + ((tag, step) in (("prompts", 2), ("loss", 1))), {"step": step}) for tag, step in places]
        assert where(locate(left, right)[0]) == (1, "loss", (0,))

    def test_is_the_earliest_place_in_the_step_on_any_rank(self, locate: Locate) -> None:
        left = [(tag, 1, {"rank": rank}) for rank in (0, 1) for tag in ("prompts", "responses", "loss")]
        right = [(tag, 1 + (tag == "loss" or (tag, w["rank"]) == ("responses", 1)), w) for tag, _, w in left]
        assert where(locate(left, right)[0]) == (0, "responses", (1,))

    def test_names_every_rank_that_shares_it(self, locate: Locate) -> None:
        left = [(tag, 1, {"rank": rank}) for rank in (0, 1, 2) for tag in ("prompts", "loss")]
        right = [(tag, 1 + (tag == "loss" and w["rank"] != 1), w) for tag, _, w in left]
        assert where(locate(left, right)[0]) == (0, "loss", (0, 2))

    def test_names_no_rank_of_another_step(self, locate: Locate) -> None:
        left = [("loss", 1, {"rank": rank, "step": rank}) for rank in (0, 1)]
        right = [("loss", 2, {"rank": rank, "step": rank}) for rank in (0, 1)]
        assert where(locate(left, right)[0]) == (0, "loss", (0,))

    def test_follows_execution_not_the_alphabet_or_the_known_tags(self, locate: Locate) -> None:
        left = [("z_custom", 1), ("loss", 1), ("prompts", 1)]
        right = [("z_custom", 2), ("loss", 2), ("prompts", 2)]
        assert where(locate(left, right)[0])[1] == "z_custom"

    def test_is_what_only_one_run_has_when_that_comes_first(self, locate: Locate) -> None:
        first = locate([("rewards", 1), ("loss", 1)], [("extra", 1), ("rewards", 1), ("loss", 2)])[0]
        assert (first.entry.status, first.entry.record.tag) == ("extra", "extra")

    def test_is_not_what_an_incomplete_run_did_not_reach(self, make_dump: MakeDump) -> None:
        a = read_dump(make_dump("a", [("prompts", 1), ("loss", 1)]))
        b = read_dump(make_dump("b", [("prompts", 1)], complete=False))
        assert first_key_data(compare_key_data(a, b)) is None

    @pytest.mark.parametrize(
        ("left", "right", "harmless"),
        [
            ([1.0, 3.0], [1.0, 4.0], "entries outside the mask"),
            ([1.0, 3.0], [1.5, 4.0], None),
            ([0.0, 3.0], [-0.0, 3.0], "the sign of zeros"),
            ([0.0, 3.0], [-0.0, 4.0], None),
        ],
    )
    def test_says_when_no_number_that_counts_differs(
        self, locate: Locate, left: list[float], right: list[float], harmless: str | None
    ) -> None:
        mask = {"mask": torch.tensor([1, 0])}
        pair = [[("log_prob", torch.tensor(value), mask)] for value in (left, right)]
        assert locate(*pair)[0].entry.harmless == harmless

    def test_without_a_mask_everything_counts(self, locate: Locate) -> None:
        assert locate([("loss", 1.0)], [("loss", 2.0)])[0].entry.harmless is None


class TestTarget:
    @pytest.mark.parametrize(
        ("tag", "stage", "switch"),
        [
            ("responses", "actor_generate_sequences", "actor_infer_dump"),
            ("old_log_prob", "actor_compute_log_prob", "actor_train_dump"),
            ("ref_log_prob", "reference_compute_log_prob", "reference_dump"),
            ("values", "critic_compute_values", "critic_train_dump"),
            ("log_prob", "actor_update", "actor_train_dump"),
            ("kl_loss", "actor_update", "actor_train_dump"),
            ("loss", "actor_update", "actor_train_dump"),
            ("grad_norm", "actor_update", "actor_train_dump"),
        ],
    )
    @pytest.mark.parametrize("open_stage", [True, False])
    def test_of_a_tag_is_the_stage_that_computes_it(
        self, locate: Locate, tag: str, stage: str, switch: str, open_stage: bool
    ) -> None:
        place = {"step": 3, "stage": stage if open_stage else None}
        target = target_of(*locate([(tag, 1.0, place)], [(tag, 2.0, place)]))
        assert target == Target(3, stage, ALL_TOKENS if tag == "responses" else 0)
        assert target is not None
        assert target.switch == switch

    @pytest.mark.parametrize("tag", ["prompts", "rewards", "advantages", "unheard_of"])
    def test_of_data_and_host_code_is_none(self, locate: Locate, tag: str) -> None:
        assert target_of(*locate([(tag, 1.0)], [(tag, 2.0)])) is None

    @pytest.mark.parametrize("tag", ["prompts", "rewards", "advantages"])
    def test_of_data_saved_inside_a_stage_is_none_too(self, locate: Locate, tag: str) -> None:
        place = {"stage": "actor_update"}
        assert target_of(*locate([(tag, 1.0, place)], [(tag, 2.0, place)])) is None

    def test_of_an_unknown_tag_is_the_stage_that_was_open(self, locate: Locate) -> None:
        place = {"stage": "critic_update"}
        target = target_of(*locate([("critic_loss", 1.0, place)], [("critic_loss", 2.0, place)]))
        assert target == Target(0, "critic_update", 0)

    @pytest.mark.parametrize(
        ("role", "stage"), [("actor", "actor_update"), ("critic", "critic_update"), ("reference", None)]
    )
    def test_of_weights_is_the_update_of_their_role(self, locate: Locate, role: str, stage: str | None) -> None:
        pair = [[("weights", {role: {"model": {"w": value}}}, {"step": 1})] for value in (1.0, 2.0)]
        target = target_of(*locate(*pair))
        assert target == (None if stage is None else Target(1, stage, 0))

    @pytest.mark.parametrize(
        ("left", "right", "token"),
        [
            ([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 5, 7]], 2),
            ([[1, 2, 3], [4, 5, 6]], [[1, 9, 3], [0, 5, 6]], 0),
            ([[1, 2], [4, 5]], [[1, 2, 3], [4, 5, 6]], ALL_TOKENS),
            ([[1, 2], [4, 5]], [[1, 9, 3], [4, 5, 6]], 1),
            ([[1], [2]], [[1], [3]], 0),
            ([[], []], [[1], [3]], ALL_TOKENS),
        ],
        ids=["last", "first", "longer", "longer and other", "one token", "no token in one run"],
    )
    def test_of_responses_is_the_first_token_that_differs(
        self, locate: Locate, left: list[list[int]], right: list[list[int]], token: int
    ) -> None:
        pair = [[("responses", torch.tensor(rows, dtype=torch.int64))] for rows in (left, right)]
        assert target_of(*locate(*pair)) == Target(0, "actor_generate_sequences", token)

    def test_of_responses_in_more_dimensions_is_a_column_of_the_last(self, locate: Locate) -> None:
        left = torch.zeros(2, 3, 4)
        right = left.clone()
        right[0, 2, 3] = right[1, 0, 1] = 1
        assert target_of(*locate([("responses", left)], [("responses", right)])) == Target(
            0, "actor_generate_sequences", 1
        )

    def test_of_responses_takes_equal_nan_for_equal(self, locate: Locate) -> None:
        left = torch.tensor([[float("nan"), 1.0, 2.0]])
        right = torch.tensor([[float("nan"), 1.0, 3.0]])
        pair = [[("responses", value)] for value in (left, right)]
        assert target_of(*locate(*pair)) == Target(0, "actor_generate_sequences", 2)

    @pytest.mark.parametrize(
        ("left", "right"),
        [(torch.ones(3), torch.zeros(3)), (torch.ones(2, 3), torch.zeros(3, 3)), (1.0, 2.0)],
        ids=["no rows", "other rows", "scalars"],
    )
    def test_of_responses_without_common_columns_is_every_token(self, locate: Locate, left: Any, right: Any) -> None:
        assert target_of(*locate([("responses", left)], [("responses", right)])) == Target(
            0, "actor_generate_sequences", ALL_TOKENS
        )

    def test_of_responses_whose_values_were_not_kept_is_every_token(self, locate: Locate) -> None:
        pair = [[("responses", torch.tensor([[1, value]]))] for value in (2, 3)]
        assert target_of(*locate(*pair, keep_values=False)) == Target(0, "actor_generate_sequences", ALL_TOKENS)

    def test_of_responses_whose_file_is_gone_is_every_token(self, locate: Locate) -> None:
        first, a, b = locate(*[[("responses", torch.tensor([[1, value]]))] for value in (2, 3)])
        (a.folder / "data/responses/step0/rank0/micro_step0/responses.npy").unlink()
        assert target_of(first, a, b) == Target(0, "actor_generate_sequences", ALL_TOKENS)
