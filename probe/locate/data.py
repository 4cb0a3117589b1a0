"""Whether two differing data records hold the same rows in another order, or another rank's rows."""

from __future__ import annotations

from collections import Counter

import numpy as np

from probe.compare import Entry, KeyDataComparison
from probe.errors import DumpError
from probe.store.reader import Array, Dump, read_values


def is_permutation(entry: Entry, a: Dump, b: Dump) -> bool:
    """Whether both records have the same rows (first axis), in another order. False where values were not kept."""
    if entry.a is None or entry.b is None or not entry.a.file or not entry.b.file:
        return False
    try:
        left, right = read_values(a.folder, entry.a), read_values(b.folder, entry.b)
    except DumpError:
        return False
    if left.shape != right.shape or left.dtype != right.dtype or left.ndim == 0 or left.size == 0:
        return False
    return _rows(left) == _rows(right)


def _rows(values: Array) -> Counter[bytes]:
    return Counter(np.ascontiguousarray(row).tobytes() for row in values)


def swapped_ranks(entry: Entry, comparison: KeyDataComparison) -> tuple[int, int] | None:
    """Two ranks that exchanged what an entry holds; None where there are none."""
    same_entry = {
        other.rank: (other.a.digest, other.b.digest)
        for other in comparison.differing
        if other.step == entry.step and other.record.key == entry.record.key and other.a and other.b
    }
    mine = same_entry.get(entry.rank)
    if mine is None or None in mine:
        return None
    for rank, (digest_a, digest_b) in same_entry.items():
        if rank != entry.rank and (digest_b, digest_a) == mine:
            return (min(rank, entry.rank), max(rank, entry.rank))
    return None
