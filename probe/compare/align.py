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
    in_left = set(left)
    in_right = {key: index for index, key in enumerate(right)}
    merged: list[tuple[Key, int | None, int | None]] = []
    position = 0

    def take_right_only(end: int) -> None:
        nonlocal position
        merged.extend((right[i], None, i) for i in range(position, end) if right[i] not in in_left)
        position = max(position, end)

    for index, key in enumerate(left):
        place = in_right.get(key)
        if place is not None:
            take_right_only(place)
        merged.append((key, index, place))
    take_right_only(len(right))
    return merged
