"""Layer dumps of two runs, event by event in execution order: by the exact bytes of every tensor where both kept them.

Where they kept checksums or statistics only, these are compared, and what shows no difference there is counted as no
more than that.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from probe.compare.align import align
from probe.errors import DumpError
from probe.language import tell
from probe.store.evidence import LEVELS, Evidence, Level
from probe.store.layers import LayerEvent, Window, content_of, find_windows, read_window, require_whole

Contents = tuple[tuple[str, Evidence], ...]


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """One event that differs.

    Example:
        >>> window = Window(Path("."), "actor_update", 2, 0, 0, "actor", 0, True)
        >>> event = LayerEvent("forward_output", "model.norm", 0, "model", ())
        >>> LayerDifference("different", 7, window, event, True).full_name
        'actor.model.norm'
    """

    status: Literal["different", "missing", "extra"]
    position: int
    """Among the events of its window, from 0."""
    window: Window
    event: LayerEvent
    first_in_window: bool
    """Whether no event of its kind of pass (forward or backward) came before it in the window."""
    opens_pass: bool = False
    """Whether it is the input of the module that every forward pass of the window enters first."""
    items: tuple[str, ...] = ()
    """Paths of the values that differ, of an event that both runs have."""
    level: Level = "exact"
    """What shows that they differ."""

    @property
    def full_name(self) -> str:
        """Module or parameter name with its model's role in front; the role alone for a whole stage."""
        return self._with_role(self.event.name)

    @property
    def enclosing(self) -> str:
        """The module that called it, or the model."""
        return self._with_role(self.event.parent)

    def _with_role(self, name: str | None) -> str:
        role = "" if self.event.operation and name == self.event.name else self.window.role
        return ".".join(part for part in (role, name) if part) or self.window.stage or tell("the model")


@dataclass
class LayerComparison:
    """What comparing the layers of two dumps gave.

    Example:
        >>> LayerComparison().first is None
        True
    """

    compared: int = 0
    """Events looked at."""
    differences: list[LayerDifference] = field(default_factory=list)
    """Events that differ, in execution order."""
    stages: list[str] = field(default_factory=list)
    """Stages that both runs dumped, in the order in which they ran."""
    problems: list[str] = field(default_factory=list)
    """What could not be compared, one sentence each."""
    levels: Counter[Level] = field(default_factory=Counter)
    """How many values show no difference, by how much that tells."""
    doubtful: set[tuple[tuple[str, int, int, int], str]] = field(default_factory=set)
    """Parameters, by window and name, whose checksums differ while their statistics do not: of memory on the host,
    msprobe takes checksums later, when an update may have changed it in place. They neither count as a difference nor
    as the same."""

    @property
    def reservations(self) -> list[str]:
        """What is not known of values that show no difference: such a comparison is never ``identical``."""
        known = ((level, self.levels[level]) for level in LEVELS if self.levels[level])
        found = [said for level, count in known if (said := _reservation(level, count)) is not None]
        if self.doubtful:
            found.append(
                tell(
                    "{count} parameters have other checksums, yet the same statistics: of memory on the host, msprobe"
                    " takes checksums later, when an update may have changed it; these do not count",
                    count=len(self.doubtful),
                )
            )
        return found

    @property
    def first(self) -> LayerDifference | None:
        """The first event that differs: earliest stage, then earliest place in its window, across ranks."""
        return min(self.differences, key=self._order, default=None)

    @property
    def ranks_of_first(self) -> list[int]:
        """Every rank in which the first difference is the same event."""
        first = self.first
        if first is None:
            return []
        place = (*self._order(first)[:3], first.event.key)
        return sorted({d.window.rank for d in self.differences if (*self._order(d)[:3], d.event.key) == place})

    def _order(self, difference: LayerDifference) -> tuple[int, int, int, int]:
        window = difference.window
        return (window.step, self.stages.index(window.stage), window.micro_step, difference.position)


def _reservation(level: Level, count: int) -> str | None:
    match level:
        case "statistics":
            return tell(
                "{count} values were compared by statistics alone (max, min, mean, norm): no difference in the"
                " statistics of these, which may differ all the same",
                count=count,
            )
        case "xor":
            return tell(
                "{count} values were compared by an XOR of their words alone: no difference there, which says nothing"
                " of their order, nor of words that stand there an even number of times",
                count=count,
            )
        case "nothing":
            return tell(
                "{count} values have neither bytes, checksum nor statistics in both dumps: only their dtype and shape"
                " were compared",
                count=count,
            )
        case _:
            return None


