"""Where msprobe's layer dumps lie: every folder with a ``dump.json``, and the stage, step and rank that its path names.

``PrecisionDebugger`` writes ``step{n}/rank{r}`` (``proc{pid}`` or ``rank`` where it knows no rank). Around that,
trainers put folders of their own: ``<stage>/step{n}/rank{r}`` (MindSpeed-RL, and ours),
``step_{n}/<stage>/step{m}/rank{r}`` (verl). A folder may be any part of such a tree: what its own path names, down to a
single rank, counts for all in it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.errors import DumpError
from probe.language import join, tell
from probe.store import layout
from probe.store.scan import walk
from probe.types import ROLES_OF_STAGE, STAGES

DUMP_FILE = "dump.json"
CONSTRUCT_FILE = "construct.json"
STACK_FILE = "stack.json"
ERRORS_FILE = "dump_error_info.log"
"""What msprobe writes where it could not dump something."""
_MARKS = frozenset({DUMP_FILE, CONSTRUCT_FILE, layout.WINDOW})
_OURS = frozenset({layout.DATA, layout.INDEX, layout.TRACE, layout.CAPTURE})
"""Folders at the top of a dump that hold no layers."""
_NUMBER = r"(\d{1,9})"
_STEP, _TRAINER_STEP = re.compile(f"step{_NUMBER}"), re.compile(f"step_{_NUMBER}")
_RANK, _MICRO_STEP = re.compile(f"rank_?{_NUMBER}"), re.compile(f"micro_step{_NUMBER}")
_NO_RANK = re.compile(r"proc\d+|rank|rank_unknown")
STAGES_OF_VERL = {
    "ref_compute_log_prob": "reference_compute_log_prob",
    "compute_values": "critic_compute_values",
    "rollout_generate": "actor_generate_sequences",
    "generate_sequences": "actor_generate_sequences",
}
"""What verl calls the stages; all others have one name, or none of ours."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a path names; None for what it leaves open.

    Example:
        >>> Place.of(("step_3", "ref_compute_log_prob", "step0", "rank1"))
        Place(stage='reference_compute_log_prob', step=3, rank=1, micro_step=0)
    """

    stage: str | None = None
    step: int | None = None
    rank: int | None = None
    micro_step: int | None = None

    @staticmethod
    def of(parts: tuple[str, ...]) -> Place:
        """Reads the parts of a path. A trainer's own step and rank count before those of msprobe inside them."""
        stage: list[str] = []
        found: dict[str, list[int]] = {"step": [], "inner": [], "rank": [], "micro_step": []}
        kinds = (("step", _TRAINER_STEP), ("inner", _STEP), ("rank", _RANK), ("micro_step", _MICRO_STEP))
        for part in parts:
            if _NO_RANK.fullmatch(part):
                found["rank"].append(0)
                continue
            match = next(((name, hit) for name, form in kinds if (hit := form.fullmatch(part))), None)
            if match is None:
                stage.append(part)
            else:
                found[match[0]].append(int(match[1].group(1)))
        steps, inner = found["step"], found["inner"]
        micro = found["micro_step"] or (inner if steps else [])
        name = "/".join(stage)
        return Place(
            STAGES_OF_VERL.get(name, name) if stage else None,
            next(iter(steps or inner[-1:]), None),
            next(iter(found["rank"]), None),
            next(iter(micro), None),
        )

    @staticmethod
    def of_root(folder: Path) -> Place:
        """What the folder that was named says by its own path."""
        return Place.of(_named_by(folder))

    @property
    def words(self) -> str:
        """The place for people."""
        return join(
            ", ",
            [
                *([tell("stage {stage}", stage=self.stage)] if self.stage is not None else []),
                *([tell("step {step}", step=self.step)] if self.step is not None else []),
                *([tell("rank {rank}", rank=self.rank)] if self.rank is not None else []),
                *([tell("micro-step {micro_step}", micro_step=self.micro_step)] if self.micro_step is not None else []),
            ],
        )


def _named_by(folder: Path) -> tuple[str, ...]:
    """The end of a folder's path that names a place: steps and ranks, and among them known stages."""
    taken: list[str] = []
    for part in reversed(folder.absolute().parts):
        if part not in STAGES and part not in STAGES_OF_VERL and Place.of((part,)).stage is not None:
            break
        taken.append(part)
    return tuple(reversed(taken))


