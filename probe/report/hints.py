"""What to do about a difference: short hints with their sources, from ``hints.json``, chosen by what was found.

A hint of the file says for which causes it is, and may say more of where it applies: ``events``, ``modules`` (patterns
for the class of the module or the last part of its name), ``operations`` (patterns), ``stages``, ``devices``,
``several_ranks``, ``roles`` of models, ``later`` than the first step. Where the operation is known, it decides, else
the module does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from importlib import resources
from typing import Any

from probe.language import tell
from probe.store.trace_events import KINDS
from probe.types import ROLES_OF_STAGE, STAGES

CAUSES = (
    *("module_forward", "module_backward", "module_input", "weights", "buffers", "rng", "data", "sampling"),
    *("rewards", "advantages", "loss", "gradient", "optimizer", "calls", "none"),
)
"""Kinds of cause: each has a hint of its own."""
DEVICES = ("cpu", "cuda", "npu")
MOST = 4
"""Most hints for one difference."""
_OPERATION, _MODULE, _EVENT, _STAGE = 8, 4, 2, 1
_UNKNOWN_DEVICE = 1


@dataclass(frozen=True, slots=True)
class Situation:
    """What hints are chosen by.

    Example:
        >>> Situation("module_backward", operation="aten::index_add_", devices=frozenset({"cuda"})).event is None
        True
    """

    kind: str
    """Kind of the cause."""
    event: str | None = None
    name: str | None = None
    """The module, parameter or tag."""
    module: str | None = None
    """The module's class."""
    operation: str | None = None
    """The first operation whose output differs; None where nobody knows."""
    stage: str | None = None
    devices: frozenset[str] = frozenset()
    """Kinds of device that the models are on; empty where nobody knows."""
    several_ranks: bool = True
    step: int | None = None
    """The step of the first difference; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class Hint:
    """One entry of the file.

    Example:
        >>> Hint("rng", "Look for another seed.", "https://example.org", ("rng",)).score(Situation("rng"))
        0
    """

    id: str
    text: str
    source: str
    """Address of public documentation that says so."""
    kinds: tuple[str, ...]
    """Causes that it is for."""
    events: tuple[str, ...] = ()
    modules: tuple[re.Pattern[str], ...] = ()
    operations: tuple[re.Pattern[str], ...] = ()
    stages: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    several_ranks: bool = False
    """Whether it is for trainings of several ranks only."""
    roles: tuple[str, ...] = ()
    later: bool = False
    """Whether it is for what does not differ from the first step on."""

    def score(self, found: Situation) -> int | None:
        """How closely it speaks of a situation; None where it does not."""
        unlike = (
            found.kind not in self.kinds
            or (self.devices and found.devices and not found.devices & set(self.devices))
            or (self.events and found.event not in self.events)
            or (self.stages and found.stage not in self.stages)
            or (self.several_ranks and not found.several_ranks)
            or (self.roles and found.name and found.name.partition(".")[0] not in self.roles)
            or (self.later and found.step == 0)
        )
        if unlike:
            return None
        score = _EVENT * bool(self.events) + _STAGE * bool(self.stages)
        if not (self.operations or self.modules):
            return score
        if found.operation is not None and self.operations:
            return score + _OPERATION if _matches(self.operations, found.operation) else None
        named = [text for text in (found.module, (found.name or "").rpartition(".")[2]) if text]
        return score + _MODULE if any(_matches(self.modules, text) for text in named) else None

    def as_dict(self) -> dict[str, str]:
        """For ``verdict.json``."""
        return {"id": self.id, "text": self.text, "source": self.source}


@dataclass(frozen=True)
class Hints:
    """The file.

    Example:
        >>> {kind for kind in CAUSES if not load_hints().choose(Situation(kind))}
        set()
    """

    entries: tuple[Hint, ...] = field(default=())

    def choose(self, found: Situation) -> list[Hint]:
        """The hints that speak of a situation, the closest first: at most ``MOST``.

        Where nobody knows the device, those for one kind of device come after all others.
        """
        scored = [
            (_UNKNOWN_DEVICE if hint.devices and not found.devices else 0, -score, hint)
            for hint in self.entries
            if (score := hint.score(found)) is not None
        ]
        return [hint for *_, hint in sorted(scored, key=lambda one: one[:2])[:MOST]]


def load_hints() -> Hints:
    """Reads the file that ships with the package.

    Raises:
        ValueError: An entry is not as it should be; the message names it and the key.
    """
    text = resources.files("probe.report").joinpath("hints.json").read_text(encoding="utf-8")
    return parse_hints(json.loads(text))


def parse_hints(raw: Any) -> Hints:
    """Checks and takes in what the file holds.

    Raises:
        ValueError: An entry is not as it should be; the message names it and the key.
    """
    if not isinstance(raw, dict) or set(raw) != {"hints"} or not isinstance(raw["hints"], list):
        raise ValueError("hints.json: must be an object with the list hints")
    entries = tuple(_hint(entry, number) for number, entry in enumerate(raw["hints"]))
    names = [hint.id for hint in entries]
    if doubled := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"hints.json: the id {min(doubled)!r} stands twice")
    return Hints(entries)


def hints_of(document: dict[str, Any], environments: Iterable[dict[str, Any]] = ()) -> list[dict[str, str]]:
    """The hints for a verdict: none where nothing differs.

    Args:
        document: The content of ``verdict.json``.
        environments: What the runs' ``environment.json`` hold, for the devices and the number of ranks.
    """
    if document["verdict"] != "divergent":
        return []
    return [hint.as_dict() for hint in load_hints().choose(situation_of(document, environments))]


def situation_of(document: dict[str, Any], environments: Iterable[dict[str, Any]] = ()) -> Situation:
    """What hints are chosen by, from a verdict.

    Args:
        document: The content of ``verdict.json``.
        environments: What the runs' ``environment.json`` hold.
    """
    cause, first, known = document["cause"], document["first"] or {}, list(environments)
    name = cause["name"] or first.get("name")
    around = [document["trace"]["event"], *(document["trace"]["after"] or ()), *(document["trace"]["before"] or ())]
    classes = [event["module"] for event in around if event and event["name"] == name and event["module"]]
    worlds = [world for one in known if isinstance(world := one.get("world_size"), int)]
    return Situation(
        cause["kind"],
        first.get("event"),
        name,
        classes[0] if classes else None,
        _operation(document.get("replay")),
        first.get("stage"),
        frozenset(device for one in known for device in _devices(one)),
        any(world > 1 for world in worlds) if worlds else True,
        first.get("step"),
    )


def _operation(replay: Any) -> str | None:
    """The operation that a replay of the module named."""
    found = replay.get("operation") if isinstance(replay, dict) else None
    if isinstance(found, dict):
        found = found.get("name")
    return found if isinstance(found, str) else None


def _devices(environment: dict[str, Any]) -> set[str]:
    models = environment.get("models")
    described = models.values() if isinstance(models, dict) else ()
    lists = [model.get("devices") for model in described if isinstance(model, dict)]
    names = {str(name).partition(":")[0] for devices in lists if isinstance(devices, list) for name in devices}
    return names & set(DEVICES)


def _matches(patterns: tuple[re.Pattern[str], ...], text: str) -> bool:
    return any(pattern.search(text) for pattern in patterns)


def _hint(raw: Any, number: int) -> Hint:
    where = f"hints.json: hints[{number}]"
    if not isinstance(raw, dict):
        raise ValueError(f"{where}: must be an object")
    if unknown := set(raw) - {known.name for known in fields(Hint)}:
        raise ValueError(f"{where}.{min(unknown)}: is not a key of a hint")
    for key in ("id", "text", "source"):
        if not isinstance(raw.get(key), str) or not raw[key].strip():
            raise ValueError(f"{where}.{key}: must be text")
    if not re.fullmatch(r"https://[^\s]+", raw["source"]):
        raise ValueError(f"{where}.source: must be an address that begins with https://")
    for key in ("several_ranks", "later"):
        if not isinstance(raw.get(key, False), bool):
            raise ValueError(f"{where}.{key}: must be true or false")
    return Hint(
        raw["id"],
        tell(raw["text"]),
        raw["source"],
        _words(raw, "kinds", where, CAUSES, required=True),
        _words(raw, "events", where, sorted(KINDS)),
        _patterns(raw, "modules", where),
        _patterns(raw, "operations", where),
        _words(raw, "stages", where, STAGES),
        _words(raw, "devices", where, DEVICES),
        raw.get("several_ranks", False),
        _words(raw, "roles", where, sorted({role for roles in ROLES_OF_STAGE.values() for role in roles})),
        raw.get("later", False),
    )


def _words(raw: dict[str, Any], key: str, where: str, known: Iterable[str], required: bool = False) -> tuple[str, ...]:
    if key not in raw and not required:
        return ()
    values, allowed = raw.get(key), list(known)
    if not isinstance(values, list) or not values or not all(value in allowed for value in values):
        raise ValueError(f"{where}.{key}: must be a list of some of {', '.join(allowed)}")
    return tuple(values)


def _patterns(raw: dict[str, Any], key: str, where: str) -> tuple[re.Pattern[str], ...]:
    if key not in raw:
        return ()
    values = raw[key]
    if not isinstance(values, list) or not values or not all(isinstance(value, str) and value for value in values):
        raise ValueError(f"{where}.{key}: must be a list of patterns")
    try:
        return tuple(re.compile(value, re.IGNORECASE) for value in values)
    except re.error as error:
        raise ValueError(f"{where}.{key}: is no pattern ({error})") from error
