"""Rule rewards."""

from __future__ import annotations

import pytest

from probe.config import RLConfig
from probe.trainer import rewards


@pytest.mark.parametrize(
    ("response", "ended", "reward"),
    [("12", True, 1), (" 12 ", True, 1), ("12", False, 0), ("1", True, 0), ("123", True, 0), ("", True, 0)],
)
def test_acc_wants_the_answer_and_its_end(response, ended, reward):
    assert rewards.acc(response, "12", ended) == reward


@pytest.mark.parametrize(
    ("response", "ended", "reward"),
    [
        ("12", True, 1),
        ("12", False, 2 / 3),
        ("1x", True, 2 / 3),
        ("xy", True, 1 / 3),
        ("xy", False, 0),
        ("", True, 0),
        ("", False, 0),
        ("²", False, 0),
    ],
)
def test_format_is_the_share_of_digits_and_an_end(response, ended, reward):
    assert rewards.format(response, "12", ended) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("response", "ended", "base", "signed", "strict"),
    [("12", True, 1, 1, 1), ("12", False, 1, -1, 0), ("it is 12.", True, 1, -1, 0), ("123", True, 0, -1, 1)],
)
def test_the_other_rules(response, ended, base, signed, strict):
    assert rewards.base_acc(response, "12", ended) == base
    assert rewards.VERIFIERS["acc_for_ppo"](response, "12", ended) == signed
    assert rewards.VERIFIERS["acc_for_dapo"](response, "12", ended) == signed
    assert rewards.strict_format(response, "12", ended) == strict


def test_rules_are_weighted():
    config = RLConfig(verifier_function=["format", "acc"], verifier_weight=[0.5, 2.0])
    assert rewards.scores(config, "7", "7", True) == {"format": 0.5, "acc": 2.0}
    assert rewards.scores(config, "8", "7", True) == {"format": 0.5, "acc": 0.0}


def test_every_rule_that_a_configuration_may_name_exists():
    from typing import get_args

    from probe.config.algorithm import Verifier

    assert set(rewards.VERIFIERS) == set(get_args(Verifier))
