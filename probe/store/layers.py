"""Reading msprobe's layer dumps as events in execution order.

``dump.json`` lists what was dumped in the order in which modules left, ``construct.json`` the modules in the order in
which they were entered; together they give the order of both.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from probe.errors import DumpError
from probe.store import layout
from probe.store.digest import digest
from probe.store.scan import walk
from probe.types import ROLES_OF_STAGE, STAGES

EventKind = Literal[
    "stage_start", "weights", "forward_input", "forward_output", "grad_output", "grad_input", "param_grad"
]

_NAME = re.compile(r"Module\.(?P<name>.+)\.(?P<type>[^.]+)\.(?P<way>forward|backward|parameters_grad)\.(?P<call>\d+)")
_NAMED_FILE = re.compile(r'"data_name": "([^"]+)"')
_STATISTICS = frozenset({"Max", "Min", "Mean", "Norm", "data_name", "md5", "requires_grad"})


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of a stage in which layers were dumped.

    Example:
        >>> Window(Path("."), "actor_update", 2, 0, 0, "actor", 3, True).key
        ('actor_update', 2, 0, 0)
    """

    folder: Path
    stage: str
    step: int
    rank: int
    micro_step: int
    """Where it lies: 0 is msprobe's own folder, m the folder ``micro_step{m}`` in it."""
    role: str
    """The model that was dumped."""
    order: int
    """When it was opened, among the run's windows."""
    complete: bool
    """Whether it was closed; of a window that another tool wrote, whether it holds anything."""

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What makes two windows the same in two runs."""
        return (self.stage, self.step, self.rank, self.micro_step)


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

    @property
    def key(self) -> tuple[str, str, int]:
        """What makes two events the same in two runs."""
        return (self.kind, self.name, self.call)


def msprobe_missing() -> str | None:
    """Why msprobe can do nothing in this environment; None when it is installed."""
    if importlib.util.find_spec("msprobe") is not None:
        return None
    return "msprobe is not installed (its wheels are for Linux)"


def find_windows(dump: Path) -> list[Window]:
    """All layer windows of a dump folder, in the order in which they were opened.

    msprobe's ``proc{pid}``, where it was not told a rank, counts as rank 0.

    Raises:
        DumpError: A layer dump lies in a folder that names no step and rank, or two lie in the same place.
    """
    windows = []
    for number, stage in enumerate(STAGES):
        windows += [_window(folder / "dump.json", dump, stage, number) for folder in _window_folders(dump / stage)]
    if len({window.key for window in windows}) < len(windows):
        raise DumpError(f"{dump}: two layer dumps of the same stage, step and rank")
    return sorted(windows, key=lambda window: (window.step, window.order, window.rank, window.micro_step))


def _window_folders(stage: Path) -> list[Path]:
    """Folders of a stage that hold a layer dump, or what is left of one."""
    found = []
    for base, entries in walk(stage):
        if entries is None:
            raise DumpError(f"{base}: cannot be read, or is a link, which is not followed")
        for entry in entries:
            if entry.is_symlink():
                raise DumpError(f"{entry.path}: a link is not followed")
        if {"dump.json", layout.WINDOW, "construct.json"} & {entry.name for entry in entries}:
            found.append(Path(base))
    return sorted(found)


def _window(file: Path, dump: Path, stage: str, number: int) -> Window:
    place = file.parent.relative_to(dump / stage).as_posix()
    match = re.fullmatch(r"step(\d{1,9})/(?:rank(\d{1,9})|proc\d+)(?:/micro_step(\d{1,9}))?", place)
    if match is None:
        raise DumpError(f"{file}: not in a step and rank folder")
    step, rank, micro_step = (int(part or 0) for part in match.groups())
    marker = file.parent / layout.WINDOW
    role, order, complete = ROLES_OF_STAGE[stage][-1], number, True
    if marker.is_file():
        note = _read_json(marker)
        role, order = note.get("role", role), note.get("order", order)
        if not isinstance(role, str) or not isinstance(order, int):
            raise DumpError(f"{marker}: damaged (a value has the wrong type)")
    elif layout.manifests(dump):
        complete = False  # our own recording marks every window that closed
    return Window(file.parent, stage, step, rank, micro_step, role, order, complete)


def read_events(window: Window) -> list[LayerEvent]:
    """A window's events in execution order; its parameters first, as they were when the modules first ran.

    Raises:
        DumpError: The window is damaged, or does not hold whole tensors.
    """
    with _foreign(window):
        return _read_events(window)


@contextmanager
def _foreign(window: Window) -> Iterator[None]:
    """Says of msprobe's files, which may come from anywhere, that they are damaged, whatever reading them raises."""
    try:
        yield
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise DumpError(f"{window.folder}: the layer dump is damaged ({type(error).__name__}: {error})") from error


