"""Were two runs the same experiment? ``configurations.json`` and ``environment.json`` of two dumps, key by key.

Values are compared strictly: 1, 1.0, true and "1" are four values, and a missing key is not a null. The files may come
from anywhere: what cannot be read is said.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from probe.compare.experiment import TORCH_SEED, Counting, follows
from probe.keys import CONFIGURATIONS, ENVIRONMENT, KeyPath, close_keys, is_below, parse_key, sections, show_key
from probe.language import join, tell
from probe.masking import tell_nothing
from probe.store import layout
from probe.store.manifests import files_written
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

Experiment = dict[str, Any]
"""What a dump says of itself: the content of its files, by ``probe.keys.CONFIGURATIONS`` and ``ENVIRONMENT``."""


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
        unmeant = [found for found in self.different if not found.meant]
        unseeded = any(found.key == TORCH_SEED for found in unmeant)
        return tell(
            "the two runs were not the same experiment: {keys};{unseeded} where that is meant, name the keys in"
            " check.allow_different or with --allow-different",
            keys=_listed(unmeant, self.unmeant),
            unseeded=tell(" a trainer that never seeds torch has another seed in every run;") if unseeded else "",
        )


def compare_configurations(a: Path, b: Path, allowed: Iterable[str] = ()) -> ConfigurationComparison:
    """Compares what two dumps say of their experiments.

    Args:
        a: A dump folder.
        b: The other.
        allowed: Keys, or sections of keys, that are meant to differ.
    """
    result = ConfigurationComparison()
    left: Experiment = {}
    right: Experiment = {}
    for name, section in _FILES.items():
        pair = _read_both(a, b, name, result)
        if pair is not None:
            left[section], right[section] = pair
    meant = [parse_key(key) for key in allowed]
    comparing = _Comparing(Counting(left, right), meant, result)
    comparing.compare(left, right)
    for name in _of_further_hosts(a, b):
        pair = _read_both(a, b, name, result)
        if pair is not None:
            comparing.compare({ENVIRONMENT: pair[0]}, {ENVIRONMENT: pair[1]})
    comparing.finish()
    if meant and left:
        result.notes += _unknown(meant, left, right)
    return result


def compare_experiments(left: Experiment, right: Experiment) -> ConfigurationComparison:
    """Compares two experiments that were read before, as far as both say something of themselves.

    Args:
        left: One experiment.
        right: The other.
    """
    result = ConfigurationComparison()
    both = [section for section in _FILES.values() if section in left and section in right]
    comparing = _Comparing(Counting(left, right), [], result)
    comparing.compare({name: left[name] for name in both}, {name: right[name] for name in both})
    comparing.finish()
    return result


def read_experiment(dump: Path) -> tuple[Experiment, list[str]]:
    """What a dump says of its experiment.

    Args:
        dump: A dump folder.

    Returns:
        The content of the files that it has and that can be read; of the others, why they cannot.
    """
    result = ConfigurationComparison()
    found = {section: _read(dump / name, result) for name, section in _FILES.items()}
    return {section: content for section, content in found.items() if content is not None}, result.not_compared


def counted_values(experiment: Experiment) -> dict[KeyPath, Any]:
    """Every value of an experiment that makes it the same as another or not, by its path."""
    counting = Counting(experiment, experiment)
    return {path: value for path, value, _ in _leaves(experiment, experiment) if counting.counts(path)}


# ---- reading ----


def _of_further_hosts(a: Path, b: Path) -> list[str]:
    """The environments of hosts beside the first that either dump has, or should have."""
    names: dict[str, None] = {}
    for folder in (a, b):
        with contextlib.suppress(OSError):  # such a folder has been named when its other files were read
            names.update(dict.fromkeys([*layout.further_environments(folder), *sorted(files_written(folder))]))
    return [name for name in names if name not in _FILES]


def _read_both(
    a: Path, b: Path, name: str, result: ConfigurationComparison
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """A file of both dumps; None where one has none that can be read, which is then said."""
    told = len(result.not_compared)
    one, two = _read(a / name, result), _read(b / name, result)
    if one is not None and two is not None:
        return one, two
    if len(result.not_compared) == told:
        _missing(name, [folder for folder, content in ((a, one), (b, two)) if content is None], result)
    return None


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
        why = " ".join(reason.split())[:_TEXT_SHOWN]
        result.not_compared.append(tell("{path}: cannot be read ({why})", path=shown(path), why=why))
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
    lost = [folder for folder in folders if layout.manifests(folder) and name in files_written(folder)]
    if lost:
        result.not_compared.append(tell("{path}: missing, though it was written", path=shown(lost[0] / name)))
        result.damaged = True
        return
    if len(folders) > 1:
        first_found = any(sentence.startswith("neither") for sentence in result.not_compared)
        result.not_compared.append(tell("neither dump has {name}", name=name))
        if first_found:
            result.notes.append(
                tell(
                    "neither dump says what was run (configurations.json, environment.json): whether both"
                    " come from the same experiment is not known"
                )
            )
        return
    folder = folders[0]
    result.not_compared.append(tell("{path}: missing, though the other dump has one", path=shown(folder / name)))
    if layout.manifests(folder):
        result.damaged = True  # a recording of ours: the other one says what it was, this one does not
    else:
        result.notes.append(
            tell("only one dump has {name}: whether both come from the same experiment is not known", name=name)
        )


# ---- comparing ----


class _Absent(Enum):
    """Stands where a dump has no such key."""

    KEY = None


class _Comparing:
    """Compares one pair of contents after the other: the configuration's and first host's, then further hosts'.

    Args:
        counting: Which keys count.
        meant: Keys and sections that are meant to differ.
        result: Receives what is found. A key that differs on several hosts is listed once.
    """

    def __init__(self, counting: Counting, meant: list[KeyPath], result: ConfigurationComparison) -> None:
        self._counting = counting
        self._meant = meant
        self._result = result
        self._kept: tuple[dict[KeyPath, KeyDifference], dict[KeyPath, KeyDifference]] = ({}, {})
        self._causes: list[KeyPath] = []
        self._not_told: list[KeyPath] = []

    def compare(self, left: Experiment, right: Experiment) -> None:
        for path, one, two in _leaves(left, right):
            if not self._counting.counts(path):
                continue
            self._result.compared += 1
            if tell_nothing(one, two):
                self._not_told.append(path)
                continue
            if not _same(one, two) and path not in self._kept[False] and path not in self._kept[True]:
                self._note(path, one, two)

    def _note(self, path: KeyPath, one: Any, two: Any) -> None:
        allowed = any(is_below(path, section) for section in self._meant)
        if allowed and path[0] == CONFIGURATIONS and len(self._causes) < KEPT_KEYS:
            self._causes.append(path)  # the environment comes after all of the configuration
        allowed = allowed or follows(path, self._causes)
        self._result.meant += allowed
        self._result.unmeant += not allowed
        if len(self._kept[allowed]) < KEPT_KEYS:
            only: Literal["a", "b"] | None = "b" if one is _Absent.KEY else "a" if two is _Absent.KEY else None
            self._kept[allowed][path] = KeyDifference(show_key(path), _short(one), _short(two), only, allowed)

    def finish(self) -> None:
        meant = list(self._kept[True].values())
        self._result.different = [*self._kept[False].values(), *meant]
        if self._not_told:
            keys = join(", ", (show_key(path)[:_TEXT_SHOWN] for path in self._not_told[:_NAMED]))
            more = len(self._not_told) - _NAMED
            keys += tell(" and {more} more", more=more) if more > 0 else ""
            self._result.notes.append(tell("masked with unlike keys or none, so not compared: {keys}", keys=keys))
        if self._result.meant:
            self._result.notes.append(tell("meant to differ: {keys}", keys=_listed(meant, self._result.meant)))


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
    more = total - len(named)
    return join(", ", named) + (tell(" and {more} more", more=more) if more > 0 else "")


def _in_words(found: KeyDifference) -> str:
    key = found.key[:_TEXT_SHOWN]
    if found.only is not None:
        return tell("{key} (only in {run})", key=key, run=found.only)
    one, two = (text if len(text := json.dumps(value)) <= 40 else text[:40] + "…" for value in (found.a, found.b))
    return tell("{key} ({a} against {b})", key=key, a=one, b=two)


def _unknown(meant: list[KeyPath], left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """What was allowed to differ and is in neither dump."""
    known = dict.fromkeys([*sections(left), *sections(right)])
    notes: list[str] = []
    for path in meant:
        if path not in known:
            close = close_keys(path, known)
            note = tell("{key} may differ, but neither dump has such a key", key=show_key(path))
            notes.append(note + (tell("; did you mean {keys}?", keys=join(" or ", close)) if close else ""))
    return notes
