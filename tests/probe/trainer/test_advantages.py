"""Advantages against formulas written out in plain Python."""

from __future__ import annotations

import statistics

import pytest
import torch

from probe.config import RLConfig
from probe.trainer.advantages import (
    generalised_advantages,
    group_advantages,
    mixed_groups,
    overlong_penalty,
    token_rewards,
    whitened,
)
from probe.trainer.parallel import Ranks

MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])


def test_group_advantages_are_normalised_in_each_group():
    rewards = [1.0, 0.0, 0.5, 0.25, 3.0, 3.5, 1.0, 0.0]
    expected = []
    for group in (rewards[:4], rewards[4:]):
        expected += [(x - statistics.mean(group)) / (statistics.stdev(group) + 1e-6) for x in group]
    assert group_advantages(torch.tensor(rewards), 4).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_group_of_equal_rewards_has_no_advantages():
    assert group_advantages(torch.full((4,), 0.3), 4).tolist() == [0, 0, 0, 0]


def test_only_groups_of_different_scores_teach():
    assert mixed_groups(torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0]), 2).tolist() == [False, True, False]


def test_the_reward_is_the_last_token_s_less_what_each_diverges():
    rewards = token_rewards(torch.tensor([1.0, 2.0, 3.0]), MASK, torch.full((3, 4), 0.25))
    assert rewards.tolist() == [[-0.25, -0.25, -0.25, 0.75], [-0.25, 1.75, 0, 0], [2.75, 0, 0, 0]]
    assert token_rewards(torch.tensor([1.0, 2.0, 3.0]), MASK, None)[0].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (0.5, 0.0)])
def test_generalised_advantages_are_sums_of_temporal_differences(gamma, lam):
    torch.manual_seed(0)
    rewards, values = torch.randn(3, 4) * MASK, torch.randn(3, 4)
    advantages, returns = generalised_advantages(rewards, values, MASK, gamma, lam)
    for row in range(3):
        length = int(MASK[row].sum())
        reward, value = rewards[row, :length].tolist(), [*values[row, :length].tolist(), 0.0]
        deltas = [reward[t] + gamma * value[t + 1] - value[t] for t in range(length)]
        expected = [
            sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, length)) for t in range(length)
        ]
        assert advantages[row, :length].tolist() == pytest.approx(expected, abs=1e-5)
        assert returns[row, :length].tolist() == pytest.approx(
            [a + v for a, v in zip(expected, value[:-1], strict=True)], abs=1e-5
        )
        assert not advantages[row, length:].any() and not returns[row, length:].any()


def test_without_lambda_s_decay_the_returns_are_the_discounted_rewards():
    values = torch.randn(3, 4)
    _, returns = generalised_advantages(MASK.float(), values, MASK, 1.0, 1.0)
    assert returns.flatten().tolist() == pytest.approx([4, 3, 2, 1, 2, 1, 0, 0, 1, 0, 0, 0], abs=1e-5)


def test_whitened_advantages_have_mean_0_and_deviation_1():
    torch.manual_seed(0)
    found = whitened(torch.randn(3, 4) * 7 + 3, MASK, Ranks(torch.device("cpu")))
    inside = found[MASK == 1].tolist()
    assert statistics.mean(inside) == pytest.approx(0, abs=1e-5)
    assert statistics.pstdev(inside) == pytest.approx(1, rel=1e-5)
    assert not found[MASK == 0].any()


def test_long_responses_are_punished_over_the_buffer():
    config = RLConfig(overlong_buffer=4, overlong_buffer_penalty_factor=2.0)
    lengths = torch.tensor([1, 6, 7, 8, 10])
    assert overlong_penalty(config, lengths, 10).tolist() == [0, 0, -0.5, -1.0, -2.0]
