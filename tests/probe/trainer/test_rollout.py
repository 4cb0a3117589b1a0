"""Sampling: from the right distribution, by its own generator, with the log-probabilities of what was drawn."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from probe.config import ModelConfig, SamplingConfig, TrainingConfig
from probe.trainer.forward import token_log_probs
from probe.trainer.models import build_models
from probe.trainer.rollout import Rollout, SeededSampler, generate, pad_left
from probe.trainer.tokenizer import ByteTokenizer


def draw(config: SamplingConfig, logits: torch.Tensor, count: int, seed: int = 0) -> torch.Tensor:
    """Tokens drawn from one row of logits; int64 [count]."""
    sampler = SeededSampler(config, torch.Generator().manual_seed(seed))
    rows = logits.expand(count, -1)
    return sampler(torch.zeros(count, 1, dtype=torch.int64), rows).argmax(dim=-1)


class TestDistribution:
    @pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
    def test_tokens_are_drawn_as_often_as_their_probability_says(self, temperature):
        logits = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
        count = 100_000
        observed = torch.bincount(draw(SamplingConfig(temperature=temperature), logits, count), minlength=5)
        expected = torch.softmax(logits / temperature, dim=-1) * count
        chi_square = ((observed - expected) ** 2 / expected).sum().item()
        assert chi_square < 18.5  # 4 degrees of freedom, p = 0.001

    def test_top_k_draws_among_the_likeliest(self):
        logits = torch.tensor([2.0, 1.0, 0.0, 1.5])
        drawn = draw(SamplingConfig(top_k=2), logits, 5000)
        assert set(drawn.tolist()) == {0, 3}
        share = torch.softmax(torch.tensor([2.0, 1.5]), dim=-1)[0].item()
        assert (drawn == 0).float().mean().item() == pytest.approx(share, abs=0.03)

    def test_top_p_draws_among_those_that_hold_the_probability(self):
        logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
        assert set(draw(SamplingConfig(top_p=0.7), logits, 5000).tolist()) == {0, 1}

    def test_the_reported_log_probs_are_those_of_the_drawn_tokens(self):
        sampler = SeededSampler(SamplingConfig(temperature=0.5), torch.Generator().manual_seed(0))
        logits = torch.randn(50, 7)
        drawn = sampler(torch.zeros(50, 1, dtype=torch.int64), logits).argmax(dim=-1)
        expected = torch.log_softmax(logits / 0.5, dim=-1)[torch.arange(50), drawn]
        assert torch.equal(sampler.log_probs[0], expected)

    def test_rows_draw_independently(self):
        drawn = draw(SamplingConfig(), torch.zeros(2), 2000)
        assert 0.4 < (drawn[::2] == drawn[1::2]).float().mean().item() < 0.6


def roll(models, seed: int = 0, **sampling) -> Rollout:
    tokenizer = models.tokenizer
    rows = [tokenizer.encode("1+2="), tokenizer.encode("7=")] * 3
    prompts, mask = pad_left(rows, tokenizer.pad_token_id, torch.device("cpu"))
    generator = torch.Generator().manual_seed(seed)
    return generate(models.actor.eval(), prompts, mask, SamplingConfig(**sampling), tokenizer, generator)


@pytest.fixture
def ending(models):
    """Models that often end a response early."""
    with torch.no_grad():
        bias = torch.zeros(models.actor.config.vocab_size)
        bias[models.tokenizer.eos_token_id] = 4.5
        models.actor.lm_head.bias = torch.nn.Parameter(bias)
    return models


class TestGenerate:
    def test_the_same_seed_draws_the_same_and_another_does_not(self, models):
        one, again, other = roll(models, max_tokens=6), roll(models, max_tokens=6), roll(models, 1, max_tokens=6)
        assert torch.equal(one.responses, again.responses) and torch.equal(one.log_probs, again.log_probs)
        assert not torch.equal(one.responses, other.responses)

    def test_the_samples_of_one_prompt_differ(self, models):
        assert len({tuple(row) for row in roll(models, max_tokens=6).responses[::2].tolist()}) > 1

    def test_no_other_random_state_moves_or_matters(self, models):
        states = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        first = roll(models, max_tokens=6)
        assert (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()) == states
        torch.manual_seed(99)
        assert torch.equal(roll(models, max_tokens=6).responses, first.responses)

    def test_log_probs_are_the_model_s(self, ending):
        rollout = roll(ending, max_tokens=6, temperature=0.8)
        with torch.no_grad():
            expected = token_log_probs(ending.actor, rollout, temperature=0.8)
        inside = rollout.response_mask == 1
        assert rollout.log_probs[inside].tolist() == pytest.approx(expected[inside].tolist(), abs=1e-4)
        assert (rollout.log_probs[~inside] == 0).all()

    def test_shapes_and_dtypes(self, models):
        rollout = roll(models, max_tokens=5)
        assert rollout.prompts.shape == rollout.prompt_mask.shape == (6, 4)
        assert rollout.responses.shape == rollout.response_mask.shape == rollout.log_probs.shape == (6, 5)
        assert {rollout.responses.dtype, rollout.response_mask.dtype} == {torch.int64}
        assert rollout.log_probs.dtype == torch.float32
        assert rollout.sequences.shape == rollout.attention_mask.shape == (6, 9)

    def test_the_mask_ends_with_the_end_token(self, ending):
        tokenizer, lengths = ending.tokenizer, set()
        for seed in range(4):
            rollout = roll(ending, seed, max_tokens=6)
            for row, mask in zip(rollout.responses.tolist(), rollout.response_mask.tolist(), strict=True):
                length = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else 6
                lengths.add(length)
                assert mask == [1] * length + [0] * (6 - length)
                assert row[length:] == [tokenizer.pad_token_id] * (6 - length)
        assert {1, 6} < lengths

    def test_when_all_end_early_the_shape_stays(self, ending):
        with torch.no_grad():
            ending.actor.lm_head.bias[ending.tokenizer.eos_token_id] = 1e4
        rollout = roll(ending, max_tokens=6)
        assert rollout.response_mask.tolist() == [[1, 0, 0, 0, 0, 0]] * 6
        assert rollout.responses.shape == rollout.log_probs.shape == (6, 6)

    def test_one_token_for_end_and_padding_is_told_apart(self, ending):
        class OneToken(ByteTokenizer):
            pad_token_id = ByteTokenizer.eos_token_id

        models = type(ending)(ending.actor, ending.reference, None, OneToken())
        rollout, plain = roll(models, max_tokens=6), roll(ending, max_tokens=6)
        assert torch.equal(rollout.response_mask, plain.response_mask)
        assert torch.equal(rollout.log_probs, plain.log_probs)

    @pytest.mark.parametrize(
        "setting",
        [{"repetition_penalty": 1.3}, {"min_new_tokens": 4}, {"suppress_tokens": [46, 32, 79]}, {"eos_token_id": [48]}],
        ids=lambda setting: next(iter(setting)),
    )
    def test_a_model_folder_s_own_generation_settings_do_not_change_what_is_drawn(self, setting, models, tmp_path):
        models.actor.save_pretrained(tmp_path)
        (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 20, **setting}))
        loaded = build_models(TrainingConfig(model=ModelConfig(path=str(tmp_path))), torch.device("cpu"))
        one, other = roll(models, max_tokens=12), roll(loaded, max_tokens=12)
        assert torch.equal(one.responses, other.responses)
        assert torch.equal(one.log_probs, other.log_probs)


class TestRollout:
    def test_select_and_join_are_each_other_s_reverse(self, models):
        rollout = roll(models, max_tokens=3)
        parts = [rollout.select([0, 1, 2, 3]), rollout.select([4, 5])]
        assert [len(part.prompts) for part in parts] == [4, 2]
        joined = Rollout.join(parts, 256)
        for name in ("prompts", "prompt_mask", "responses", "response_mask", "log_probs"):
            assert torch.equal(getattr(joined, name), getattr(rollout, name))

    def test_prompts_are_padded_on_the_left(self):
        ids, mask = pad_left([[1], [2, 3, 4]], 9, torch.device("cpu"))
        assert (ids.tolist(), mask.tolist()) == ([[9, 9, 1], [2, 3, 4]], [[0, 0, 1], [1, 1, 1]])
