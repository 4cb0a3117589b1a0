"""Lining up two sequences of keys: what both have, what only one has, in an order that keeps both."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def align(left: Sequence[Key], right: Sequence[Key]) -> list[tuple[Key, int | None, int | None]]:
    """Merges two sequences of distinct keys.

    Args:
        left: Keys of one run, in its order.
        right: Keys of the other.

    Returns:
        Every key once, with its index in each sequence or None. A key that only one side has stands where that side
        has it; where both have the same keys in another order, the left order counts.

    Example:
        >>> align("abd", "acd")
        [('a', 0, 0), ('b', 1, None), ('c', None, 1), ('d', 2, 2)]
    """
    in_left = {key: index for index, key in enumerate(left)}
    in_right = {key: index for index, key in enumerate(right)}
    merged: list[tuple[Key, int | None, int | None]] = []
    position = 0
    for index, key in enumerate(left):
        if key in in_right:
            while position < len(right) and right[position] != key and right[position] not in in_left:
                merged.append((right[position], None, position))
                position += 1
            merged.append((key, index, in_right[key]))
            if position < len(right) and right[position] == key:
                position += 1
        else:
            merged.append((key, index, None))
    placed = {key for key, _, _ in merged}
    merged += [(key, None, index) for key, index in in_right.items() if key not in placed]
    return merged
