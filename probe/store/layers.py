"""Reading msprobe's layer dumps as events in execution order.

``dump.json`` lists what was dumped in the order in which modules and operations left, ``construct.json`` which module
called which, and the modules in the order in which they were entered; together they give the order of both. Level L0
has modules, L1 the operations of torch, mix both.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from probe.errors import DumpError
from probe.language import tell
from probe.store import layout
from probe.store.digest import digest
from probe.store.evidence import Evidence, evidence_of, statistics_of
from probe.store.windows import CONSTRUCT_FILE, DUMP_FILE, ERRORS_FILE, STACK_FILE, Window, find_windows, read_object

EventKind = Literal[
    "stage_start", "weights", "forward_input", "forward_output", "grad_output", "grad_input", "param_grad"
]

__all__ = ["LayerEvent", "Window", "content_of", "find_windows", "load_tensor", "msprobe_missing", "read_events"]

_MODULE = re.compile(
    r"(?:Module|Cell)\.(?P<name>.+)\.(?P<type>[^.]+)\.(?P<way>forward|backward|parameters_grad)\.(?P<call>\d{1,9})"
)
_OPERATION = re.compile(r"(?P<name>[^.]+\..+)\.(?P<call>\d{1,9})\.(?P<way>forward|backward)")
_KNOWN = frozenset({"input", "input_args", "input_kwargs", "output", "parameters"})
TASKS = ("tensor", "statistics")
"""Tasks of msprobe that record something of a tensor's values."""
_FLUSHED = 1000
"""msprobe writes ``dump.json`` every so many entries: one that ends there may have been cut off."""
_NAMED_FILE = re.compile(r'"data_name": "([^"]+)"')


@dataclass(frozen=True, slots=True)
class LayerEvent:
    """One observation in a window: a module entered or left, a gradient arrived or passed on.

    Example:
        >>> LayerEvent("forward_output", "model.norm", 0, None, ()).key
        ('forward_output', 'model.norm', 0)
    """

    kind: EventKind
    name: str
    """Dotted module name in its model; with the parameter's name for ``weights`` and ``param_grad``."""
    call: int
    """Which call of that module in the window, from 0."""
    parent: str | None
    """The module that called it; None for the model itself."""
    items: tuple[tuple[str, Any], ...]
    """Path and description of every value, tensors with their file."""
    operation: bool = False
    """Whether it is an operation of torch rather than a module."""

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes two events the same in two runs."""
        return (self.kind, self.name, self.call)


@dataclass(frozen=True, slots=True)
class Content:
    """What a window holds.

    Example:
        >>> Content([], "statistics", "L1").level
        'L1'
    """

    events: list[LayerEvent]
    """In execution order; parameters first, as they were when the modules first ran."""
    task: str
    """msprobe's task that dumped it."""
    level: str
    """msprobe's level: ``L0`` modules, ``L1`` operations, ``mix`` both."""


def msprobe_missing() -> str | None:
    """Why msprobe can do nothing in this environment; None when it is installed."""
    if importlib.util.find_spec("msprobe") is not None:
        return None
    return tell("msprobe is not installed (its wheels are for Linux)")


def read_events(window: Window) -> list[LayerEvent]:
    """A window's events in execution order; its parameters first, as they were when the modules first ran.

    Raises:
        DumpError: The window is damaged, or holds nothing of values.
    """
    return read_window(window).events


def read_window(window: Window) -> Content:
    """A window's events in execution order, and how they were dumped. See ``read_events``."""
    with _foreign(window):
        return _read_events(window)


