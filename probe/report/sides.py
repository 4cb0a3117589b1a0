"""Inputs and outputs of the culprit, side by side: what each run had there, and the first elements that differ.

Digests come from the traces of ``a`` and ``b``; values from the layer dumps of the runs that have them (``c`` and ``d``
of a check), or from the key data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from probe.compare import Entry, LayerComparison
from probe.compare.ulp import FORMATS, distances
from probe.compare.values import bits_differ
from probe.errors import DumpError
from probe.language import tell
from probe.locate import First
from probe.report.stage import StageEvents
from probe.store.layers import LayerEvent, Window, find_windows, load_tensor, read_events
from probe.store.reader import read_values
from probe.store.trace_events import NO_EVENT, Item, TraceEvent

ELEMENTS = 8
"""Elements that differ and are shown, the first ones."""
MOST_ITEMS = 24
"""Most inputs, outputs and weights that are shown."""
MOST_ELEMENTS = 1 << 26
"""Larger values are not read again."""
_WORDS = {
    "forward_input": tell("input"),
    "forward_output": tell("output"),
    "grad_output": tell("gradient that arrived"),
    "grad_input": tell("gradient passed on"),
    "param_grad": tell("gradient of a parameter"),
}


@dataclass(frozen=True, slots=True)
class Element:
    """An element that differs.

    Example:
        >>> Element((3, 1), 1.0, 1.5, 4194304).index
        (3, 1)
    """

    index: tuple[int, ...]
    a: Any
    b: Any
    ulp: int | None
    """Distance in units in the last place, of integers the difference; None where there is none."""


@dataclass(frozen=True, slots=True)
class Side:
    """One input, output or weight, of both runs.

    Example:
        >>> Side("input", "args.0", "float32[2, 4]", "float32[2, 4]", "5a", "5a", True).elements
        ()
    """

    what: str
    path: str
    a: str
    """Dtype and shape; a dash where the run has none."""
    b: str
    digest_a: str | None
    digest_b: str | None
    same: bool
    count: int | None = None
    """Elements that differ; None where values were not kept."""
    size: int | None = None
    elements: tuple[Element, ...] = ()


@dataclass(frozen=True)
class Sides:
    """All of them.

    Example:
        >>> Sides("a", "b").rows
        []
    """

    run_a: str
    run_b: str
    rows: list[Side] = field(default_factory=list)


def sides_of_trace(found: StageEvents | None, first: First | None) -> Sides | None:
    """What the traces of ``a`` and ``b`` say of the culprit's call: digests.

    Args:
        found: What happened in the stage.
        first: The first difference.
    """
    if found is None or first is None:
        return None
    rows: list[Side] = []
    try:
        for _, one, two in found.of_module(first.name, first.call):
            event = one or two
            if event is not None and event.kind in _WORDS:
                rows += _digests(event, one, two)
    except NO_EVENT:
        return None
    return Sides("a", "b", rows[:MOST_ITEMS]) if rows else None


def sides_of_layers(layers: LayerComparison | None, runs: tuple[tuple[str, Path], tuple[str, Path]]) -> Sides | None:
    """The values that the layer dumps hold of the first module that differs; None where there are none.

    Args:
        layers: How the layers compare.
        runs: Both runs' names and dump folders.
    """
    first = layers.first if layers is not None else None
    if first is None:
        return None
    (name_a, folder_a), (name_b, folder_b) = runs
    try:
        one, two = _events(folder_a, first.window), _events(folder_b, first.window)
        rows = [
            side
            for kind, words in _WORDS.items()
            for key in [(kind, first.event.name, first.event.call)]
            if one is not None and two is not None and (key in one[1] or key in two[1])
            for side in _of_layers(words, (one[0], one[1].get(key)), (two[0], two[1].get(key)))
        ]
    except (DumpError, OSError, RuntimeError, TypeError, ValueError):  # a dtype that NumPy does not have
        return None
    return Sides(name_a, name_b, rows[:MOST_ITEMS]) if rows else None


def sides_of_record(entry: Entry | None, folders: tuple[Path, Path]) -> Sides | None:
    """The values of the first record that differs; None where they were not kept.

    Args:
        entry: The record.
        folders: The dump folders of ``a`` and ``b``.
    """
    if entry is None or entry.a is None or entry.b is None or not entry.a.file or not entry.b.file:
        return None
    try:
        left, right = read_values(folders[0], entry.a), read_values(folders[1], entry.b)
    except DumpError:
        return None
    name = f"{entry.record.tag}.{entry.record.path}" if entry.record.path else entry.record.tag
    one, two = (f"{record.dtype}{list(record.shape)}" for record in (entry.a, entry.b))
    found = _unlike(left, right, entry.a.dtype) if entry.a.dtype == entry.b.dtype else None
    side = Side(tell("record"), name, one, two, entry.a.digest, entry.b.digest, False, *(found or (None, None, ())))
    return Sides("a", "b", [side])


def _digests(event: TraceEvent, one: TraceEvent | None, two: TraceEvent | None) -> Iterator[Side]:
    left, right = ({item[0]: item for item in (seen.items if seen else ())} for seen in (one, two))
    for path in {**left, **right}:
        a, b = left.get(path), right.get(path)
        what = _WORDS[event.kind] + (tell(" (run again)") if event.recomputed else "")
        yield Side(what, path, _form(a), _form(b), a and a[3], b and b[3], a == b)


def _form(item: Item | None) -> str:
    return "–" if item is None else f"{item[1]}{list(item[2])}"


Events = dict[tuple[str, str, int], LayerEvent]


def _events(folder: Path, like: Window) -> tuple[Window, Events] | None:
    window = next((window for window in find_windows(folder) if window.key == like.key), None)
    return None if window is None else (window, {event.key: event for event in read_events(window)})


def _of_layers(
    what: str, one: tuple[Window, LayerEvent | None], two: tuple[Window, LayerEvent | None]
) -> Iterator[Side]:
    left, right = (dict(event.items) if event else {} for _, event in (one, two))
    for path in {**left, **right}:
        a, b = _tensor(one[0], left.get(path)), _tensor(two[0], right.get(path))
        if a is None and b is None:
            continue
        forms = ["–" if side is None else f"{side[1]}{list(side[0].shape)}" for side in (a, b)]
        found = None
        if a is not None and b is not None and a[1] == b[1]:
            found = _unlike(a[0], b[0], a[1])
        same = found is not None and found[0] == 0
        yield Side(what, path, forms[0], forms[1], None, None, same, *(found or (None, None, ())))


def _tensor(window: Window, value: Any) -> tuple[npt.NDArray[Any], str] | None:
    """A dumped tensor as numbers, and the type that they had."""
    if not isinstance(value, dict) or not value.get("data_name"):
        return None
    tensor = load_tensor(window, str(value["data_name"]))
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in ("bfloat16",) and not name.startswith("float8"):
        return tensor.resolve_conj().resolve_neg().numpy(), name
    return tensor.float().numpy(), name


def _unlike(left: npt.NDArray[Any], right: npt.NDArray[Any], dtype: str) -> tuple[int, int, tuple[Element, ...]] | None:
    """How many elements differ, of how many, and the first of them; None where that cannot be said."""
    if left.shape != right.shape or left.dtype != right.dtype or left.size > MOST_ELEMENTS:
        return None
    a, b = np.ascontiguousarray(left).reshape(-1), np.ascontiguousarray(right).reshape(-1)
    differs = np.flatnonzero(bits_differ(a, b))
    elements = tuple(
        Element(
            tuple(int(axis) for axis in np.unravel_index(place, left.shape)) if left.shape else (),
            a[place].item(),
            b[place].item(),
            _ulp(a[place : place + 1], b[place : place + 1], dtype),
        )
        for place in map(int, differs[:ELEMENTS])
    )
    return int(differs.size), int(a.size), elements


def _ulp(a: npt.NDArray[Any], b: npt.NDArray[Any], dtype: str) -> int | None:
    if a.dtype.kind in "iub":
        return abs(int(a[0]) - int(b[0]))
    if dtype not in FORMATS or a.dtype.kind != "f" or np.isnan(a[0]) or np.isnan(b[0]):
        return None
    return int(distances(a, b, dtype)[0])
