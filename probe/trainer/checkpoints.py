"""Checkpoints: all that a training needs to go on bit for bit, one folder a step that is whole or not there.

::

    <save>/step{n}/           n steps are done
      model/                  weights and optimizers, as torch.distributed.checkpoint writes them
      rank{r}.pt              random states of a rank
      position.json           step, prompts drawn, ranks, learning-rate schedules
"""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from probe.config import MegatronTraining
from probe.errors import ConfigError
from probe.trainer.device import RandomStates
from probe.trainer.parallel import Ranks
from probe.trainer.update import Updater

_NAME = re.compile(r"step(\d+)")
_KEY = "megatron_training.load"


@dataclass
class Position:
    """How far a training has come.

    Example:
        >>> Position().step
        0
    """

    step: int = 0
    """Steps that are done."""
    batches: int = 0
    """Batches of prompts that were drawn: more than steps with dynamic sampling."""


class Checkpoints:
    """Saves, prunes and loads the checkpoints of one training.

    Args:
        config: How often, where, and how many are kept.
        updaters: Models, optimizers and learning rates by role.
        random: All random states.
        ranks: The ranks: all of them call every method together.
    """

    def __init__(
        self, config: MegatronTraining, updaters: dict[str, Updater], random: RandomStates, ranks: Ranks
    ) -> None:
        self._config = config
        self._updaters = updaters
        self._random = random
        self._ranks = ranks

    def save_if_due(self, position: Position) -> None:
        """Saves a checkpoint after every so many steps, then removes the oldest that are too many."""
        every, where = self._config.save_interval, self._config.save
        if every is None or where is None or position.step % every:
            return
        folder = Path(where, f"step{position.step}")
        partial = folder.with_name(f".{folder.name}.partial")
        if self._ranks.rank == 0:
            for old in (partial, folder):  # of a run that was killed, or that went on from an earlier step
                shutil.rmtree(old, ignore_errors=True)
            partial.mkdir(parents=True)
        self._ranks.barrier()
        with _alone_is_fine():
            save(self._state(), checkpoint_id=partial / "model")
        torch.save(self._random.state(), partial / f"rank{self._ranks.rank}.pt")
        if self._ranks.rank == 0:
            schedules = {role: updater.scheduler.state_dict() for role, updater in self._updaters.items()}
            content = {**asdict(position), "ranks": self._ranks.count, "schedules": schedules}
            (partial / "position.json").write_text(json.dumps(content), encoding="utf-8")
        self._ranks.barrier()
        if self._ranks.rank == 0:
            partial.rename(folder)
            self._prune(folder.parent)
        self._ranks.barrier()

    def load(self, where: str) -> Position:
        """Puts a checkpoint into effect: the newest of a folder, or the one that is named.

        Args:
            where: A checkpoint, or the folder of checkpoints.

        Raises:
            ConfigError: There is none, it was saved by another number of ranks, or it is damaged.
        """
        folder = newest(Path(where))
        try:
            content = json.loads((folder / "position.json").read_bytes())
            position, ranks = Position(int(content["step"]), int(content["batches"])), int(content["ranks"])
            schedules = {role: dict(content["schedules"][role]) for role in self._updaters}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(str(folder), _KEY, f"no whole checkpoint of this algorithm ({error!r})") from error
        if ranks != self._ranks.count:
            problem = f"was saved by {ranks} {'rank' if ranks == 1 else 'ranks'}, this training has {self._ranks.count}"
            raise ConfigError(str(folder), _KEY, problem)
        state = self._state()
        try:
            with _alone_is_fine():
                load(state, checkpoint_id=folder / "model")
            own = torch.load(folder / f"rank{self._ranks.rank}.pt", weights_only=True)
        except (Exception, CheckpointException) as error:  # noqa: BLE001  (damaged files, other models raise anything)
            problem = f"cannot be loaded into this model ({_reason(error)})"
            raise ConfigError(str(folder), _KEY, problem) from error
        for role, updater in self._updaters.items():
            set_state_dict(
                updater.sharing.model,
                updater.optimizer,
                model_state_dict=state[role]["model"],
                optim_state_dict=state[role]["optimizer"],
            )
            updater.scheduler.load_state_dict(schedules[role])
        self._random.restore(own)
        return position

    def _state(self) -> dict[str, Any]:
        """Weights and optimizer of each role, as they are saved."""
        state = {}
        for role, updater in self._updaters.items():
            model, optimizer = get_state_dict(updater.sharing.model, updater.optimizer)
            state[role] = {"model": model, "optimizer": optimizer}
        return state

    def _prune(self, folder: Path) -> None:
        if self._config.keep_checkpoints is not None:
            for old in _found(folder)[: -self._config.keep_checkpoints]:
                shutil.rmtree(old)


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """Without the warning that one process saves for itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def newest(folder: Path) -> Path:
    """A checkpoint's folder: itself, or the newest in it.

    Raises:
        ConfigError: There is none.
    """
    if (folder / "position.json").is_file():
        return folder
    found = _found(folder)
    if not found:
        raise ConfigError(str(folder), _KEY, "holds no checkpoint (step{n})")
    return found[-1]


def _found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the oldest first."""
    steps = {int(match[1]): path for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}
    return [steps[step] for step in sorted(steps)]


def _reason(error: BaseException) -> str:
    """Why a checkpoint cannot be loaded, in one line: of several ranks' failures the first, without its traceback."""
    if isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
