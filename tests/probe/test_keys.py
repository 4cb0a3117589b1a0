"""Dotted keys: what is shown reads back, and only what exists is known."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from probe.collect import environment
from probe.keys import CONFIGURATIONS, ENVIRONMENT, close_keys, is_below, is_of_environment, parse_key, show_key

PARTS = st.lists(st.text(max_size=200), min_size=1, max_size=5)


@given(section=st.sampled_from([CONFIGURATIONS, ENVIRONMENT]), parts=PARTS)
def test_a_key_reads_back(section: str, parts: list[str]) -> None:
    path = (section, *parts)
    assert parse_key(show_key(path)) == path


@given(left=PARTS, right=PARTS)
def test_two_keys_are_never_shown_alike(left: list[str], right: list[str]) -> None:
    one, two = (show_key((CONFIGURATIONS, *parts)) for parts in (left, right))
    assert (one == two) == (left == right)


def test_an_empty_key_is_not_a_section_of_all() -> None:
    for text in ("", ".", ".."):
        assert not is_below(("configurations", "trainer"), parse_key(text))


def test_every_key_of_an_environment_is_known() -> None:
    described = environment.describe({"num_threads": 1}, {"actor": torch.nn.Linear(2, 2)})

    def leaves(value: object, path: tuple[str, ...]) -> list[tuple[str, ...]]:
        if isinstance(value, dict) and value:
            return [leaf for key, child in value.items() for leaf in leaves(child, (*path, key))]
        return [path]

    found = leaves(described, (ENVIRONMENT,))
    assert [path for path in found if not is_of_environment(path)] == []
    assert (ENVIRONMENT, "versions", "cann") in found
    assert (ENVIRONMENT, "models", "actor", "dtypes") in found
    assert not is_of_environment((ENVIRONMENT, "torch"))
    assert not is_of_environment(("configurations", "versions"))
    assert is_of_environment((ENVIRONMENT, "versions"))


def test_the_same_last_part_is_closest() -> None:
    known = [parse_key(key) for key in ("environment.versions.torch", "trainer.kind", "environment.versions.numpy")]
    assert close_keys(parse_key("environment.torch"), known)[0] == "environment.versions.torch"
    assert close_keys(parse_key("environment.versions.nunpy"), known)[0] == "environment.versions.numpy"
    assert close_keys(parse_key("zzz"), known) == []
