"""What two folders of verl's samples say beyond their records: texts that differ, samples in another order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from probe.compare.entries import Entry, KeyDataComparison
from probe.errors import DumpError
from probe.store.rollouts import RolloutFile, column_of, rows_permuted, unlike_texts

_READ_AGAIN = 50
"""Most texts that are read again to say from where on they differ."""

Files = Mapping[tuple[int, str], Path]


def by_place(files: list[RolloutFile]) -> Files:
    """The files of one side by step and folder."""
    return {(file.step, file.folder): file.path for file in files}


def say_texts(key_data: KeyDataComparison, a: Files, b: Files) -> None:
    """Says of the first texts that differ from where on they do.

    Args:
        key_data: How the samples compare, as records.
        a: The files of one side.
        b: Those of the other.
    """
    left = _READ_AGAIN
    for number, entry in enumerate(key_data.entries):
        if left and entry.status == "different" and entry.record.dtype in ("str", "json"):
            left -= 1
            pair = _pair(entry, a, b)
            text = pair and unlike_texts(*pair, column_of(entry.record.tag), int(entry.record.path))
            if text:
                key_data.entries[number] = replace(entry, problem=text)


def in_another_order(entry: Entry, a: Files, b: Files) -> bool:
    """Whether the samples of the step of a difference are the same in another order.

    Args:
        entry: The difference.
        a: The files of one side.
        b: Those of the other.
    """
    pair = _pair(entry, a, b)
    try:
        return pair is not None and rows_permuted(*pair)
    except DumpError:
        return False


def _pair(entry: Entry, a: Files, b: Files) -> tuple[Path, Path] | None:
    place = (entry.step, entry.record.tag.rpartition(".")[0].replace(".", "/"))
    return (a[place], b[place]) if place in a and place in b else None
