"""msprobe's layer dump of a training step as a contender, by its public names alone.

``PrecisionDebugger`` is a singleton of its process: this module is imported in a benchmark's own process only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger

from probe.store.writer import write_json


class StepDump:
    """Dumps statistics of all modules, and at level ``mix`` of all operations, of each step.

    Args:
        folder: Receives the configuration and the dump.
        level: ``L0`` or ``mix``.
        summary_mode: ``statistics`` or ``md5``.

    Example:
        >>> dump = StepDump(Path("scratch"), "L0", "md5")
        >>> with dump.of(torch.nn.Linear(2, 2)) as nothing:
        ...     ...
    """

    def __init__(self, folder: Path, level: str, summary_mode: str) -> None:
        config = folder / "config.json"
        write_json(
            config,
            {
                "task": "statistics",
                "dump_path": str(folder / "dump"),
                "rank": [],
                "step": [],
                "level": level,
                "statistics": {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary_mode},
            },
        )
        self._debugger = PrecisionDebugger(config_path=str(config))

    @contextmanager
    def of(self, model: torch.nn.Module) -> Iterator[None]:
        """What runs inside is one step, and dumped."""
        self._debugger.start(model=model)
        yield
        self._debugger.stop()
        self._debugger.step()
