"""Layer dumps by msprobe's ``PrecisionDebugger``, one window at a time.

The only module that touches msprobe's singletons and private attributes. What it works around, seen with
mindstudio-probe 26.2.0:

- Undistributed runs write to ``proc{pid}``: ``start`` is given the rank.
- A second window in a step overwrites the first: each goes to a scratch folder and is renamed when it closes.
- The hook that counts generated tokens stays on the model and later cuts off other windows: it is taken away again.
- Paths with spaces or letters outside ASCII are refused: the scratch folder is then in the system's temporary folder.
- A killed run leaves a valid, empty ``dump.json``: a window that closed carries ``window.json``.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from probe.errors import DumpError, UsageError
from probe.store import layout
from probe.store.writer import write_json
from probe.types import RunSpec, roles_of_stage

_MSPROBE_TAKES = re.compile(r"[a-zA-Z0-9_.:/-]+")
"""Paths that msprobe writes to (its ``FileCheckConst.FILE_VALID_PATTERN``)."""


class LayerDumper:
    """Dumps the layers of chosen stages and steps into msprobe's folders.

    Args:
        folder: The dump folder.
        spec: Which stages, steps and tokens; msprobe's task and level.
        rank: The process's rank, where several record into the folder.

    Raises:
        UsageError: msprobe is not installed in the trainer's environment.
    """

    def __init__(self, folder: Path, spec: RunSpec, rank: int | None = None) -> None:
        try:
            from msprobe.core.common.runtime import Runtime
            from msprobe.pytorch import PrecisionDebugger
        except ImportError as error:
            raise UsageError(
                "layers are to be dumped, but msprobe cannot be imported in the trainer's environment"
                f" ({error}); pip install mindstudio-probe"
            ) from error
        self._folder = folder
        self._spec = spec
        self._scratch = folder / layout.of_rank(".window", rank)
        if not _MSPROBE_TAKES.fullmatch(str(self._scratch)):
            self._scratch = Path(tempfile.mkdtemp(prefix="firstdiff-")) / "window"
        self._debugger = PrecisionDebugger(task=spec.task, level=spec.level, dump_path=str(self._scratch))
        self._service: Any = self._debugger.service
        self._runtime: Any = Runtime
        self._window: dict[str, Any] | None = None
        self._token_hooks: list[tuple[torch.nn.Module, int]] = []
        self._windows = 0

    def wants(self, stage: str, step: int) -> bool:
        """Whether a stage is dumped at a step."""
        return stage in self._spec.dump_stages and self._spec.step_start <= step <= self._spec.step_end

    def open(self, stage: str, step: int, rank: int, micro_step: int, models: Mapping[str, torch.nn.Module]) -> bool:
        """Opens a window: from here on the modules of the stage's model are dumped. False when one is open already.

        Raises:
            UsageError: No such model is attached.
        """
        role = next((role for role in roles_of_stage(stage) if role in models), None)
        if role is None:
            raise UsageError(
                f"stage {stage} is to be dumped, but no model is attached as {' or '.join(roles_of_stage(stage))};"
                " call probe.attach first"
            )
        if self._window is not None:
            return False
        model = models[role]
        self._window = {"stage": stage, "step": step, "rank": rank, "micro_step": micro_step, "role": role}
        self._service.first_start = True  # otherwise the rank of the first window stays
        self._service.config.dump_path = str(self._scratch)
        hooks_before = set(model._forward_pre_hooks)  # noqa: SLF001  (torch has no public list of hooks)
        arguments: dict[str, Any] = {"model": model, "rank_id": rank}
        if stage == "actor_generate_sequences":
            arguments["token_range"] = list(self._spec.token_range)
        self._debugger.start(**arguments)
        added = set(model._forward_pre_hooks) - hooks_before  # noqa: SLF001
        self._token_hooks = [(model, key) for key in added]
        return True

    @contextmanager
    def paused(self, stage: str) -> Iterator[None]:
        """Dumps nothing while another stage than the window's runs inside it: its model may carry hooks too."""
        if self._window is None or self._window["stage"] == stage:
            yield
            return
        running, self._runtime.is_running = self._runtime.is_running, False
        try:
            yield
        finally:
            self._runtime.is_running = running

    def close(self) -> None:
        """Closes the open window and gives it its name.

        Raises:
            DumpError: msprobe wrote nothing.
        """
        window = self._stop()
        source = self._scratch / "step0" / f"rank{window['rank']}"
        if not (source / "dump.json").is_file():
            raise DumpError(f"{source}: msprobe wrote no dump of stage {window['stage']}")
        target = self._target(window)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._correct_paths(source, target)
        write_json(source / layout.WINDOW, {**window, "order": self._windows})
        self._windows += 1
        shutil.move(source, target)
        shutil.rmtree(self._scratch)

    def abandon(self) -> None:
        """Drops the open window of a stage that failed; never raises, since the trainer's own error is on its way."""
        if self._window is not None:
            self._stop()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _stop(self) -> dict[str, Any]:
        window, self._window = self._window, None
        assert window is not None
        self._debugger.stop()
        self._service.reset_status()
        for model, key in self._token_hooks:
            model._forward_pre_hooks.pop(key, None)  # noqa: SLF001
        self._token_hooks = []
        return window

    def _target(self, window: dict[str, Any]) -> Path:
        """Msprobe's folder for the first window of a stage in a step, ``micro_step{m}`` in it for later ones."""
        first: Path = self._folder / window["stage"] / f"step{window['step']}" / f"rank{window['rank']}"
        if not (first / "dump.json").exists():
            return first
        micro_step = window["micro_step"]
        while micro_step == 0 or (first / f"micro_step{micro_step}").exists():
            micro_step += 1
        return first / f"micro_step{micro_step}"

    def _correct_paths(self, source: Path, target: Path) -> None:
        file = source / "dump.json"
        dump = json.loads(file.read_text(encoding="utf-8"))
        if dump.get("dump_data_dir"):
            dump["dump_data_dir"] = str(target / "dump_tensor_data")
        file.write_text(json.dumps(dump, indent=1), encoding="utf-8")
