"""verl's rollout and validation samples, ``{step}.jsonl``, as key data.

Each line is a sample: ``input``, ``output``, ``gts``, ``score``, ``step``, and whatever the reward function adds. A
step's numbers become one record a column, texts and all else one record a row (``responses.3``), without values: the
texts stay in the files, and are read again where they differ.

Newer versions sort the samples of a step by names that are random in every run (``uid``): what order they stand in says
nothing then. Samples of one prompt stay together, in their own order; prompts are put into that of their texts.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.errors import DumpError, RecordError
from probe.language import tell
from probe.store import layout
from probe.store.digest import digest
from probe.store.numeric import Numbers
from probe.store.scan import walk
from probe.store.writer import DumpWriter
from probe.types import STAGE_OF_TAG

_NAME = re.compile(r"(\d{1,9})\.jsonl")
_TAGS = {"input": "prompts", "output": "responses", "score": "rewards"}
"""Tags of the columns that verl itself writes; all others keep their names."""
RANDOM = ("request_id",)
"""Columns that differ in every run and say nothing of it."""
NAMES = "uid"
"""A column that is such a one where all of it was made like ``_GENERATED``."""
_GENERATED = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})_(\d{1,9})_(\d{1,9})")
"""What verl makes of a random UUID for each prompt, and the numbers of its samples and of their parts."""
NAMED_AT_RANDOM = tell(
    "verl sorts the samples of a step by random names: prompts are compared in the order of their texts, and another"
    " order of the prompts within one step is not seen"
)
_LONGEST_LINE = 1 << 28
_SHOWN = 60
_ABSENT = object()
"""Stands for a column that a sample lacks."""


@dataclass(frozen=True, slots=True)
class RolloutFile:
    """The samples of one step.

    Example:
        >>> RolloutFile(Path("rollout/3.jsonl"), 3, "").step
        3
    """

    path: Path
    step: int
    folder: str
    """The folder that it lies in, inside the one that was given; empty for the training's own samples."""


def find_rollouts(root: Path) -> list[RolloutFile]:
    """The sample files in a folder and below it, or the one that was named; by step.

    Raises:
        DumpError: Something beside them is a link, or cannot be read.
    """
    if root.is_file():
        match = _NAME.fullmatch(root.name)
        return [RolloutFile(root, int(match.group(1)) if match else 0, "")] if root.name.endswith(".jsonl") else []
    found: list[RolloutFile] = []
    for base, entries in walk(root):
        for entry in entries or ():
            if (match := _NAME.fullmatch(entry.name)) is None:
                continue
            if not entry.is_file(follow_symlinks=False):
                raise DumpError(f"{entry.path}: is no plain file; a link is not followed")
            folder = Path(base).relative_to(root).as_posix()
            found.append(RolloutFile(Path(entry.path), int(match.group(1)), "" if folder == "." else folder))
    folders = {file.folder for file in found}
    training = {folder for folder in folders if not folder.rpartition("/")[2].startswith("val")}
    main = folders if len(folders) == 1 else training if len(training) == 1 else set()
    found = [replace(file, folder="") if file.folder in main else file for file in found]
    return sorted(found, key=lambda file: (file.step, file.folder))


def convert_rollouts(
    files: list[RolloutFile],
    target: Path,
    run: str = "rollouts",
    configuration: dict[str, Any] | None = None,
    complete: bool = True,
) -> list[str]:
    """Writes the samples as a dump folder.

    Args:
        files: The sample files, by step.
        target: A new folder.
        run: What its run is called.
        configuration: What was run, where that is known.
        complete: Whether the run ended as it should.

    Returns:
        What people should know, one sentence each.

    Raises:
        DumpError: A file is damaged.
    """
    target.mkdir(parents=True)
    writer = DumpWriter(target, run, keep_values=True)
    left_out: set[str] = set()
    whole = False
    try:
        if configuration is not None:
            writer.write_file(layout.CONFIGURATIONS, configuration)
        for file in files:
            try:
                left_out |= _convert(file, writer)
            except RecordError as error:
                raise DumpError(f"{file.path}: {error}") from error
        writer.finish_step(files[-1].step)
        whole = complete
    finally:
        writer.close(whole)
    names = ", ".join(sorted(left_out))
    said: list[str] = []
    if left_out:
        said = [tell("{names}: names of requests, random in every run, do not count", names=names)]
    return [*said, NAMED_AT_RANDOM] if NAMES in left_out else said


def names_are_random(path: Path) -> bool:
    """Whether the samples of a file are sorted by names that are random in every run.

    Raises:
        DumpError: It is damaged.
    """
    return any(_GENERATED.fullmatch(str(row.get(NAMES))) for _, row in islice(_lines(path), 1))


