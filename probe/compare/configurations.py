"""Were two runs the same experiment? ``configurations.json`` and ``environment.json`` of two dumps, key by key.

Values are compared strictly: 1, 1.0, true and "1" are four values, and a missing key is not a null. The files may come
from anywhere: what cannot be read is said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from probe.compare.experiment import Counting, follows
from probe.keys import CONFIGURATIONS, ENVIRONMENT, KeyPath, close_keys, is_below, parse_key, sections, show_key
from probe.masking import unknown_whether_same
from probe.store import layout
from probe.store.scan import shown

KEPT_KEYS = 200
"""Most differing keys that are kept, of those that are meant and of those that are not; all of them are counted."""
_NAMED = 5
"""Most keys that one sentence names."""
_LARGEST = 1 << 26
"""Most bytes of a file."""
_DEEPEST = 100
_TEXT_SHOWN = 200
_FILES = {layout.CONFIGURATIONS: CONFIGURATIONS, layout.ENVIRONMENT: ENVIRONMENT}


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A key that is not the same in two experiments.

    Example:
        >>> KeyDifference("trainer.config.megatron_training.seed", 1, 2).only is None
        True
    """

    key: str
    """Its dotted path; see ``probe.keys``."""
    a: Any
    """Its value in one dump, cut to something short that strict JSON holds; None where it is null or absent."""
    b: Any
    """Its value in the other."""
    only: Literal["a", "b"] | None = None
    """The one dump that has the key; None where both have it."""
    meant: bool = False
    """Whether somebody said that it may differ."""


@dataclass
class ConfigurationComparison:
    """How two experiments differ.

    Example:
        >>> ConfigurationComparison().error is None
        True
    """

    compared: int = 0
    """Keys that were looked at."""
    unmeant: int = 0
    """Keys that differ and were not meant to."""
    meant: int = 0
    """Keys that differ as somebody said they may."""
    different: list[KeyDifference] = field(default_factory=list)
    """Those that were not meant, then those that were: at most ``KEPT_KEYS`` of each."""
    not_compared: list[str] = field(default_factory=list)
    """What could not be compared, one sentence each."""
    damaged: bool = False
    """Whether a file is gone or unreadable that should not be: then nothing is known to be identical."""
    notes: list[str] = field(default_factory=list)
    """What people should know beside that."""

    @property
    def error(self) -> str | None:
        """Why these are two experiments, naming the keys; None where they are one, as far as is known."""
        if not self.unmeant:
            return None
        listed = _listed([found for found in self.different if not found.meant], self.unmeant)
        return (
            f"the two runs were not the same experiment: {listed}; where that is meant, name the keys in"
            " check.allow_different or with --allow-different"
        )


def compare_configurations(a: Path, b: Path, allowed: Iterable[str] = ()) -> ConfigurationComparison:
    """Compares what two dumps say of their experiments.

    Args:
        a: A dump folder.
        b: The other.
        allowed: Keys, or sections of keys, that are meant to differ.
    """
    result = ConfigurationComparison()
    left: dict[str, Any] = {}
    right: dict[str, Any] = {}
    for name, section in _FILES.items():
        told = len(result.not_compared)
        one, two = _read(a / name, result), _read(b / name, result)
        if one is not None and two is not None:
            left[section], right[section] = one, two
        elif len(result.not_compared) == told:
            _missing(name, [folder for folder, content in ((a, one), (b, two)) if content is None], result)
    meant = [parse_key(key) for key in allowed]
    _compare(left, right, meant, result)
    if meant and left:
        result.notes += _unknown(meant, left, right)
    return result


# ---- reading ----


def _read(path: Path, result: ConfigurationComparison) -> dict[str, Any] | None:
    """The content of a file; None where there is none, or none that can be read, which is then said."""
    try:
        content = layout.read_json(path, _LARGEST)
        if not isinstance(content, dict):
            raise ValueError("it holds no object")
        _check_depth(content)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        result.not_compared.append(f"{shown(path)}: cannot be read ({' '.join(reason.split())[:_TEXT_SHOWN]})")
        result.damaged = True
        return None
    return content


def _check_depth(content: dict[str, Any]) -> None:
    level: list[Any] = [content]
    for _ in range(_DEEPEST):
        nested = [child for value in level for child in (value.values() if isinstance(value, dict) else value)]
        level = [child for child in nested if isinstance(child, (dict, list))]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _missing(name: str, folders: list[Path], result: ConfigurationComparison) -> None:
    """Says that one dump, or neither, has a file."""
    if len(folders) > 1:
        first_found = any(sentence.startswith("neither") for sentence in result.not_compared)
        result.not_compared.append(f"neither dump has {name}")
        if first_found:
            result.notes.append(
                "neither dump says what was run (configurations.json, environment.json): whether both come from the"
                " same experiment is not known"
            )
        return
    folder = folders[0]
    result.not_compared.append(f"{shown(folder / name)}: missing, though the other dump has one")
    if name == layout.ENVIRONMENT and layout.manifests(folder):
        result.damaged = True  # every recording of ours writes one
    else:
        result.notes.append(f"only one dump has {name}: whether both come from the same experiment is not known")


