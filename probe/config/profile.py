"""A profile: one experiment that Firstdiff can check, as ``profiles/*.yaml`` holds it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from probe.config.base import StrictModel
from probe.config.mindspeed import MindSpeedRLTrainer
from probe.config.trainers import CommandTrainer, IntegratedTrainer, ScriptTrainer
from probe.config.training import NOT_INTEGRATED, TrainingConfig
from probe.config.verl import VerlTrainer
from probe.language import join, tell
from probe.types import ROLES_OF_STAGE, DigestPlace, Stage

_WITH_GRADIENTS = (None, "actor_update", "critic_update")
"""Stages that have a backward pass; None is any."""


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


VARIABLES = {
    "cublas_workspace_config": ("CUBLAS_WORKSPACE_CONFIG",),
    "hccl_deterministic": ("HCCL_DETERMINISTIC",),
    "lccl_deterministic": ("LCCL_DETERMINISTIC",),
    "atb_matmul_shuffle_k_enable": ("ATB_MATMUL_SHUFFLE_K_ENABLE",),
    "close_matmul_k_shift": ("CLOSE_MATMUL_K_SHIFT",),
    "python_hash_seed": ("PYTHONHASHSEED",),
    "num_threads": ("OMP_NUM_THREADS", "MKL_NUM_THREADS"),
}
"""Keys of ``determinism``, and the variables that each sets for the trainer."""


class Determinism(StrictModel):
    """What the trainer is asked for. What is in effect is in each run's ``environment.json``.

    The word ``enforce`` stands for ``{enforce: true}``.
    """

    enforce: bool = False
    """Whether keys of a trainer's own configuration (MindSpeed-RL's, verl's) that keep two runs from being the same are
    set right for the check. ``false`` refuses such a configuration, naming the keys."""
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
    """PYTHONHASHSEED: order of sets of strings; null leaves it random. Of a script, all variables that this section
    does not name are null, unless ``enforce`` is true: it runs as it does without a check."""
    num_threads: int | None = Field(default=None, ge=1)
    """Threads of one CPU operation (OMP_NUM_THREADS, MKL_NUM_THREADS); null leaves the machine's default."""

    @model_validator(mode="before")
    @classmethod
    def _enforce_is_a_word(cls, given: Any) -> Any:
        if given == "enforce":
            return {"enforce": True}
        if not isinstance(given, (dict, Determinism)):
            raise ValueError("must be enforce, or a mapping such as {enforce: true, num_threads: 1}")
        return given

    @property
    def asked_for(self) -> dict[str, Any]:
        """What a process is asked for, for its ``environment.json``."""
        return self.model_dump(exclude={"enforce"})

    @property
    def environment(self) -> dict[str, str]:
        """The variables to set before the trainer's interpreter starts."""
        values = ((name, getattr(self, key)) for key, names in VARIABLES.items() for name in names)
        return {name: str(value) for name, value in values if value is not None}


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

    trainer: Annotated[
        IntegratedTrainer | CommandTrainer | ScriptTrainer | MindSpeedRLTrainer | VerlTrainer,
        Field(discriminator="kind"),
    ]
    """What is run."""
    check: Check = Field(default_factory=Check)
    """What is compared."""
    record: Record = Field(default_factory=Record)
    """What is recorded."""
    determinism: Determinism = Field(default_factory=Determinism)
    """What the trainer is asked for."""
    faults: list[Fault] = Field(default_factory=list)
    """Planted faults, for the integrated trainer."""

    @model_validator(mode="after")
    def _a_script_runs_as_it_is(self) -> Profile:
        if isinstance(self.trainer, ScriptTrainer) and not self.determinism.enforce:
            given = self.determinism.model_fields_set
            left = {name: None for name in VARIABLES if name not in given}
            # every key counts as given from here on, as in the profile that a check writes
            object.__setattr__(self, "determinism", self.determinism.model_copy(update=left))
        return self

    @property
    def first_step(self) -> int:
        """The number that the trainer gives to its first training step."""
        return 1 if isinstance(self.trainer, VerlTrainer) else 0

    @property
    def last_step(self) -> int | None:
        """The last step that is recorded and compared; None where all are."""
        return None if self.check.steps is None else self.check.steps - 1 + self.first_step

    @property
    def remarks(self) -> list[str]:
        """What to say before the training starts: settings that have less effect than they seem to."""
        if self.trainer.kind != "integrated":
            return []
        said: list[str] = [join("", ("trainer.config.", sentence)) for sentence in self.trainer.config.beyond_the_end]
        last = self.last_step
        for index, fault in enumerate(self.faults):
            if last is not None and fault.step is not None and fault.step > last:
                said.append(
                    tell(
                        "faults.{index}.step is {step}, the last step that is recorded {last}: nobody sees it",
                        index=index,
                        step=fault.step,
                        last=last,
                    )
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
