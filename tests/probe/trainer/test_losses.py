"""The losses against formulas written out in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from probe.config import RLConfig
from probe.trainer.forward import log_probs_and_entropy, token_log_probs
from probe.trainer.losses import divergence, policy_loss, token_weights, value_loss
from probe.trainer.rollout import Rollout

MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
DAPO = {"clip_higher_enable": True, "clip_ratio_low": 0.1, "clip_ratio_high": 0.4, "init_kl_coef": 0.0}


def reference_loss(config, new, old, ref, advantages, weights):
    """The loss of one micro-batch, token by token; and the k3 estimates."""
    low, high = (
        (config.clip_ratio_low, config.clip_ratio_high)
        if config.clip_higher_enable
        else (config.clip_ratio, config.clip_ratio)
    )
    total, estimates = 0.0, []
    for row, advantage in enumerate(advantages):
        for column in range(len(new[row])):
            ratio = math.exp(new[row][column] - old[row][column])
            clipped = min(max(ratio, 1 - low), 1 + high)
            difference = ref[row][column] - new[row][column]
            estimates.append(math.exp(difference) - difference - 1)
            token = -min(ratio * advantage[column], clipped * advantage[column])
            total += weights[row][column] * (token + config.init_kl_coef * estimates[-1])
    return total, estimates


@pytest.mark.parametrize("options", [{}, {"clip_ratio": 0.05, "init_kl_coef": 0.0}, {"init_kl_coef": 2.0}, DAPO])
def test_the_policy_s_loss_is_the_clipped_one_with_k3(options):
    torch.manual_seed(0)
    config = RLConfig(**options)
    new, old, ref = (-torch.rand(3, 5) for _ in range(3))
    advantages, weights = torch.randn(3, 5), torch.rand(3, 5) * MASK
    loss = policy_loss(config, new, old, ref, advantages, weights)
    total, estimates = reference_loss(config, *(x.tolist() for x in (new, old, ref, advantages, weights)))
    assert loss.total.item() == pytest.approx(total, rel=1e-5, abs=1e-6)
    assert loss.kl.flatten().tolist() == pytest.approx(estimates, rel=1e-3, abs=1e-6)


def test_entropy_is_taken_off_the_loss():
    new, weights, entropy = -torch.rand(3, 5), torch.rand(3, 5), torch.rand(3, 5)
    arguments = (new, new, new, torch.zeros(3, 5), weights)
    plain = policy_loss(RLConfig(entropy_coeff=0.5), *arguments).total
    less = policy_loss(RLConfig(entropy_coeff=0.5), *arguments, entropy).total
    assert (plain - less).item() == pytest.approx(0.5 * (entropy * weights).sum().item(), rel=1e-5)


def test_kl_in_the_reward_is_not_in_the_loss():
    config = RLConfig(adv_estimator="gae", use_kl_in_reward=True, init_kl_coef=5.0)
    new, ref = -torch.rand(3, 5), -torch.rand(3, 5)
    assert policy_loss(config, new, new, ref, torch.zeros(3, 5), torch.ones(3, 5)).total.item() == 0


def test_divergences():
    same, other = -torch.rand(2, 2), -torch.rand(2, 2)
    assert divergence("k3", same, same).tolist() == [[0, 0], [0, 0]]
    assert (divergence("low_var_kl", same, other) >= 0).all()
    assert torch.equal(divergence("kl", same, other), same - other)


@pytest.mark.parametrize("token_level", [True, False])
def test_weights_sum_to_one_over_ranks_and_micro_batches(token_level):
    other = torch.tensor([[1, 1, 0, 0, 0]])
    tokens, responses = MASK.sum() + other.sum(), len(MASK) + len(other)
    parts = [token_weights(mask, token_level, tokens, responses) for mask in (MASK[:2], MASK[2:], other)]
    assert sum(part.sum().item() for part in parts) == pytest.approx(1)
    assert all((part * (1 - mask) == 0).all() for part, mask in zip(parts, (MASK[:2], MASK[2:], other), strict=True))
    rows = torch.cat([part.sum(dim=1) for part in parts])
    expected = [3 / 11, 5 / 11, 1 / 11, 2 / 11] if token_level else [1 / 4] * 4
    assert rows.tolist() == pytest.approx(expected)


def test_a_clipped_token_has_no_gradient_and_masked_ones_neither():
    new = torch.tensor([[0.0, 0.0, 0.0]], requires_grad=True)
    old = torch.tensor([[-1.0, 0.0, 0.0]])
    weights = torch.tensor([[0.5, 0.5, 0.0]])
    policy_loss(RLConfig(init_kl_coef=0.0), new, old, new.detach(), torch.ones(1, 3), weights).total.backward()
    assert new.grad.tolist() == [[0, -0.5, 0]]


def test_the_value_loss_takes_the_larger_of_both_errors():
    values, old = torch.tensor([[2.0, 0.1, -3.0]], requires_grad=True), torch.zeros(1, 3)
    returns, weights = torch.tensor([[0.0, 1.0, -9.0]]), torch.tensor([[0.5, 0.25, 0.25]])
    loss = value_loss(values, old, returns, 0.5, weights)
    expected = 0.5 * (0.5 * max(2.0**2, 0.5**2) + 0.25 * max(0.9**2, 0.9**2) + 0.25 * max(6.0**2, 8.5**2))
    assert loss.item() == pytest.approx(expected)
    loss.backward()
    assert values.grad[0, 2].item() == 0, "clipped"


def test_log_probs_are_those_of_the_model_whatever_the_padding(models):
    """A prompt padded on the left, against the bare sequence run alone."""
    torch.manual_seed(0)
    prompts = torch.tensor([[256, 256, 49, 43], [49, 43, 50, 61]])
    prompt_mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    responses, mask = torch.tensor([[51, 52, 257], [53, 257, 256]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    rollout = Rollout(prompts, prompt_mask, responses, mask, torch.zeros(2, 3))
    with torch.no_grad():
        found = token_log_probs(models.actor, rollout, temperature=0.7)
        again, entropy = log_probs_and_entropy(models.actor, rollout, 0.7, entropy=True)
        assert torch.equal(found, again)
        for row in range(2):
            prompt = prompts[row][prompt_mask[row] == 1]
            response = responses[row][mask[row] == 1]
            logits = models.actor(input_ids=torch.cat([prompt, response])[None]).logits[0, len(prompt) - 1 : -1]
            distribution = torch.distributions.Categorical(logits=logits / 0.7)
            expected = distribution.log_prob(response)
            assert found[row, : len(response)].tolist() == pytest.approx(expected.tolist(), abs=1e-4)
            assert entropy[row, : len(response)].tolist() == pytest.approx(distribution.entropy().tolist(), abs=1e-4)
