"""Rule rewards: functions from a response and its answer to a score between 0 and 1."""

from __future__ import annotations

from collections.abc import Callable

from probe.config import RLConfig


def acc(response: str, answer: str, ended: bool) -> float:
    """1 when the response ended and is the answer, else 0."""
    return float(ended and response.strip() == answer.strip())


def format(response: str, answer: str, ended: bool) -> float:  # noqa: A001  (MindSpeed-RL's name for it)
    """The share of a response that is digits, its end counted as one."""
    length = len(response) + 1
    return (sum(character in "0123456789" for character in response) + ended * bool(response)) / length


VERIFIERS: dict[str, Callable[[str, str, bool], float]] = {"acc": acc, "format": format}
"""Rules by the name that ``rl_config.verifier_function`` gives them."""


def score(config: RLConfig, response: str, answer: str, ended: bool) -> float:
    """The weighted sum of a configuration's rules.

    Args:
        config: Names and weights.
        response: Decoded, without special tokens.
        answer: What is right.
        ended: Whether the response has its end token.
    """
    pairs = zip(config.verifier_function, config.verifier_weight, strict=True)
    return sum(weight * VERIFIERS[name](response, answer, ended) for name, weight in pairs)
