"""Mini-batches and micro-batches: every response once, and as many parts on every rank."""

from __future__ import annotations

from itertools import chain

import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.config import RLConfig
from probe.trainer.batches import micro_batches, mini_batches
from probe.trainer.parallel import Ranks

ALONE = Ranks(torch.device("cpu"))


class OtherHasMore(Ranks):
    """A rank whose neighbour needs more parts."""

    def __init__(self, parts: int) -> None:
        super().__init__(torch.device("cpu"), 0, 2)
        self._parts = parts

    def largest(self, value: int) -> int:
        return max(value, self._parts)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 60), st.integers(1, 9), st.integers(1, 20))
def test_micro_batches_hold_every_response_once_in_order(lengths, tokens, size, others):
    rows = list(range(len(lengths)))
    for dynamic in (False, True):
        config = RLConfig(use_dynamic_bsz=dynamic, max_packing_token_size=tokens)
        parts = micro_batches(config, rows, lengths, size, OtherHasMore(min(others, len(rows))))
        assert list(chain(*parts)) == rows
        assert all(parts)
        for part in parts:
            if dynamic:
                assert len(part) == 1 or sum(lengths[row] for row in part) <= tokens
            else:
                assert len(part) <= size
        if dynamic:
            assert len(parts) >= min(others, len(rows))


def test_another_rank_that_needs_more_parts_is_kept_up_with():
    config = RLConfig(use_dynamic_bsz=True, max_packing_token_size=100)
    assert micro_batches(config, [0, 1, 2, 3], [5] * 4, 1, OtherHasMore(1)) == [[0, 1, 2, 3]]
    assert micro_batches(config, [0, 1, 2, 3], [5] * 4, 1, OtherHasMore(3)) == [[0], [1], [2, 3]]


def test_every_epoch_has_every_response_and_an_order_of_its_own():
    config = RLConfig(epochs=3, shuffle_mini_batch=True)
    batches = list(mini_batches(config, 6, 2, torch.Generator().manual_seed(1)))
    assert len(batches) == 9
    epochs = [list(chain(*batches[start : start + 3])) for start in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(6)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert list(mini_batches(config, 6, 2, torch.Generator().manual_seed(1))) == batches
    assert list(mini_batches(RLConfig(epochs=2), 3, 2, torch.Generator())) == [[0, 1], [2], [0, 1], [2]]