def compare_layers(c: Path, d: Path) -> LayerComparison:
    """Compares all layer windows of two dump folders.

    Args:
        c: One run's dump folder.
        d: The other's.
    """
    result = LayerComparison()
    try:
        windows_c = {window.key: window for window in find_windows(c)}
        windows_d = {window.key: window for window in find_windows(d)}
    except DumpError as error:
        result.problems.append(str(error))
        return result
    shared = {key[:3] for key in windows_c} & {key[:3] for key in windows_d}
    for key, index_c, index_d in align(list(windows_c), list(windows_d)):
        if index_c is None or index_d is None:
            _note_lone_window(windows_d[key] if index_c is None else windows_c[key], index_d is None, shared, result)
            continue
        one, two = windows_c[key], windows_d[key]
        unfinished = [str(window.folder) for window in (one, two) if not window.complete]
        if unfinished:
            result.problems.append(tell("{folder}: the layer dump was cut off", folder=unfinished[0]))
            continue
        try:
            _compare_window(one, two, result)
            require_whole(one)
            require_whole(two)
        except DumpError as error:
            result.problems.append(str(error))
    result.problems += result.reservations
    return result


def _note_lone_window(window: Window, in_c: bool, shared: set[tuple[str, int, int]], result: LayerComparison) -> None:
    """A stage that one run entered once more is a difference; one that only one run was told to dump says nothing."""
    if window.key[:3] not in shared:
        result.problems.append(tell("{folder}: the other run has no such layer dump", folder=window.folder))
        return
    if window.stage not in result.stages:
        result.stages.append(window.stage)
    event = LayerEvent("stage_start", "", 0, None, ())
    result.differences.append(LayerDifference("missing" if in_c else "extra", 0, window, event, True))


def _compare_window(one: Window, two: Window, result: LayerComparison) -> None:
    content_c, content_d = read_window(one), read_window(two)
    if content_c.level != content_d.level:
        raise DumpError(
            tell(
                "{folder}: the two were dumped at levels {c} and {d}: they hold other events",
                folder=one.folder, c=content_c.level, d=content_d.level,
            )
        )  # fmt: skip
    events_c, events_d = ({event.key: event for event in content.events} for content in (content_c, content_d))
    if one.stage not in result.stages:
        result.stages.append(one.stage)
    passes_seen: set[bool] = set()
    of_values = False
    entry = next((name for kind, name, _ in events_c if kind == "forward_input"), None)
    for position, (key, index_c, index_d) in enumerate(align(list(events_c), list(events_d))):
        backward = key[0] in ("grad_output", "grad_input", "param_grad")
        event = events_c[key] if index_c is not None else events_d[key]
        status: Literal["different", "missing", "extra"] | None = None
        unlike: list[tuple[str, Level]] = []
        if index_d is None:
            status = "missing"
        elif index_c is None:
            status = "extra"
        else:
            left = content_of(one, events_c[key], content_c.task)
            right = content_of(two, events_d[key], content_d.task)
            of_values = of_values or any(evidence.of_values for _, evidence in (*left, *right))
            unlike = _unlike(left, right, result.levels)
            if key[0] == "weights" and unlike and _only_checksums(left, right):
                result.doubtful.add((one.key, key[1]))
                unlike = []
            status = "different" if unlike else None
        if status is not None:
            first = backward not in passes_seen
            opens = key[:2] == ("forward_input", entry)
            items = tuple(path for path, _ in unlike)
            level = unlike[0][1] if unlike else "exact"
            result.differences.append(LayerDifference(status, position, one, event, first, opens, items, level))
        if key[0] != "weights":
            passes_seen.add(backward)
        result.compared += 1
    if not of_values:
        raise DumpError(tell("{folder}: no event of both dumps tells anything of a tensor's values", folder=one.folder))


def _unlike(one: Contents, two: Contents, levels: Counter[Level]) -> list[tuple[str, Level]]:
    """The paths of the values of an event that differ, and what shows it; the others are counted."""
    left, right = dict(one), dict(two)
    unlike: list[tuple[str, Level]] = []
    for path in {**left, **right}:
        if path not in left or path not in right:
            unlike.append((path, "exact"))
            continue
        same, level = left[path].against(right[path])
        if same:
            levels[level] += 1
        else:
            unlike.append((path, level))
    return unlike


def _only_checksums(one: Contents, two: Contents) -> bool:
    """Whether it is checksums alone that differ, and both runs have statistics."""
    pairs = list(zip(one, two, strict=True)) if len(one) == len(two) else []
    return bool(pairs) and all(
        left.form == right.form
        and None not in (left.checksum, right.checksum)
        and left.statistics is not None
        and left.statistics == right.statistics
        for (_, left), (_, right) in pairs
    )
