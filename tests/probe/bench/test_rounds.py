"""Turns and ratios."""

from __future__ import annotations

from probe.bench.rounds import described, ratio, run_rounds


def test_every_order_comes_once_before_one_comes_again():
    calls = []
    names = ("a", "b", "c")
    contenders = {name: lambda name=name: float(calls.append(name) or len(calls)) for name in names}
    seconds = run_rounds(contenders, 7)
    orders = ["".join(calls[start : start + 3]) for start in range(0, 21, 3)]
    assert len(set(orders[:6])) == 6
    assert orders[6] == orders[0]
    assert all(len(found) == 7 for found in seconds.values())
    assert seconds["a"][0] == 1.0  # each contender's seconds stand under its own name
    assert seconds["c"][0] == 3.0


def test_a_ratio_is_taken_within_each_round():
    slow_machine_in_the_second_round = {"ours": [1.0, 10.0, 1.2], "theirs": [2.0, 20.0, 2.4]}
    assert ratio(slow_machine_in_the_second_round, "theirs", "ours") == 2.0
    assert ratio({"ours": [1.0]}, "theirs", "ours") is None


def test_seconds_are_described_by_their_median():
    assert described({"ours": [3.0, 1.0, 2.0]}) == {"ours": {"seconds": [3.0, 1.0, 2.0], "median_seconds": 2.0}}