@contextmanager
def _foreign(window: Window) -> Iterator[None]:
    """Says of msprobe's files, which may come from anywhere, that they are damaged, whatever reading them raises."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise DumpError(f"{window.folder}: the layer dump is damaged ({type(error).__name__}: {error})") from error


def _read_events(window: Window) -> Content:
    dump = read_object(window.folder / DUMP_FILE)
    construct = _construct(window)
    if dump.get("task") not in TASKS:
        known = " or ".join(map(repr, TASKS))
        raise DumpError(
            f"{window.folder}: dumped with task {dump.get('task')!r}; only {known} hold something of values"
        )
    data = dump.get("data")
    if not isinstance(data, dict) or not data:
        raise DumpError(f"{window.folder}: dump.json is empty")
    if not all(isinstance(content, dict) for content in data.values()):
        raise DumpError(f"{window.folder}: dump.json is damaged (an entry is not an object)")
    with_operations = dump.get("level") != "L0"
    reading = _Reading(data, construct or {})
    names = list(data)
    for index, full_name in enumerate(names):
        match, content = _match(window, full_name, with_operations), data[full_name]
        if match["way"] == "parameters_grad":
            backward = _backward_around(names[index:], match["name"])
            if backward is not None:
                reading.enter_up_to(backward)
            reading.events += _parameter_events("param_grad", match, None, content)
            continue
        reading.enter_up_to(full_name)
        if full_name not in reading.entered:
            if match.re is _MODULE and construct is not None:
                raise DumpError(f"{window.folder}: {full_name!r} is in dump.json, not in construct.json")
            reading.enter(full_name)
        reading.events.append(_leave(match, reading.parent(full_name), content))
    weights = [
        event
        for full_name, content in data.items()
        for first in [_match(window, full_name, with_operations)]
        if first["way"] == "forward" and first["call"] == "0"
        for event in _parameter_events("weights", first, None, content.get("parameters", {}))
    ]
    events = weights + reading.events
    if len({event.key for event in events}) < len(events):
        raise DumpError(f"{window.folder}: the layer dump has two events of one name")
    return Content(events, str(dump["task"]), str(dump.get("level")))


class _Reading:
    """The events of a window, as far as it has been read."""

    def __init__(self, data: dict[str, Any], construct: dict[str, Any]) -> None:
        self._data, self._construct = data, construct
        self._to_enter = iter(construct)
        self.events: list[LayerEvent] = []
        self.entered: set[str] = set()

    def enter_up_to(self, full_name: str) -> None:
        """Enters all that comes before a module or operation, and itself."""
        while full_name not in self.entered and (node := next(self._to_enter, None)) is not None:
            self.enter(node)

    def enter(self, full_name: str) -> None:
        """Enters a module or operation, before it the modules around it: at level mix they are noted behind it."""
        around = [full_name]
        while (parent := self._caller(around[-1])) is not None and parent not in around:
            around.append(parent)
        for name in reversed(around):
            if name not in self.entered:
                self.entered.add(name)
                self.events.extend(_enter(name, self.parent(name), self._data))

    def parent(self, full_name: str) -> str | None:
        """The dotted name of the module around it."""
        match = _MODULE.fullmatch(self._caller(full_name) or "")
        return match["name"] if match else None

    def _caller(self, full_name: str) -> str | None:
        found = self._construct.get(full_name)
        if isinstance(found, list):  # Megatron adds the micro-step
            found = found[0]
        return found if isinstance(found, str) else None


def _construct(window: Window) -> dict[str, Any] | None:
    """Which module called which; None where msprobe was told to write no such thing."""
    path = window.folder / CONSTRUCT_FILE
    if not window.ours and not os.path.lexists(path) and not os.path.lexists(window.folder / STACK_FILE):
        return None
    return read_object(path)


def require_whole(window: Window) -> None:
    """Makes sure that nothing is missing that the window's own files can tell of.

    A ``dump.json`` that was cut short leaves stored tensors unnamed, or ends where msprobe writes it in between; what
    msprobe could not dump, it says in a log beside it.

    Raises:
        DumpError: Something is missing.
    """
    dump = read_object(window.folder / DUMP_FILE)
    listed = set(_NAMED_FILE.findall(json.dumps(dump, ensure_ascii=False)))
    for file in sorted((window.folder / "dump_tensor_data").glob("*")):
        if file.name not in listed:
            raise DumpError(f"{file}: dump.json does not name it")
    if os.path.lexists(window.folder / ERRORS_FILE):
        raise DumpError(f"{window.folder / ERRORS_FILE}: msprobe could not dump everything, as it says there")
    if not window.ours and (count := len(dump["data"])) % _FLUSHED == 0:
        raise DumpError(f"{window.folder}: dump.json ends after {count} entries, as that of a run that was killed does")


def _match(window: Window, full_name: str, with_operations: bool = False) -> re.Match[str]:
    match = _MODULE.fullmatch(full_name)
    if match is None and with_operations:
        match = _OPERATION.fullmatch(full_name)
    if match is None:
        what = "a module or an operation" if with_operations else "a module"
        raise DumpError(f"{window.folder}: {full_name!r} in dump.json is not {what}")
    return match


def _backward_around(names: list[str], module: str) -> str | None:
    """The module's backward that a parameter's gradient came out of: it leaves right after."""
    for name in names:
        match = _MODULE.fullmatch(name)
        if match is None or match["way"] != "parameters_grad":
            return name if match and (match["way"], match["name"]) == ("backward", module) else None
    return None


def _enter(full_name: str, parent: str | None, data: dict[str, Any]) -> Iterator[LayerEvent]:
    match, content = _MODULE.fullmatch(full_name) or _OPERATION.fullmatch(full_name), data.get(full_name)
    if match is None or content is None:
        return
    call, operation = int(match["call"]), match.re is _OPERATION
    if match["way"] == "forward":
        if call:  # an update between two calls changes what the second one computes with
            yield from _parameter_events("weights", match, None, content.get("parameters", {}))
        arguments = {"args": content.get("input_args"), "kwargs": content.get("input_kwargs")}
        yield LayerEvent("forward_input", match["name"], call, parent, tuple(_leaves(arguments)), operation)
    else:
        items = tuple(_leaves(content.get("input")))
        yield LayerEvent("grad_output", match["name"], call, parent, items, operation)


def _leave(match: re.Match[str], parent: str | None, content: dict[str, Any]) -> LayerEvent:
    kind: EventKind = "forward_output" if match["way"] == "forward" else "grad_input"
    more = {key: value for key, value in content.items() if key not in _KNOWN}
    items = (*_leaves(content.get("output")), *(_leaves(more) if more else ()))
    return LayerEvent(kind, match["name"], int(match["call"]), parent, items, match.re is _OPERATION)


def _parameter_events(
    kind: EventKind, match: re.Match[str], parent: str | None, content: dict[str, Any]
) -> Iterator[LayerEvent]:
    for name, value in content.items():
        yield LayerEvent(kind, f"{match['name']}.{name}", int(match["call"]), parent, tuple(_leaves(value)))


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and "type" not in value:
        for key, child in value.items():
            yield from _leaves(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _leaves(child, f"{path}.{index}" if path else str(index))
    else:
        yield path, value


def content_of(window: Window, event: LayerEvent, task: str = "tensor") -> tuple[tuple[str, Evidence], ...]:
    """What is known of every value of an event: a tensor's digest where it was stored, else what was kept of it.

    Args:
        window: The window.
        event: One of its events.
        task: The task that dumped it: tensors that were not stored are an error where tensors were to be.

    Raises:
        DumpError: A tensor cannot be read, or torch is not installed.
    """
    with _foreign(window):
        return tuple((path, _evidence(window, value, task)) for path, value in event.items)


def _evidence(window: Window, value: Any, task: str) -> Evidence:
    try:
        known = evidence_of(value, task)
    except ValueError as error:
        raise DumpError(f"{window.folder}: {error}") from error
    if known is not None:
        return known
    tensor = load_tensor(window, str(value["data_name"]))
    name, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    return Evidence(f"{name}{list(shape)}", digest(name, shape, _bytes_of(tensor)), None, statistics_of(value))


def load_tensor(window: Window, file_name: str) -> Any:
    """A dumped tensor, on the host.

    Raises:
        DumpError: The file is missing, damaged, or holds something else.
    """
    try:
        import torch
    except ImportError as error:
        raise DumpError(f"{window.folder}: reading layer dumps needs torch; pip install torch") from error
    path = window.folder / "dump_tensor_data" / file_name
    try:
        if path.resolve().parent != (window.folder / "dump_tensor_data").resolve():
            raise DumpError(f"{path}: lies outside the dump folder")
        with layout.open_plain(path) as file:
            tensor = torch.load(file, map_location="cpu", weights_only=True)
    except DumpError:
        raise
    except Exception as error:  # noqa: BLE001  (torch.load raises anything on a damaged file)
        raise DumpError(f"{path}: not a readable tensor ({' '.join(str(error).split())[:200]})") from error
    if not isinstance(tensor, torch.Tensor):
        raise DumpError(f"{path}: holds a {type(tensor).__name__}, not a tensor")
    return tensor.detach()


def _bytes_of(tensor: Any) -> bytes | memoryview:
    import torch

    plain = tensor.resolve_conj().resolve_neg()
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    return flat.view(torch.uint8).numpy().data.cast("B") if flat.numel() else b""
