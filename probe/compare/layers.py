"""Layer dumps of two runs, event by event in execution order, by the exact bytes of every tensor."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from probe.compare.align import align
from probe.errors import DumpError
from probe.store.layers import LayerEvent, Window, content_of, find_windows, read_events, require_all_tensors_listed


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

    @property
    def full_name(self) -> str:
        """Module or parameter name with its model's role in front; the role alone for a whole stage."""
        return f"{self.window.role}.{self.event.name}" if self.event.name else self.window.role

    @property
    def enclosing(self) -> str:
        """The module that called it, or the model."""
        return f"{self.window.role}.{self.event.parent}" if self.event.parent else self.window.role


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
            result.problems.append(f"{unfinished[0]}: the layer dump was cut off")
            continue
        try:
            _compare_window(one, two, result)
            require_all_tensors_listed(one)
            require_all_tensors_listed(two)
        except DumpError as error:
            result.problems.append(str(error))
    return result


def _note_lone_window(window: Window, in_c: bool, shared: set[tuple[str, int, int]], result: LayerComparison) -> None:
    """A stage that one run entered once more is a difference; one that only one run was told to dump says nothing."""
    if window.key[:3] not in shared:
        result.problems.append(f"{window.folder}: the other run has no such layer dump")
        return
    if window.stage not in result.stages:
        result.stages.append(window.stage)
    event = LayerEvent("stage_start", "", 0, None, ())
    result.differences.append(LayerDifference("missing" if in_c else "extra", 0, window, event, True))


def _compare_window(one: Window, two: Window, result: LayerComparison) -> None:
    events_c = {event.key: event for event in read_events(one)}
    events_d = {event.key: event for event in read_events(two)}
    if one.stage not in result.stages:
        result.stages.append(one.stage)
    passes_seen: set[bool] = set()
    entry = next((name for kind, name, _ in events_c if kind == "forward_input"), None)
    for position, (key, index_c, index_d) in enumerate(align(list(events_c), list(events_d))):
        backward = key[0] in ("grad_output", "grad_input", "param_grad")
        event = events_c[key] if index_c is not None else events_d[key]
        status: Literal["different", "missing", "extra"] | None = None
        if index_d is None:
            status = "missing"
        elif index_c is None:
            status = "extra"
        elif content_of(one, events_c[key]) != content_of(two, events_d[key]):
            status = "different"
        if status is not None:
            first = backward not in passes_seen
            opens = key[:2] == ("forward_input", entry)
            result.differences.append(LayerDifference(status, position, one, event, first, opens))
        if key[0] != "weights":
            passes_seen.add(backward)
        result.compared += 1