def rows_permuted(one: Path, two: Path) -> bool:
    """Whether two files hold the same samples in another order."""
    left, right = ([_without_random(row) for _, row in rows(path)] for path in (one, two))
    return left != right and Counter(left) == Counter(right)


def unlike_texts(one: Path, two: Path, column: str, row: int) -> str | None:
    """A text of two files from the first character on that differs; None where one of them has no such text."""
    texts = []
    for path in (one, two):
        found = next((content for number, content in rows(path) if number == row), {})
        value = found.get(column)
        if value is None:
            return None
        texts.append(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    at = next((n for n, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts)))
    start = max(0, at - _SHOWN // 3)
    shown = [("…" if start else "") + text[start : start + _SHOWN] for text in texts]
    return tell("from character {at} on: {a} against {b}", at=at, a=repr(shown[0]), b=repr(shown[1]))


def column_of(tag: str) -> str:
    """The column that a tag was made of, without its folder."""
    name = tag.rpartition(".")[2]
    return next((column for column, own in _TAGS.items() if own == name), name)


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The samples of a file, with their numbers: in the order of the file, unless that is random.

    Raises:
        DumpError: It cannot be read, or a line is no sample.
    """
    return enumerate(_in_order([row for _, row in _lines(path)]))


def _in_order(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples in an order that two runs have in common."""
    places = [_GENERATED.fullmatch(str(row.get(NAMES))) for row in samples]
    groups: dict[str, list[tuple[int, int, dict[str, Any]]]] = {}
    for row, place in zip(samples, places, strict=True):
        if place is None:
            return samples
        groups.setdefault(place.group(1), []).append((int(place.group(2)), int(place.group(3)), row))
    ordered = []
    for group in groups.values():
        group.sort(key=lambda entry: entry[:2])
        inside = [row for *_, row in group]
        ordered.append((str(inside[0].get("input")), [_without_random(row) for row in inside], inside))
    ordered.sort(key=lambda entry: entry[:2])
    return [row for *_, inside in ordered for row in inside]


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with layout.reading(path) as stream:
        number = 0
        while line := stream.readline(_LONGEST_LINE):
            try:
                if not line.endswith(b"\n"):
                    raise ValueError("it was cut off")
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ValueError("it is not an object")
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise DumpError(f"{path}: line {number + 1} is damaged ({reason[:200]})") from error
            yield number, row
            number += 1


def _convert(file: RolloutFile, writer: DumpWriter) -> set[str]:
    columns: dict[str, list[Any]] = {}
    count = 0
    for number, row in rows(file.path):
        for name, value in row.items():
            columns.setdefault(name, [_ABSENT] * number).append(value)
        count = number + 1
        for values in columns.values():
            values += [_ABSENT] * (count - len(values))
    left_out = _random(columns)
    for name, values in columns.items():
        if name in left_out:
            continue
        tag = ".".join([*file.folder.split("/"), _TAGS.get(name, name)]) if file.folder else _TAGS.get(name, name)
        layout.check_tag(tag)
        place = (tag, file.step, 0, 0)
        stage = STAGE_OF_TAG.get(_TAGS.get(name, name))
        array = _as_numbers(values)
        if array is not None:
            dtype, shape = array.dtype.name, array.shape
            stored = Numbers(array.astype(np.int8) if dtype == "bool" else array)
            writer.add(*place, "", stage, stored, dtype, shape, digest(dtype, shape, array.tobytes()))
            continue
        for number, value in enumerate(values):
            if value is not _ABSENT:
                kind, content = _as_text(value)
                writer.add(*place, str(number), stage, None, kind, (len(content),),
                           digest(kind, (len(content),), content))  # fmt: skip
    return left_out


def _random(columns: dict[str, list[Any]]) -> set[str]:
    """The columns that say nothing of a run."""
    found = set(RANDOM) & set(columns)
    if all(_GENERATED.fullmatch(str(value)) for value in columns.get(NAMES, [_ABSENT])):
        found.add(NAMES)
    return found


def _as_numbers(values: list[Any]) -> npt.NDArray[Any] | None:
    """A column of numbers of one kind; None of any other."""
    for kind, dtype in ((bool, "bool"), (int, "int64"), (float, "float64")):
        if all(type(value) is kind for value in values):
            if kind is int and not all(-(1 << 63) <= value < 1 << 63 for value in values):
                return None
            return np.array(values, dtype)
    return None


def _as_text(value: Any) -> tuple[str, bytes]:
    if isinstance(value, str):
        return "str", value.encode(errors="surrogatepass")
    return "json", json.dumps(value, sort_keys=True).encode()


def _without_random(row: dict[str, Any]) -> str:
    hidden = {*RANDOM, *([NAMES] if _GENERATED.fullmatch(str(row.get(NAMES))) else [])}
    return json.dumps({key: value for key, value in row.items() if key not in hidden}, sort_keys=True)
