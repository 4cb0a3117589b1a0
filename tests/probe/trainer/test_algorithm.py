"""GRPO against formulas written out in plain Python."""

from __future__ import annotations

import math
import statistics

import pytest
import torch

from probe.config import RLConfig
from probe.trainer.algorithm import group_advantages, grpo_loss, token_log_probs
from probe.trainer.rollout import Rollout


def test_advantages_are_normalised_in_each_group():
    rewards = [1.0, 0.0, 0.5, 0.25, 3.0, 3.5, 1.0, 0.0]
    expected = []
    for group in (rewards[:4], rewards[4:]):
        expected += [(x - statistics.mean(group)) / (statistics.stdev(group) + 1e-6) for x in group]
    assert group_advantages(torch.tensor(rewards), 4).tolist() == pytest.approx(expected, rel=1e-5)


def test_a_group_of_equal_rewards_has_no_advantages():
    assert group_advantages(torch.full((4,), 0.3), 4).tolist() == [0, 0, 0, 0]


def reference_loss(config, new, old, ref, advantages, mask, tokens):
    """The loss of one micro-batch, token by token; and the k3 estimates."""
    total, estimates = 0.0, []
    for row, advantage in enumerate(advantages):
        for column in range(len(new[row])):
            ratio = math.exp(new[row][column] - old[row][column])
            clipped = min(max(ratio, 1 - config.clip_ratio), 1 + config.clip_ratio)
            difference = ref[row][column] - new[row][column]
            estimates.append(math.exp(difference) - difference - 1)
            if mask[row][column]:
                total += -min(ratio * advantage, clipped * advantage) + config.init_kl_coef * estimates[-1]
    return total / tokens, estimates


@pytest.mark.parametrize(
    "config", [RLConfig(), RLConfig(clip_ratio=0.05, init_kl_coef=0.0), RLConfig(init_kl_coef=2.0)]
)
def test_the_loss_is_the_clipped_one_with_k3(config):
    torch.manual_seed(0)
    new, old, ref = (-torch.rand(3, 5) for _ in range(3))
    advantages, mask = torch.tensor([1.5, -0.7, 0.0]), torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
    loss = grpo_loss(config, new, old, ref, advantages, mask, torch.tensor(20))
    total, estimates = reference_loss(
        config, new.tolist(), old.tolist(), ref.tolist(), advantages.tolist(), mask.tolist(), 20
    )
    assert loss.total.item() == pytest.approx(total, rel=1e-5, abs=1e-6)
    assert loss.kl.flatten().tolist() == pytest.approx(estimates, rel=1e-3, abs=1e-6)


def test_micro_batches_add_up_to_the_whole_batch():
    torch.manual_seed(0)
    new, old, ref = (-torch.rand(4, 3) for _ in range(3))
    advantages, mask = torch.randn(4), torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1]])
    tokens = mask.sum()
    whole = grpo_loss(RLConfig(), new, old, ref, advantages, mask, tokens).total
    inputs = zip(*(x.split(2) for x in (new, old, ref, advantages, mask)), strict=True)
    parts = [grpo_loss(RLConfig(), *part, tokens).total for part in inputs]
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-5)


def test_k3_is_never_negative_and_zero_for_equal_policies():
    same = -torch.rand(2, 2)
    arguments = (torch.zeros(2), torch.ones(2, 2), torch.tensor(4))
    assert grpo_loss(RLConfig(), same, same, same, *arguments).kl.tolist() == [[0, 0], [0, 0]]
    assert (grpo_loss(RLConfig(), same, same, -torch.rand(2, 2), *arguments).kl >= 0).all()


def test_a_clipped_token_has_no_gradient_and_masked_ones_neither():
    new = torch.tensor([[0.0, 0.0, 0.0]], requires_grad=True)
    old = torch.tensor([[-1.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0]])
    grpo_loss(RLConfig(init_kl_coef=0.0), new, old, new.detach(), torch.ones(1), mask, torch.tensor(2)).total.backward()
    assert new.grad.tolist() == [[0, -0.5, 0]]


def test_log_probs_are_those_of_the_model_whatever_the_padding(models):
    """A prompt padded on the left, against the bare sequence run alone."""
    torch.manual_seed(0)
    prompts = torch.tensor([[256, 256, 49, 43], [49, 43, 50, 61]])
    prompt_mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    responses, mask = torch.tensor([[51, 52, 257], [53, 257, 256]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    rollout = Rollout(prompts, prompt_mask, responses, mask, torch.zeros(2, 3))
    with torch.no_grad():
        found = token_log_probs(models.actor, rollout, temperature=0.7)
        for row in range(2):
            prompt = prompts[row][prompt_mask[row] == 1]
            response = responses[row][mask[row] == 1]
            logits = models.actor(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
            expected = torch.log_softmax(logits / 0.7, dim=-1)[torch.arange(len(response)), response]
            assert found[row, : len(response)].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
