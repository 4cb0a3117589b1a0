"""A profile: one experiment that Firstdiff can check, as ``profiles/*.yaml`` holds it."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from probe.config.base import StrictModel, problem_of_text
from probe.config.training import NOT_INTEGRATED, TrainingConfig
from probe.config.variables import Source, TextOrSource
from probe.errors import ConfigError
from probe.masking import is_masked
from probe.types import ROLES_OF_STAGE, DigestPlace, Stage, StepKind

_WITH_GRADIENTS = (None, "actor_update", "critic_update")
"""Stages that have a backward pass; None is any."""
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


class Program(Launch):
    """A program that trains."""

    command: list[str] = Field(min_length=1)
    """Program and arguments, never a shell string; a first element ``python`` is the interpreter that runs
    Firstdiff."""
    env: dict[str, TextOrSource] = Field(default_factory=dict)
    """Environment variables for the trainer, beside those that it inherits: text, ``{secret: BLOCK}`` for a Secret
    block of the Prefect server, or ``{variable: NAME}`` for a variable of Firstdiff's own environment. Values of names
    that look secret (with TOKEN, SECRET, PASSWORD, API_KEY, ACCESS_KEY, CREDENTIAL or PRIVATE in them) and addresses
    with a password are masked in all that a check leaves."""
    secrets: list[str] = Field(default_factory=list)
    """Further variables, given here or inherited, whose values are masked."""
    cwd: str = "."
    """Working folder, relative to the profile's folder."""

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
    def _a_process_can_be_given_it(self) -> Program:
        if not self.command[0]:
            raise ValueError("command.0: the program has no name")
        for index, element in enumerate(self.command):
            _require_text(f"command.{index}", element)
        for index, name in enumerate(self.secrets):
            _require_text(f"secrets.{index}", name)
        _require_text("cwd", self.cwd)
        for name, value in self.env.items():
            if not name or "=" in name or problem_of_text(name):
                raise ValueError(f"env: {name!r:.60} is no variable's name: it must not be empty, or hold = or NUL")
            for text in (value.secret, value.variable) if isinstance(value, Source) else (value,):
                _require_text(f"env.{name}", text or "")
            if isinstance(value, Source) and (value.variable == "" or "=" in (value.variable or "")):
                raise ValueError(f"env.{name}: {value.variable!r:.60} is no variable's name")
        return self

    @model_validator(mode="after")
    def _no_variable_is_masked(self) -> Program:
        for name, value in self.env.items():
            if is_masked(value):
                raise ValueError(f"env.{name}: is masked in this file; give its value: --set trainer.env.{name}=VALUE")
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


class Keep(StrictModel):
    """What is kept of a check after its verdict. ``keep: all`` keeps everything."""

    divergent: int | None = Field(default=None, ge=1, le=1_000_000)
    """Days for which the values and layers of a divergent or inconclusive check are kept, then only digests; null keeps
    them. Those of a profile's newest divergent check stay."""
    identical: Literal["all", "digests"] = "all"
    """``digests`` removes the values and layers of a check without differences at once: what is left is compared as
    before."""

    @model_validator(mode="before")
    @classmethod
    def _all_is_a_word(cls, given: Any) -> Any:
        if given == "all":
            return {}
        if not isinstance(given, (dict, Keep)):
            raise ValueError("must be all, or a mapping such as {divergent: 30, identical: digests}")
        return given


class Check(StrictModel):
    """What is compared, and what is kept of it."""

    steps: int | None = Field(default=None, ge=1)
    """Training steps that are recorded and compared; null takes all that the trainer runs."""
    allow_different: list[str] = Field(default_factory=list)
    """Keys in which the two runs may differ and still be compared: of the profile, such as
    ``trainer.config.actor_config.lr``, or of ``environment.json``, such as ``environment.versions.torch``; a section
    stands for all of its keys. Any other difference makes the check inconclusive."""
    b: dict[str, Any] = Field(default_factory=dict)
    """What is different in run ``b`` and its rerun ``d`` on purpose: dotted keys of ``trainer``, ``determinism`` and
    ``faults``, with their values. These keys may differ."""
    keep: Keep = Field(default_factory=Keep)
    """What is kept after the verdict: ``all``, or a mapping of ``divergent`` (days) and ``identical`` (``all`` or
    ``digests``)."""
    compress: bool = True
    """Whether the dumps are compressed after the verdict. ``firstdiff compare`` reads them as before, msprobe's own
    tools after ``firstdiff unpack``."""
    replay: bool = True
    """Whether the module that the traces name is captured by the second pair, and run again alone after it: does it
    differ by itself? It takes some seconds, and needs ``record.trace``; with ``b``, there is nothing to
    confirm."""
    report_url: str | None = Field(
        default=None, pattern=r"^(https?|s3|gs|obs)://[^\s{}]*(\{(check|profile|host|path)\}[^\s{}]*)*$"
    )
    """Where a web server or an object store shows the check's folder, as
    ``https://reports.example.org/{check}/report.html``: a link on Prefect's page. ``{check}`` is the folder's name,
    ``{path}`` its path, ``{host}`` the machine, ``{profile}`` the profile's name. null links nothing."""

    @property
    def meant_to_differ(self) -> list[str]:
        """All keys in which the two runs may differ."""
        return [*self.allow_different, *self.b]

    @property
    def last_step(self) -> int | None:
        """The last step that is recorded and compared; None where all are."""
        return None if self.steps is None else self.steps - 1


