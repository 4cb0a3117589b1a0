"""Trainers of a profile: how each kind is started, and what its processes are given."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from probe.config.base import StrictModel, problem_of_text
from probe.config.training import TrainingConfig
from probe.config.variables import Source, TextOrSource
from probe.errors import ConfigError
from probe.masking import is_masked
from probe.types import StepKind

_STARTS_RANKS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")


def _require_text(key: str, text: str) -> None:
    """Refuses text that no process can be given."""
    if problem := problem_of_text(text):
        raise ValueError(f"{key}: {problem}")


class Launch(StrictModel):
    """How a trainer is run."""

    time_limit: float | None = Field(default=None, gt=0)
    """Longest time for one run, in seconds: more is a hang. null sets no limit."""
    stall_seconds: float | None = Field(default=3600.0, gt=0)
    """Longest time without a new record, dumped layer, finished step or output, in seconds: more is a hang. null sets
    no limit."""
    nproc_per_node: int | None = Field(default=None, ge=1)
    """Processes that torchrun starts on each host; null starts the trainer alone, without torchrun."""
    nnodes: int = Field(default=1, ge=1)
    """Hosts. On each, the same ``firstdiff check`` is started with the same ``--out`` on a shared file system."""
    node_rank: int = Field(default=0, ge=0)
    """Which host this is, from 0; host 0 decides, the others follow it."""
    rdzv_endpoint: str | None = Field(default=None, pattern=r"^.+:\d{1,5}$")
    """``host:port`` of host 0, where the processes of several hosts find each other."""
    local_dump: str | None = None
    """A folder on each host's own disk to record to; what was recorded is moved to the check's folder when the host's
    processes have ended. null records there at once."""

    @property
    def workers_are_recorded(self) -> bool:
        """Whether the processes that train record what is in effect in them."""
        return True

    @model_validator(mode="after")
    def _folder_can_be_made(self) -> Launch:
        _require_text("local_dump", self.local_dump or "")
        return self

    @model_validator(mode="after")
    def _hosts_can_find_each_other(self) -> Launch:
        if self.nnodes > 1 and self.nproc_per_node is None:
            raise ValueError("nnodes: several hosts need nproc_per_node, the processes on each")
        if self.nnodes > 1 and self.rdzv_endpoint is None:
            raise ValueError("nnodes: several hosts need rdzv_endpoint, host:port of host 0")
        if self.node_rank >= self.nnodes:
            raise ValueError(f"node_rank: there is no host {self.node_rank} among {self.nnodes} (nnodes)")
        return self


class IntegratedTrainer(Launch):
    """The GRPO trainer that ships with Firstdiff."""

    kind: Literal["integrated"]
    """Which trainer."""
    config: TrainingConfig = Field(default_factory=TrainingConfig)
    """A MindSpeed-RL style configuration, here or as the path of a file relative to the profile."""


class Surrounded(Launch):
    """A program that trains, in an environment that the profile adds to."""

    env: dict[str, TextOrSource] = Field(default_factory=dict)
    """Environment variables for the trainer, beside those that it inherits: text, ``{secret: BLOCK}`` for a Secret
    block of the Prefect server, or ``{variable: NAME}`` for a variable of Firstdiff's own environment. Values of names
    that look secret (with TOKEN, SECRET, PASSWORD, API_KEY, ACCESS_KEY, CREDENTIAL or PRIVATE in them) and addresses
    with a password are masked in all that a check leaves."""
    secrets: list[str] = Field(default_factory=list)
    """Further variables, given here or inherited, whose values are masked."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables, when their sources have been read.

        Raises:
            ConfigError: One has not.
        """
        for name, value in self.env.items():
            if isinstance(value, Source):
                raise ConfigError("the profile", f"trainer.env.{name}", "its value was not read")
        return {name: value for name, value in self.env.items() if isinstance(value, str)}

    @model_validator(mode="after")
    def _a_process_can_be_given_its_variables(self) -> Surrounded:
        for index, name in enumerate(self.secrets):
            _require_text(f"secrets.{index}", name)
        for name, value in self.env.items():
            if not name or "=" in name or problem_of_text(name):
                raise ValueError(f"env: {name!r:.60} is no variable's name: it must not be empty, or hold = or NUL")
            for text in (value.secret, value.variable) if isinstance(value, Source) else (value,):
                _require_text(f"env.{name}", text or "")
            if isinstance(value, Source) and (value.variable == "" or "=" in (value.variable or "")):
                raise ValueError(f"env.{name}: {value.variable!r:.60} is no variable's name")
        return self

    @model_validator(mode="after")
    def _no_variable_is_masked(self) -> Surrounded:
        for name, value in self.env.items():
            if is_masked(value):
                raise ValueError(f"env.{name}: is masked in this file; give its value: --set trainer.env.{name}=VALUE")
        return self


class Program(Surrounded):
    """A program that trains."""

    command: list[str] = Field(min_length=1)
    """Program and arguments, never a shell string; a first element ``python`` is the interpreter that runs
    Firstdiff."""
    cwd: str = "."
    """Working folder, relative to the profile's folder."""

    @model_validator(mode="after")
    def _a_process_can_be_given_it(self) -> Program:
        if not self.command[0]:
            raise ValueError("command.0: the program has no name")
        for index, element in enumerate(self.command):
            _require_text(f"command.{index}", element)
        _require_text("cwd", self.cwd)
        return self

    @model_validator(mode="after")
    def _only_one_starts_ranks(self) -> Program:
        program, *rest = self.command
        started = rest[1] if rest[:1] == ["-m"] and len(rest) > 1 else PurePath(program).name
        if self.nproc_per_node is not None and started in _STARTS_RANKS:
            raise ValueError(
                f"command: {started} starts several processes by itself; give the script to be run in each, or remove"
                " nproc_per_node"
            )
        return self


class PlacedByRay(Surrounded):
    """A program whose workers Ray places."""

    workers: ClassVar[str]
    """What they are called."""
    placed_by: ClassVar[str]
    """What says how many there are, and where; as it stands behind them in a sentence."""

    @model_validator(mode="after")
    def _ray_places_its_processes(self) -> PlacedByRay:
        if self.nproc_per_node is not None or self.nnodes > 1 or self.node_rank or self.rdzv_endpoint is not None:
            raise ValueError(
                f"nproc_per_node, nnodes, node_rank and rdzv_endpoint are torchrun's: Ray places {self.workers}"
                f" {self.placed_by}"
            )
        if self.local_dump is not None:
            raise ValueError(
                f"local_dump: {self.workers} record into the check's folder, which all hosts must share; remove the key"
            )
        return self


class CommandTrainer(Program):
    """Any script that uses ``probe.Probe``."""

    kind: Literal["command"]
    """Which trainer."""


class ScriptTrainer(Program):
    """Any PyTorch script, as it is: ``firstdiff check -- COMMAND`` makes one of a command."""

    kind: Literal["script"]
    """Which trainer."""
    step: StepKind = "auto"
    """What a training step is: ``optimizer``, an update by each optimizer; ``call``, each call of a model that no other
    module calls; ``auto`` is ``optimizer`` as soon as there is one, else ``call``."""
    compile: Literal["as_is", "eager"] = "as_is"
    """What becomes of ``torch.compile``: ``as_is`` leaves it, and sees compiled modules from outside only; ``eager``
    turns it off (``TORCH_COMPILE_DISABLE``, ``TORCHDYNAMO_DISABLE``), which is another training."""
