"""Lining up two traces: what is missing and extra, and what is only shifted by it."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.compare.trace_align import align_events, is_shifted, longest_common_subsequence
from tests.probe.traces import Event, Recorder, trace_bytes


def lines(events: list[Event]) -> list[bytes]:
    return trace_bytes(events).splitlines(keepends=True)


def calls(*wanted: tuple[str, object]) -> list[Event]:
    """Calls of modules with what they got, numbered by name."""
    run = Recorder()
    for name, content in wanted:
        run.of_module("forward_input", name, content)
    return run.events


def alone(left: list[Event], right: list[Event]) -> tuple[list[int], list[int]]:
    """The positions that have no counterpart, on either side."""
    pairs = align_events(lines(left), lines(right))
    assert pairs == sorted(pairs)
    assert all(one < two and other < another for (one, other), (two, another) in itertools.pairwise(pairs))
    assert all(left[i]["name"] == right[j]["name"] for i, j in pairs)
    in_left, in_right = {i for i, _ in pairs}, {j for _, j in pairs}
    return [i for i in range(len(left)) if i not in in_left], [j for j in range(len(right)) if j not in in_right]


def longest(left: str, right: str) -> int:
    """The length of a longest common subsequence, by trying all."""
    for size in range(len(left), -1, -1):
        for chosen in itertools.combinations(left, size):
            rest = iter(right)
            if all(token in rest for token in chosen):
                return size
    raise AssertionError


@settings(max_examples=100, deadline=None)
@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_a_common_subsequence_is_the_longest(left: str, right: str) -> None:
    pairs = longest_common_subsequence(left, right)
    assert all(left[i] == right[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in itertools.pairwise(pairs))
    assert len(pairs) == longest(left, right)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 3)), max_size=14), st.data())
def test_what_was_taken_out_is_all_that_is_missing(wanted: list[tuple[str, int]], data: st.DataObject) -> None:
    kept = [call for call in wanted if data.draw(st.booleans())]
    missing, extra = alone(calls(*wanted), calls(*kept))
    matched = len(wanted) - len(missing)
    assert len(kept) - len(extra) == matched
    if len(set(wanted)) == len(wanted):  # nothing else to take it for
        assert extra == []
        assert len(missing) == len(wanted) - len(kept)


@pytest.mark.parametrize(
    ("left", "right", "missing", "extra"),
    [
        pytest.param("a0 b0 c0", "a0 c0", [1], [], id="a call is missing"),
        pytest.param("a0 c0", "a0 b0 c0", [], [1], id="a call is extra"),
        pytest.param("a0 b0 c0", "a0 x0 c0", [1], [1], id="another module in its place"),
        pytest.param("a0 a1 a2 b0", "a1 a2 b0", [0], [], id="the first of several calls"),
        pytest.param("a0 a1 a2 b0", "a0 a2 b0", [1], [], id="one in the middle"),
        pytest.param("a0 a1 b0", "a0 a0 a1 b0", [], [1], id="a call is repeated"),
        pytest.param("a0 b0 a1", "a0 a0 b0 a1", [], [1], id="the shared module is called again later"),
        pytest.param("a0 b0 c0 d0", "a0 b9 d9", [2], [], id="and what follows differs"),
        pytest.param("a0 a1 b0 c0", "a7 b7 c7", [1], [], id="a second call, all values differ"),
    ],
)
def test_the_call_and_not_the_shift_behind_it(left: str, right: str, missing: list[int], extra: list[int]) -> None:
    one, two = (calls(*[(word[0], word[1]) for word in text.split()]) for text in (left, right))
    assert alone(one, two) == (missing, extra)


def test_thousands_of_calls_with_pieces_missing() -> None:
    source = random.Random(7)
    wanted = [(f"m{source.randrange(40)}", source.random()) for _ in range(6000)]
    gone = {*range(100, 160), 2000, 2001, *range(4000, 4500)}
    kept = [call for position, call in enumerate(wanted) if position not in gone]
    assert alone(calls(*wanted), calls(*kept)) == (sorted(gone), [])


class TestHiddenShifts:
    """The names are the same, one run made a pass less: seen by what the events hold."""

    def test_a_pass_less_whose_followers_are_the_same(self) -> None:
        passes = [[(name, number) for name in ("root", "embed", "mlp", "norm")] for number in range(6)]
        left, right = (calls(*sum(chosen, [])) for chosen in (passes, passes[1:]))
        assert is_shifted(lines(left), lines(right))

    def test_values_that_differ_from_here_on_are_no_shift(self) -> None:
        names = [f"m{number % 5}" for number in range(60)]
        assert not is_shifted(
            lines(calls(*[(name, 1) for name in names])), lines(calls(*[(name, 2) for name in names]))
        )

    def test_one_value_that_differs_is_no_shift(self) -> None:
        wanted = [(f"m{number % 5}", number) for number in range(60)]
        assert not is_shifted(lines(calls(*wanted)), lines(calls(("m0", "other"), *wanted[1:])))

    def test_the_same_token_in_another_pass_is_no_shift(self) -> None:
        """After a drawn token differs, a later pass may embed the token that the other run embedded before."""

        def generation(tokens: list[int]) -> list[Event]:
            run = Recorder()
            for position, token in enumerate(tokens):
                for name in ("root", "embed", "norm", "q", "k", "v"):
                    run.of_module("forward_input", name, token)
                for number in range(40):
                    run.of_module("forward_input", f"m{number}", (tuple(tokens[: position + 1])))
            return run.events

        assert not is_shifted(lines(generation([5, 7, 9, 11])), lines(generation([7, 9, 11, 13])))

    def test_what_comes_to_the_end_of_both_is_a_shift(self) -> None:
        assert is_shifted(lines(calls(("a", 0), ("a", 1))), lines(calls(("a", 1))))
