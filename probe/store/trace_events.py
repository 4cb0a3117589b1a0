"""The events of a trace: one line of canonical JSON each, and what a line says without being parsed as a whole."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from probe.errors import RecordError

KINDS = frozenset(
    {
        "stage_start", "stage_end", "weights", "buffers", "rng", "forward_input", "forward_output", "grad_output",
        "grad_input", "param_grad", "optimizer", "data", "not_observed",
    }
)  # fmt: skip
"""Everything that an event can be."""
NO_EVENT = (ValueError, KeyError, TypeError, RecordError, RecursionError)
"""What reading a line that is no event raises."""
KIND = b',"kind":"'
"""Separates a line's call, position and items from the rest. A quote inside a string is escaped: it is nowhere else."""
ITEMS = b',"items":'
STEP = b',"step":'
STAGE = b',"stage":'
NOT_OBSERVED = b',"kind":"not_observed"'
ROWS_KEPT = 4096
"""Most rows of a value whose digests an event has."""

_LARGEST = 1 << 62
_MOST_AXES = 256

Item = tuple[str, str, tuple[int, ...], str]
"""Path inside the arguments, outputs or model, dtype, shape, digest."""
Key = tuple[str, str | None, int, str | None, int | None, bool]


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One observation in a rank's execution order.

    Example:
        >>> TraceEvent(0, 2, "actor_update", 0, "forward_input", "actor.model.norm", 1).label
        'actor.model.norm'
    """

    index: int
    """Position in the trace, from 0."""
    step: int
    stage: str | None
    micro_step: int | None
    kind: str
    name: str | None
    call: int | None = None
    """Which call of this name within the stage entry, from 0."""
    items: tuple[Item, ...] = ()
    recomputed: bool = False
    """Whether gradient checkpointing ran the module again."""
    note: str | None = None
    module: str | None = None
    """Class of the module."""
    rows: dict[str, list[str]] = field(default_factory=dict)
    """Digests of the rows of an item, by its path."""
    raw: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The line as it was parsed."""

    @property
    def key(self) -> Key:
        """What makes two events the same one in two runs, but for their call."""
        return (self.kind, self.name, self.step, self.stage, self.micro_step, self.recomputed)

    @property
    def content(self) -> tuple[Any, ...]:
        """What must be the same in two runs, beside the key."""
        known = ("call", "i", "items", "kind", "name", "step", "stage", "micro_step", "recomputed", "module", "note")
        further = sorted((name, repr(value)) for name, value in self.raw.items() if name not in (*known, "rows"))
        return (self.items, self.note, self.module, self.rows, further)

    @property
    def label(self) -> str:
        """The name, for people."""
        return self.name or self.kind

    @property
    def role(self) -> str:
        """The model that it belongs to: what comes before the first dot or colon."""
        return self.label.partition(".")[0].partition(":")[0]

    @property
    def is_root(self) -> bool:
        """Whether it is of a whole model."""
        return self.kind in ("forward_input", "forward_output", "grad_output", "grad_input") and "." not in self.label

    def line(self) -> bytes:
        """The canonical line of what was parsed."""
        return json.dumps(self.raw, sort_keys=True, separators=(",", ":"), allow_nan=False).encode() + b"\n"

    def as_dict(self) -> dict[str, Any]:
        """For ``verdict.json``: without its rows, and of many items the first."""
        return {
            "i": self.index, "step": self.step, "stage": self.stage, "micro_step": self.micro_step, "event": self.kind,
            "name": self.name, "call": self.call, "recomputed": self.recomputed, "note": self.note,
            "module": self.module,
        }  # fmt: skip


def parse_event(line: bytes, index: int | None = None) -> TraceEvent:
    """The event of a line.

    Args:
        line: The line.
        index: The position that it must name; None takes any.

    Raises:
        ValueError: It is none. Others of ``NO_EVENT`` too.
    """
    raw = json.loads(line.decode())
    if type(raw) is not dict:
        raise ValueError("not an object")
    if not (_count(raw["i"]) and _count(raw["step"])):
        raise ValueError("a position or a step is no number")
    if not all(raw[name] is None or _count(raw[name]) for name in ("micro_step", "call")):
        raise ValueError("a micro-step or a call is no number")
    optional = (raw["stage"], raw["name"], raw.get("note"), raw.get("module"))
    if raw["kind"] not in KINDS or not all(text is None or type(text) is str for text in optional):
        raise ValueError("a value has the wrong type")
    if index is not None and raw["i"] != index:
        raise ValueError(f"it is event {raw['i']}, not {index}")
    if raw.get("recomputed", True) is not True:
        raise ValueError("recomputed is true, or absent")
    return TraceEvent(
        raw["i"],
        raw["step"],
        raw["stage"],
        raw["micro_step"],
        raw["kind"],
        raw["name"],
        raw["call"],
        tuple([_item(item) for item in raw["items"]]),
        "recomputed" in raw,
        raw.get("note"),
        raw.get("module"),
        _rows(raw["rows"]) if "rows" in raw else {},
        raw,
    )


def _count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST


def _item(item: Any) -> Item:
    path, dtype, shape, digest = item
    good = type(item) is list and type(path) is type(dtype) is type(digest) is str and type(shape) is list
    if not good or len(shape) > _MOST_AXES or not all([_count(size) for size in shape]):
        raise ValueError("an item is not a path, a dtype, a shape and a digest")
    return (path, dtype, tuple(shape), digest)


def _rows(rows: Any) -> dict[str, list[str]]:
    if type(rows) is not dict or not all(
        type(found) is list and len(found) <= ROWS_KEPT and all(type(digest) is str for digest in found)
        for found in rows.values()
    ):
        raise ValueError("rows are not lists of digests")
    return dict(rows)


def parse_place(line: bytes) -> TraceEvent:
    """The event of a line without its items, which may be many: cheap, for looking around.

    Raises:
        ValueError: It is none. Others of ``NO_EVENT`` too.
    """
    head, separator, tail = line.partition(KIND)
    if not separator:
        raise ValueError("no kind")
    start = head.partition(ITEMS)[0]
    return parse_event(start + ITEMS + b"[]" + separator + tail)


def place_in_step(line: bytes) -> bytes:
    """The end of a line, such as ``,"stage":"actor_update","step":12}``: what all events of a stage and step share."""
    return line[line.rfind(STAGE) :].rstrip(b"\n")


def place_of(event: TraceEvent) -> bytes:
    """The end of an event's line, as ``place_in_step`` gives it."""
    return b"%s%s%s%d}" % (STAGE, json.dumps(event.stage).encode(), STEP, event.step)


def stage_and_step(place: bytes) -> tuple[str | None, int]:
    """What the end of a line says.

    Raises:
        ValueError: It is none. Others of ``NO_EVENT`` too.
    """
    raw = json.loads(b"{" + place[1:])
    if not (raw["stage"] is None or type(raw["stage"]) is str) or not _count(raw["step"]):
        raise ValueError("a stage or a step has the wrong type")
    return raw["stage"], raw["step"]


def step_of(text: bytes) -> int:
    """The step that a text such as ``,"step":12}`` names.

    Raises:
        ValueError: It names none.
    """
    digits = text[len(STEP) :].partition(b"}")[0].partition(b",")[0]
    if not digits.isdigit() or len(digits) > 18:
        raise ValueError("no step")
    return int(digits)
