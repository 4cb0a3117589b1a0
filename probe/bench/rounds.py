"""Contenders in turns, and what their seconds say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations
from statistics import median
from typing import Any

Seconds = dict[str, list[float]]
"""Seconds of each contender, one entry a round."""


def run_rounds(contenders: Mapping[str, Callable[[], float]], rounds: int) -> Seconds:
    """Runs every contender once a round, each round in another order, until all orders were used.

    Args:
        contenders: What to run, by name; each returns the seconds that count.
        rounds: How many, at least 1.

    Example:
        >>> run_rounds({"a": lambda: 1.0, "b": lambda: 2.0}, 2)
        {'a': [1.0, 1.0], 'b': [2.0, 2.0]}
    """
    orders = list(permutations(contenders))
    seconds: Seconds = {name: [] for name in contenders}
    for number in range(rounds):
        for name in orders[number % len(orders)]:
            seconds[name].append(contenders[name]())
    return seconds


def ratio(seconds: Seconds, over: str, under: str) -> float | None:
    """The median over the rounds of one contender's seconds by another's of the same round.

    Returns:
        None when either of them did not run.

    Example:
        >>> ratio({"a": [2.0, 3.0, 9.0], "b": [1.0, 1.0, 1.0]}, "a", "b")
        3.0
    """
    if over not in seconds or under not in seconds:
        return None
    return round(median(one / two for one, two in zip(seconds[over], seconds[under], strict=True)), 4)


def described(seconds: Seconds) -> dict[str, Any]:
    """The contenders for the document: seconds of each round and their median."""
    return {
        name: {"seconds": [round(each, 6) for each in found], "median_seconds": round(median(found), 6)}
        for name, found in seconds.items()
    }