@dataclass(frozen=True, slots=True)
class Window:
    """One stretch of a stage in which layers were dumped.

    Example:
        >>> Window(Path("."), "actor_update", 2, 0, 0, "actor", 3, True).key
        ('actor_update', 2, 0, 0)
    """

    folder: Path
    stage: str
    """Empty where the dump knows none."""
    step: int
    rank: int
    micro_step: int
    """Where it lies: 0 is msprobe's own folder, m the folder ``micro_step{m}`` in it."""
    role: str
    """The model that was dumped; empty where nobody knows."""
    order: int
    """When it was opened, among the run's windows."""
    complete: bool
    """Whether it was closed; of a window that another tool wrote, whether it holds anything."""
    inside: Place | None = None
    """What its path names inside the folder that was given; None where that is all of it."""
    ours: bool = False
    """Whether our own recording closed it."""

    @property
    def key(self) -> tuple[str, int, int, int]:
        """What makes two windows the same in two runs, whatever the folders that hold them are called."""
        if self.inside is None:
            return (self.stage, self.step, self.rank, self.micro_step)
        inside = self.inside
        return (inside.stage or "", inside.step or 0, inside.rank or 0, inside.micro_step or 0)


def find_windows(dump: Path) -> list[Window]:
    """All layer windows of a dump folder, in the order in which they were opened.

    msprobe's ``proc{pid}``, where it was not told a rank, counts as rank 0.

    Raises:
        DumpError: A folder cannot be read or is a link, or two layer dumps lie in the same place.
    """
    root = _named_by(dump)
    found = window_folders(dump)
    known = bool(found) and bool(layout.manifests(dump))
    windows = [_window(folder, dump, root, known) for folder in found]
    by_key = {window.key: window for window in windows}
    if len(by_key) < len(windows):
        doubled = next(window for window in windows if by_key[window.key] is not window)
        why = "; without ranks nobody knows which is which" if _NO_RANK.fullmatch(doubled.folder.name) else ""
        raise DumpError(f"{dump}: two layer dumps of the same stage, step and rank{why}")
    return sorted(windows, key=lambda window: (window.step, window.order, window.rank, window.micro_step))


def window_folders(dump: Path) -> list[Path]:
    """Folders of a dump that hold a layer dump, or what is left of one.

    Raises:
        DumpError: A folder cannot be read, or something in it is a link.
    """
    if dump.is_symlink() or not dump.is_dir():
        return []
    tops = [dump / stage for stage in STAGES] if layout.manifests(dump) else [dump]
    found = []
    for top in tops:
        for base, entries in walk(top, _OURS if top == dump else frozenset()):
            if entries is None:
                raise DumpError(f"{base}: cannot be read, or is a link, which is not followed")
            for entry in entries:
                if entry.is_symlink():
                    raise DumpError(f"{entry.path}: a link is not followed")
            if _MARKS & {entry.name for entry in entries}:
                found.append(Path(base))
    return sorted(found)


def _window(folder: Path, dump: Path, root: tuple[str, ...], known: bool) -> Window:
    parts = folder.relative_to(dump).parts
    place = Place.of((*root, *parts))
    name = place.stage or ""
    role = ROLES_OF_STAGE[name][-1] if name in ROLES_OF_STAGE else ""
    order = STAGES.index(name) if name in STAGES else len(STAGES)
    marker = folder / layout.WINDOW
    ours = marker.is_file()
    if ours:
        note = read_object(marker)
        role, order = note.get("role", role), note.get("order", order)
        if not isinstance(role, str) or not isinstance(order, int):
            raise DumpError(f"{marker}: damaged (a value has the wrong type)")
    complete = ours or not known  # our own recording marks every window that closed
    where = (place.step or 0, place.rank or 0, place.micro_step or 0)
    return Window(folder, name, *where, role, order, complete, Place.of(parts), ours)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file of a window that holds an object.

    Raises:
        DumpError: It is missing or damaged.
    """
    try:
        value = layout.read_json(path)
    except (OSError, ValueError) as error:
        raise DumpError(f"{path}: damaged or missing ({_short(error)})") from error
    if not isinstance(value, dict):
        raise DumpError(f"{path}: damaged (not an object)")
    return value


def _short(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return error.msg
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split())[:200]