def _read_events(window: Window) -> list[LayerEvent]:
    dump = _read_json(window.folder / "dump.json")
    construct = _read_json(window.folder / "construct.json")
    if dump.get("task") != "tensor":
        raise DumpError(f"{window.folder}: dumped with task {dump.get('task')!r}; only 'tensor' holds exact values")
    data = dump.get("data")
    if not isinstance(data, dict) or not data:
        raise DumpError(f"{window.folder}: dump.json is empty")
    if not all(isinstance(content, dict) for content in data.values()):
        raise DumpError(f"{window.folder}: dump.json is damaged (an entry is not an object)")
    events: list[LayerEvent] = []
    entered: set[str] = set()
    to_enter = iter(construct)

    def enter_up_to(full_name: str) -> None:
        while full_name not in entered and (node := next(to_enter, None)) is not None:
            entered.add(node)
            events.extend(_enter(node, construct, data))

    names = list(data)
    for index, full_name in enumerate(names):
        match, content = _match(window, full_name), data[full_name]
        if match["way"] == "parameters_grad":
            backward = _backward_around(names[index:], match["name"])
            if backward is not None:
                enter_up_to(backward)
            events += _parameter_events("param_grad", match, None, content)
            continue
        enter_up_to(full_name)
        if full_name not in entered:
            raise DumpError(f"{window.folder}: {full_name!r} is in dump.json, not in construct.json")
        events.append(_leave(match, _parent(construct, full_name), content))
    weights = [
        event
        for full_name, content in data.items()
        for first in [_match(window, full_name)]
        if first["way"] == "forward" and first["call"] == "0"
        for event in _parameter_events("weights", first, None, content.get("parameters", {}))
    ]
    return weights + events


def require_all_tensors_listed(window: Window) -> None:
    """Makes sure that every stored tensor was compared: a ``dump.json`` that was cut short leaves some unnamed.

    Raises:
        DumpError: One is not named.
    """
    dump = _read_json(window.folder / "dump.json")
    listed = set(_NAMED_FILE.findall(json.dumps(dump, ensure_ascii=False)))
    for file in sorted((window.folder / "dump_tensor_data").glob("*")):
        if file.name not in listed:
            raise DumpError(f"{file}: dump.json does not name it")


def _match(window: Window, full_name: str) -> re.Match[str]:
    match = _NAME.fullmatch(full_name)
    if match is None:
        raise DumpError(f"{window.folder}: {full_name!r} in dump.json is not a module")
    return match


def _backward_around(names: list[str], module: str) -> str | None:
    """The module's backward that a parameter's gradient came out of: it leaves right after."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or match["way"] != "parameters_grad":
            return name if match and (match["way"], match["name"]) == ("backward", module) else None
    return None


def _enter(full_name: str, construct: dict[str, Any], data: dict[str, Any]) -> Iterator[LayerEvent]:
    match, content = _NAME.fullmatch(full_name), data.get(full_name)
    if match is None or content is None:
        return
    parent, call = _parent(construct, full_name), int(match["call"])
    if match["way"] == "forward":
        if call:  # an update between two calls changes what the second one computes with
            yield from _parameter_events("weights", match, None, content.get("parameters", {}))
        arguments = {"args": content.get("input_args"), "kwargs": content.get("input_kwargs")}
        yield LayerEvent("forward_input", match["name"], call, parent, tuple(_leaves(arguments)))
    else:
        yield LayerEvent("grad_output", match["name"], call, parent, tuple(_leaves(content.get("input"))))


def _leave(match: re.Match[str], parent: str | None, content: dict[str, Any]) -> LayerEvent:
    kind: EventKind = "forward_output" if match["way"] == "forward" else "grad_input"
    return LayerEvent(kind, match["name"], int(match["call"]), parent, tuple(_leaves(content.get("output"))))


def _parameter_events(
    kind: EventKind, match: re.Match[str], parent: str | None, content: dict[str, Any]
) -> Iterator[LayerEvent]:
    for name, value in content.items():
        yield LayerEvent(kind, f"{match['name']}.{name}", int(match["call"]), parent, tuple(_leaves(value)))


def _parent(construct: dict[str, Any], full_name: str) -> str | None:
    parent = construct.get(full_name)
    if isinstance(parent, list):  # Megatron adds the micro-step
        parent = parent[0]
    match = _NAME.fullmatch(parent) if isinstance(parent, str) else None
    return match["name"] if match else None


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and "type" not in value:
        for key, child in value.items():
            yield from _leaves(child, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _leaves(child, f"{path}.{index}" if path else str(index))
    else:
        yield path, value


def content_of(window: Window, event: LayerEvent) -> tuple[tuple[str, str], ...]:
    """Every value of an event as comparable text: a tensor's digest, anything else as JSON without statistics.

    Raises:
        DumpError: A tensor cannot be read, or torch is not installed.
    """
    with _foreign(window):
        return tuple((path, _content(window, value)) for path, value in event.items)


def _content(window: Window, value: Any) -> str:
    if isinstance(value, dict) and value.get("data_name"):
        tensor = load_tensor(window, str(value["data_name"]))
        name, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        return f"{name}{list(shape)} {digest(name, shape, _bytes_of(tensor))}"
    if isinstance(value, dict):
        if value.get("type") == "torch.Tensor" and 0 not in value.get("shape", ()):
            raise DumpError(f"{window.folder}: a tensor of {value['shape']} was not stored")
        value = {key: child for key, child in value.items() if key not in _STATISTICS}
    return json.dumps(value, sort_keys=True)


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


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = layout.read_json(path)
    except (OSError, ValueError) as error:
        raise DumpError(f"{path}: damaged or missing ({error})") from error
    if not isinstance(value, dict):
        raise DumpError(f"{path}: damaged (not an object)")
    return value
