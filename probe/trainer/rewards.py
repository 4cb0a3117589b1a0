"""Rule rewards: functions from a response and its answer to a score between 0 and 1."""

from __future__ import annotations

import re
from collections.abc import Callable

from probe.config import RLConfig


def acc(response: str, answer: str, ended: bool) -> float:
    """1 when the response ended and is the answer, else 0."""
    return float(ended and response.strip() == answer.strip())


def format(response: str, answer: str, ended: bool) -> float:  # noqa: A001  (MindSpeed-RL's name for it)
    """The share of a response that is digits, its end counted as one."""
    length = len(response) + 1
    return (sum(character in "0123456789" for character in response) + ended * bool(response)) / length


def base_acc(response: str, answer: str, ended: bool) -> float:
    """1 when the response holds the answer as a number of its own, else 0."""
    del ended
    return float(re.search(rf"(?<!\d){re.escape(answer.strip())}(?!\d)", response) is not None)


def signed_acc(response: str, answer: str, ended: bool) -> float:
    """1 when the response ended and is the answer, else -1."""
    return 2 * acc(response, answer, ended) - 1


def strict_format(response: str, answer: str, ended: bool) -> float:
    """1 when the response is digits and an end, and nothing else."""
    del answer
    return float(ended and re.fullmatch(r"[0-9]+", response) is not None)


VERIFIERS: dict[str, Callable[[str, str, bool], float]] = {
    "acc": acc,
    "base_acc": base_acc,
    "acc_for_ppo": signed_acc,
    "acc_for_dapo": signed_acc,
    "format": format,
    "strict_format": strict_format,
}
"""Rules by the name that ``rl_config.verifier_function`` gives them."""


def scores(config: RLConfig, response: str, answer: str, ended: bool) -> dict[str, float]:
    """The weighted score of each of a configuration's rules, by name.

    Args:
        config: Names and weights.
        response: Decoded, without special tokens.
        answer: What is right.
        ended: Whether the response has its end token.
    """
    pairs = zip(config.verifier_function, config.verifier_weight, strict=True)
    return {name: weight * VERIFIERS[name](response, answer, ended) for name, weight in pairs}
