"""Lining up the events of two traces where one run made calls that the other did not.

Three looks, from the surest to the weakest: events with the same content, events with the same name and call number,
events with the same name. Each takes what occurs once on both sides as anchors, the most of them that are in the same
order, and goes on between them; what is left is a plain longest common subsequence.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence

from probe.store.trace_events import ITEMS, KIND, NO_EVENT, parse_event

WINDOW = 16_384
"""Most events of each trace that are lined up together."""
WINDOW_BYTES = 1 << 26
SURE_RUN = 8
"""Events in a row that have to be the same before a shift is taken for one."""

_NEAR = 4096
_MOST_CELLS = 250_000
"""Largest table for a longest common subsequence; beyond it, events between two anchors are taken for unlike."""
_MOST_CANDIDATES = 4096
_DEEPEST = 40

Pairs = list[tuple[int, int]]
Tokens = Sequence[Hashable]


def align_events(left: list[bytes], right: list[bytes]) -> Pairs:
    """Lines up two lists of lines.

    Args:
        left: Lines of one trace.
        right: Lines of the other.

    Returns:
        Pairs of indexes, both rising; what is in no pair has no counterpart.
    """
    views = [(_contents(left), _contents(right)), *zip(_keys(left), _keys(right), strict=True)]
    pairs: Pairs = []
    _match(views, 0, (0, len(left)), (0, len(right)), pairs, 0)
    return pairs


def is_shifted(left: list[bytes], right: list[bytes]) -> bool:
    """Whether two traces that differ from here on go on the same with a shift, rather than differ in value.

    Args:
        left: Lines of one trace, from the first that differs.
        right: Lines of the other.
    """
    one, two = _contents(left), _contents(right)
    first: dict[Hashable, int] = {}
    for place, content in enumerate(two):
        first.setdefault(content, place)
    found = [(place, first[content]) for place, content in enumerate(one) if content in first]
    found += [(place, place) for place, (x, y) in enumerate(zip(one, two, strict=False)) if x == y]
    for i, j in sorted(found, key=lambda at: (max(at), at[0] != at[1]))[:_MOST_CANDIDATES]:
        wanted = max(SURE_RUN, 0 if i == j else i + j)
        run = 0
        while run < wanted and i + run < len(one) and j + run < len(two) and one[i + run] == two[j + run]:
            run += 1
        at_end = i + run == len(one) and j + run == len(two)
        if run >= wanted or (at_end and run >= i + j):
            return i != j
    return False


def longest_common_subsequence(left: Tokens, right: Tokens) -> Pairs:
    """The longest common subsequence of two short sequences; of several, the one that takes the earliest.

    Example:
        >>> longest_common_subsequence("abcd", "acxd")
        [(0, 0), (2, 1), (3, 3)]
    """
    height, width = len(left), len(right)
    table = [[0] * (width + 1) for _ in range(height + 1)]
    for i in range(height - 1, -1, -1):
        row, below = table[i], table[i + 1]
        for j in range(width - 1, -1, -1):
            row[j] = below[j + 1] + 1 if left[i] == right[j] else max(below[j], row[j + 1])
    pairs, i, j = [], 0, 0
    while i < height and j < width:
        if left[i] == right[j]:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif table[i + 1][j] >= table[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def equal_lines(left: bytes, right: bytes) -> int:
    """How many bytes of whole lines two texts begin with that are the same."""
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    low, high = 0, size  # the first unlike byte lies in between
    if left[:_NEAR] != right[:_NEAR]:
        high = min(high, _NEAR)
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return left.rfind(b"\n", 0, low) + 1


def _match(
    views: list[tuple[list[Hashable], list[Hashable]]],
    level: int,
    one: tuple[int, int],
    two: tuple[int, int],
    pairs: Pairs,
    depth: int,
) -> None:
    """Adds the pairs of two ranges, looking at them as the views from a level on say."""
    (start, end), (other, other_end) = one, two
    left, right = views[level]
    while start < end and other < other_end and left[start] == right[other]:
        pairs.append((start, other))
        start, other = start + 1, other + 1
    same_end: Pairs = []
    while start < end and other < other_end and left[end - 1] == right[other_end - 1]:
        end, other_end = end - 1, other_end - 1
        same_end.append((end, other_end))
    if start < end and other < other_end:
        anchors = _anchors(left[start:end], right[other:other_end]) if depth < _DEEPEST else []
        if anchors:
            at_left, at_right = start, other
            for i, j in anchors:
                if at_left < start + i and at_right < other + j:
                    _match(views, level, (at_left, start + i), (at_right, other + j), pairs, depth + 1)
                pairs.append((start + i, other + j))
                at_left, at_right = start + i + 1, other + j + 1
            _match(views, level, (at_left, end), (at_right, other_end), pairs, depth + 1)
        elif level + 1 < len(views):
            _match(views, level + 1, (start, end), (other, other_end), pairs, depth)
        elif (end - start) * (other_end - other) <= _MOST_CELLS:
            found = longest_common_subsequence(left[start:end], right[other:other_end])
            pairs.extend((start + i, other + j) for i, j in found)
    pairs.extend(reversed(same_end))


def _anchors(left: Tokens, right: Tokens) -> Pairs:
    """What occurs once on both sides: the longest selection that is in the same order."""
    in_left, in_right = Counter(left), Counter(right)
    places = {token: place for place, token in enumerate(right) if in_right[token] == 1}
    found = [(place, places[token]) for place, token in enumerate(left) if in_left[token] == 1 and token in places]
    ends: list[int] = []  # the lowest end of a rising selection of each length
    owners: list[int] = []
    before: list[int] = []
    for number, (_, place) in enumerate(found):
        length = bisect_left(ends, place)
        before.append(owners[length - 1] if length else -1)
        ends[length : length + 1] = [place]
        owners[length : length + 1] = [number]
    chosen: Pairs = []
    number = owners[-1] if owners else -1
    while number >= 0:
        chosen.append(found[number])
        number = before[number]
    return chosen[::-1]


def _contents(lines: list[bytes]) -> list[Hashable]:
    """Everything of each line but its call and position."""
    return [line[line.find(ITEMS) :] for line in lines]


def _keys(lines: list[bytes]) -> tuple[list[Hashable], list[Hashable]]:
    """What names each event, with and without its call number."""
    keys: list[Hashable] = []
    numbered: list[Hashable] = []
    for line in lines:
        tail = line[line.find(KIND) :]
        call = line[: line.find(b',"i":')]
        if b',"rows":' in tail or b',"note":' in tail:
            key = _parsed_key(line)
            keys.append(key)
            numbered.append((call, key))
            continue
        start, end = tail.find(b',"module":'), tail.find(b',"name":')
        if 0 <= start < end:
            tail = tail[:start] + tail[end:]
        keys.append(tail)
        numbered.append(call + tail)
    return numbered, keys


def _parsed_key(line: bytes) -> Hashable:
    try:
        return parse_event(line).key
    except NO_EVENT:
        return line  # whoever reads it says so