class Layers(StrictModel):
    """How the layers of the culprit stage are dumped."""

    task: Literal["tensor"] = "tensor"
    """msprobe's task. Only whole tensors are compared bit for bit."""
    level: Literal["L0"] = "L0"
    """msprobe's level: L0 dumps modules."""


class Record(StrictModel):
    """What is recorded."""

    key_data: Literal["full", "digests", "off"] = "full"
    """Of what the trainer saves: ``full`` keeps values, ``digests`` only their digests and statistics (the verdict is
    the same), ``off`` nothing but what traces have."""
    trace: bool = True
    """Whether each rank's events are recorded in execution order: modules entered and left, gradients, weights and
    buffers, random states, optimizer steps, saved data. Two equal runs have equal traces, byte for byte; else
    the first event that differs names the cause. ``false`` leaves the key data, and takes less time and room."""
    digest: DigestPlace = "auto"
    """Where weights are digested at the end of each step: ``host`` copies them there and takes XXH3; ``device`` digests
    them where they lie, which copies nothing, and takes tens of times as long for those on the host; ``auto`` is
    ``device`` when a CUDA device or an NPU holds any of the weights. Two runs are compared where both did the same."""
    layers: Layers = Field(default_factory=Layers)
    """How the layers of the culprit stage are dumped."""
    on_error: Literal["raise", "continue"] = "raise"
    """What an error inside the probe does: end the trainer, or train on without recording (then the check is
    inconclusive). An error of the trace ends the trace alone in either case; where key data is the same, the check is
    then inconclusive, too."""


class Determinism(StrictModel):
    """What the trainer is asked for. What is in effect is in each run's ``environment.json``."""

    deterministic_algorithms: bool = True
    """``torch.use_deterministic_algorithms(True)``: an operation without a deterministic form is an error, not a
    warning."""
    cublas_workspace_config: str | None = ":4096:8"
    """CUBLAS_WORKSPACE_CONFIG; null leaves it alone."""
    hccl_deterministic: str | None = "true"
    """HCCL_DETERMINISTIC: order of reductions between NPUs."""
    lccl_deterministic: str | None = "1"
    """LCCL_DETERMINISTIC: the same for LCCL."""
    atb_matmul_shuffle_k_enable: str | None = "0"
    """ATB_MATMUL_SHUFFLE_K_ENABLE: order of the K axis in ATB's matrix products."""
    close_matmul_k_shift: str | None = "1"
    """CLOSE_MATMUL_K_SHIFT: the same for CANN's."""
    python_hash_seed: int | None = Field(default=0, ge=0)
    """PYTHONHASHSEED: order of sets of strings; null leaves it random."""
    num_threads: int | None = Field(default=None, ge=1)
    """Threads of one CPU operation (OMP_NUM_THREADS, MKL_NUM_THREADS); null leaves the machine's default."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables to set before the trainer's interpreter starts."""
        values = {
            "CUBLAS_WORKSPACE_CONFIG": self.cublas_workspace_config,
            "HCCL_DETERMINISTIC": self.hccl_deterministic,
            "LCCL_DETERMINISTIC": self.lccl_deterministic,
            "ATB_MATMUL_SHUFFLE_K_ENABLE": self.atb_matmul_shuffle_k_enable,
            "CLOSE_MATMUL_K_SHIFT": self.close_matmul_k_shift,
            "PYTHONHASHSEED": self.python_hash_seed,
            "OMP_NUM_THREADS": self.num_threads,
            "MKL_NUM_THREADS": self.num_threads,
        }
        return {name: str(value) for name, value in values.items() if value is not None}


