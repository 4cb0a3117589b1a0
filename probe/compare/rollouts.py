"""What two folders of verl's samples say beyond their records: texts that differ, samples in another order."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from probe.compare.entries import Entry, KeyDataComparison
from probe.errors import DumpError
from probe.language import tell
from probe.store.rollouts import NAMED_AT_RANDOM, RolloutFile, column_of, names_are_random, rows_permuted, unlike_texts
from probe.store.verl import samples_of

_READ_AGAIN = 50
"""Most texts that are read again to say from where on they differ."""

Files = Mapping[tuple[int, str], Path]


def beside(a: Path, b: Path) -> tuple[Files, Files]:
    """The samples that lie beside the dumps of two runs of verl; none beside any other.

    Args:
        a: The dump folder of one run.
        b: That of the other.
    """
    return by_place(samples_of(a)), by_place(samples_of(b))


def sample_notes(key_data: KeyDataComparison, a: Path, b: Path) -> list[str]:
    """What people should know of the samples of two runs of verl, one sentence each; nothing of other runs.

    Args:
        key_data: How they compare, the texts said (``say_texts``).
        a: The dump folder of one run.
        b: That of the other.
    """
    files = beside(a, b)[0]
    if not files:
        return []
    said: list[str] = []
    with suppress(DumpError):  # which has been said
        said += [NAMED_AT_RANDOM] if any(names_are_random(path) for path in islice(files.values(), 1)) else []
    first = min(key_data.differing, key=lambda entry: entry.order, default=None)
    if first is not None and first.record.path and first.problem:
        said.append(text_note(first))
    return said


def text_note(entry: Entry) -> str:
    """What a text that differs is, and from where on it does.

    Args:
        entry: The difference.
    """
    return tell(
        "step {step}, {tag} of sample {sample}: {problem}",
        step=entry.step,
        tag=entry.record.tag,
        sample=entry.record.path,
        problem=entry.problem,
    )


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