# ---- comparing ----


class _Absent(Enum):
    """Stands where a dump has no such key."""

    KEY = None


def _compare(
    left: dict[str, Any], right: dict[str, Any], meant: list[KeyPath], result: ConfigurationComparison
) -> None:
    counting = Counting(left, right)
    kept: tuple[list[KeyDifference], list[KeyDifference]] = ([], [])
    causes: list[KeyPath] = []
    unknown: list[KeyPath] = []
    for path, one, two in _leaves(left, right):
        if not counting.counts(path):
            continue
        if unknown_whether_same(one, two):
            unknown.append(path)
            continue
        result.compared += 1
        if _same(one, two):
            continue
        allowed = any(is_below(path, section) for section in meant)
        if allowed and path[0] == CONFIGURATIONS and len(causes) < KEPT_KEYS:
            causes.append(path)  # the environment comes after all of the configuration
        allowed = allowed or follows(path, causes)
        result.meant += allowed
        result.unmeant += not allowed
        if len(kept[allowed]) < KEPT_KEYS:
            only: Literal["a", "b"] | None = "b" if one is _Absent.KEY else "a" if two is _Absent.KEY else None
            kept[allowed].append(KeyDifference(show_key(path), _short(one), _short(two), only, allowed))
    result.different = [*kept[False], *kept[True]]
    if unknown:
        named = ", ".join(show_key(path)[:_TEXT_SHOWN] for path in unknown[:_NAMED])
        more = f" and {len(unknown) - _NAMED} more" if len(unknown) > _NAMED else ""
        result.notes.append(f"masked on two machines, so not compared: {named}{more}")
    if result.meant:
        result.notes.append(f"meant to differ: {_listed(kept[True], result.meant)}")


def _leaves(one: Any, two: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any, Any]]:
    """Every single value that either side has, with its path; lists of unlike length are one value."""
    children: list[tuple[str, Any, Any]]
    if isinstance(one, dict) and isinstance(two, dict):
        keys = dict.fromkeys([*one, *two])
        children = [(key, one.get(key, _Absent.KEY), two.get(key, _Absent.KEY)) for key in keys]
    elif isinstance(one, list) and isinstance(two, list) and len(one) == len(two):
        children = [(str(index), *pair) for index, pair in enumerate(zip(one, two, strict=True))]
    elif one is _Absent.KEY and isinstance(two, dict):
        children = [(key, _Absent.KEY, value) for key, value in two.items()]
    elif two is _Absent.KEY and isinstance(one, dict):
        children = [(key, value, _Absent.KEY) for key, value in one.items()]
    else:
        children = []
    if not children and path:
        yield path, one, two
    for key, left, right in children:
        yield from _leaves(left, right, (*path, key))


def _same(one: Any, two: Any) -> bool:
    """Whether two values of ``_leaves`` are the same."""
    if type(one) is not type(two):
        return False
    if isinstance(one, float):
        both_nan = math.isnan(one) and math.isnan(two)
        return both_nan or (one == two and math.copysign(1, one) == math.copysign(1, two))
    if isinstance(one, (list, dict)):
        return not one and not two  # others of one length were taken apart
    return bool(one == two)


# ---- showing ----


def _short(value: Any) -> Any:
    """A value as something short that strict JSON holds."""
    if value is _Absent.KEY:
        return None
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value if abs(value) < 1 << 64 else f"{value:#x}"[:_TEXT_SHOWN]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _TEXT_SHOWN else text[:_TEXT_SHOWN] + "…"


def _listed(differences: list[KeyDifference], total: int) -> str:
    named = [_in_words(found) for found in differences[:_NAMED]]
    return ", ".join(named) + (f" and {total - len(named)} more" if total > len(named) else "")


def _in_words(found: KeyDifference) -> str:
    key = found.key[:_TEXT_SHOWN]
    if found.only is not None:
        return f"{key} (only in {found.only})"
    one, two = (text if len(text := json.dumps(value)) <= 40 else text[:40] + "…" for value in (found.a, found.b))
    return f"{key} ({one} against {two})"


def _unknown(meant: list[KeyPath], left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """What was allowed to differ and is in neither dump."""
    known = dict.fromkeys([*sections(left), *sections(right)])
    notes = []
    for path in meant:
        if path not in known:
            close = close_keys(path, known)
            notes.append(
                f"{show_key(path)} may differ, but neither dump has such a key"
                + (f"; did you mean {' or '.join(close)}?" if close else "")
            )
    return notes