class Fault(StrictModel):
    """A planted fault: a module of the integrated trainer that no longer computes the same twice."""

    kind: Literal["sum_order", "gradient_order"] = "sum_order"
    """``sum_order`` adds partial results in an order drawn from the operating system's entropy, as a split-K matrix
    product with atomics does; ``gradient_order`` does so with the gradient that the module passes on."""
    role: Literal["actor", "reference", "critic"]
    """The model that holds the module."""
    rank: int | None = Field(default=None, ge=0)
    """The only rank on which it acts; null acts on all."""
    module: str
    """Dotted name of the module in that model, such as ``model.layers.1.mlp.down_proj``."""
    step: int | None = Field(default=None, ge=0)
    """The only step at which it acts; null acts at every step."""
    stage: Stage | None = None
    """The only stage in which it acts; null acts in all."""

    @model_validator(mode="after")
    def _it_can_act(self) -> Fault:
        if self.stage is not None and self.role not in ROLES_OF_STAGE[self.stage]:
            raise ValueError(f"stage {self.stage} runs no {self.role}: this fault would never act")
        if self.kind == "gradient_order" and (self.role == "reference" or self.stage not in _WITH_GRADIENTS):
            where = self.stage or f"the {self.role}"
            raise ValueError(f"gradient_order: {where} has no backward pass: this fault would never act")
        return self


class TrainerRunConfig(TrainingConfig):
    """What ``python -m probe.trainer --config`` reads: a trainer file, and what a check adds to it."""

    determinism: Determinism = Field(default_factory=Determinism)
    """What this run is asked for."""
    faults: list[Fault] = Field(default_factory=list)
    """Faults to plant."""

    def as_profile(self, processes: int, hosts: int) -> Profile:
        """The profile of which a check's run would be this training.

        Args:
            processes: Ranks on each host.
            hosts: Hosts that train together.
        """
        config = TrainingConfig.model_construct(**{name: getattr(self, name) for name in TrainingConfig.model_fields})
        ranks = processes if processes * hosts > 1 else None
        trainer = IntegratedTrainer.model_construct(
            kind="integrated", config=config, nproc_per_node=ranks, nnodes=hosts
        )
        return Profile.model_construct(trainer=trainer, determinism=self.determinism, faults=self.faults)


class Profile(StrictModel):
    """One experiment."""

    trainer: Annotated[IntegratedTrainer | CommandTrainer | ScriptTrainer, Field(discriminator="kind")]
    """What is run."""
    check: Check = Field(default_factory=Check)
    """What is compared."""
    record: Record = Field(default_factory=Record)
    """What is recorded."""
    determinism: Determinism = Field(default_factory=Determinism)
    """What the trainer is asked for."""
    faults: list[Fault] = Field(default_factory=list)
    """Planted faults, for the integrated trainer."""

    @property
    def remarks(self) -> list[str]:
        """What to say before the training starts: settings that have less effect than they seem to."""
        if self.trainer.kind != "integrated":
            return []
        said = [f"trainer.config.{sentence}" for sentence in self.trainer.config.beyond_the_end]
        last = self.check.last_step
        for index, fault in enumerate(self.faults):
            if last is not None and fault.step is not None and fault.step > last:
                said.append(
                    f"faults.{index}.step is {fault.step}, the last step that is recorded {last}: nobody sees it"
                )
        return said

    @model_validator(mode="after")
    def _a_check_sets_what_it_records(self) -> Profile:
        if not isinstance(self.trainer, IntegratedTrainer):
            if self.faults:
                raise ValueError("faults: only the integrated trainer can plant them; remove this section")
            return self
        config = self.trainer.config
        section = config.msprobe_config
        if "msprobe" in section.model_fields_set and not section.msprobe:
            raise ValueError("trainer.config.msprobe_config.msprobe is false: a check records; remove the key")
        if "dump_path" in section.model_fields_set:
            raise ValueError("trainer.config.msprobe_config.dump_path: a check has its own folders; remove the key")
        if not config.rl_config.use_integrated_worker:
            raise ValueError(f"trainer.config.{NOT_INTEGRATED}")
        training = config.megatron_training
        if training.load is not None and training.load == training.save and training.save_interval is not None:
            raise ValueError(
                "trainer.config.megatron_training.load is the folder of save: run b would go on from what run a saves;"
                " name one checkpoint in it, such as step3"
            )
        return self

    @model_validator(mode="after")
    def _every_fault_can_act(self) -> Profile:
        if not isinstance(self.trainer, IntegratedTrainer):
            return self
        training = self.trainer.config.megatron_training
        ranks = (self.trainer.nproc_per_node or 1) * self.trainer.nnodes
        for index, fault in enumerate(self.faults):
            problem = None
            if fault.step is not None and fault.step >= training.train_iters:
                problem = f"step: {fault.step} is after the last step, {training.train_iters - 1}"
            elif fault.rank is not None and fault.rank >= ranks:
                problem = f"rank: {fault.rank} is after the last rank, {ranks - 1}"
            elif fault.role == "critic" and training.stage != "ray_ppo":
                problem = f"role: {training.stage} has no critic"
            if problem is not None:
                raise ValueError(f"faults.{index}.{problem}: this fault would never act")
        return self
