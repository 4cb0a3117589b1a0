"""The words that every part of Firstdiff shares: stages, tags, run specs, records.

Standard library only: this module is imported inside other people's trainers.

The stage and tag names are those of MindSpeed-RL's msprobe feature, whose folders carry them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

Stage = Literal[
    "actor_generate_sequences",
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "critic_compute_values",
    "actor_update",
    "critic_update",
]
STAGES: tuple[str, ...] = get_args(Stage)
"""The stages of a training step, in the order in which a PPO-like step enters them."""

TAGS: tuple[str, ...] = (
    "prompts",
    "responses",
    "rewards",
    "old_log_prob",
    "ref_log_prob",
    "values",
    "advantages",
    "log_prob",
    "kl_loss",
    "loss",
    "grad_norm",
    "weights",
)
"""The known key-data names, in causal order: what comes later is computed from what comes earlier."""

STAGE_OF_TAG: dict[str, str | None] = {
    "prompts": None,
    "responses": "actor_generate_sequences",
    "rewards": None,
    "old_log_prob": "actor_compute_log_prob",
    "ref_log_prob": "reference_compute_log_prob",
    "values": "critic_compute_values",
    "advantages": None,
    "log_prob": "actor_update",
    "kl_loss": "actor_update",
    "loss": "actor_update",
    "grad_norm": "actor_update",
    "weights": "actor_update",
}
"""The stage whose model computes a tag; None where no model does (data and host code)."""

SWITCH_OF_STAGE: dict[str, str] = {
    "actor_generate_sequences": "actor_infer_dump",
    "actor_compute_log_prob": "actor_train_dump",
    "reference_compute_log_prob": "reference_dump",
    "critic_compute_values": "critic_train_dump",
    "actor_update": "actor_train_dump",
    "critic_update": "critic_train_dump",
}
"""The key of ``msprobe_config`` that dumps the layers of a stage."""

ROLES_OF_STAGE: dict[str, tuple[str, ...]] = {
    "actor_generate_sequences": ("rollout", "actor"),
    "actor_compute_log_prob": ("actor",),
    "reference_compute_log_prob": ("reference",),
    "critic_compute_values": ("critic",),
    "actor_update": ("actor",),
    "critic_update": ("critic",),
}
"""The attached model that a stage runs: the first of these roles that is attached."""


def roles_of_stage(stage: str) -> tuple[str, ...]:
    """The models that a stage may run. A stage of a trainer's own has that of its model in front: ``ROLE.what``.

    Example:
        >>> roles_of_stage("critic_update"), roles_of_stage("generator.no_grad")
        (('critic',), ('generator',))
    """
    return ROLES_OF_STAGE.get(stage) or (stage.partition(".")[0],)


Verdict = Literal["identical", "equivalent", "divergent", "inconclusive"]
KeyData = Literal["full", "digests", "off"]
OnError = Literal["raise", "continue"]
DigestPlace = Literal["auto", "host", "device"]
StepKind = Literal["auto", "optimizer", "call"]
RunName = Literal["a", "b", "c", "d"]

STACK_SIGNAL = 39
"""Signal on which a process whose Probe is open writes its stacks: a real-time one (SIGRTMIN + 5), as scripts have uses
of their own for SIGUSR1."""

EXIT_CODES: dict[str, int] = {"identical": 0, "equivalent": 0, "divergent": 1, "inconclusive": 2}


@dataclass(frozen=True, slots=True)
class CaptureRequest:
    """The call of a module that is captured whole, so that it can be run again alone.

    Example:
        >>> CaptureRequest("actor.head", 2, "actor_update").backward
        False
    """

    name: str
    """The module, ``role.dotted.module``."""
    step: int
    stage: str
    rank: int = 0
    micro_step: int = 0
    call: int = 0
    backward: bool = False
    """Whether its gradients are what differed, rather than its output."""
    parameter: str | None = None
    """The only parameter whose gradient differed; None when that is not it."""


@dataclass(frozen=True)
class RunSpec:
    """What one trainer run records: resolved, and handed to the trainer as JSON.

    Example:
        >>> spec = RunSpec(run="c", dump_path="c/msprobe_dump", dump_stages=("actor_update",), step_start=2, step_end=2)
        >>> RunSpec.from_json(spec.to_json()) == spec
        True
    """

    run: str
    """``a``, ``b``, ``c`` or ``d``; any name when a trainer is started alone."""
    dump_path: str
    """The folder that receives the dump; must be empty or absent."""
    key_data: KeyData = "full"
    """``full``: digests, statistics and values; ``digests``: no values; ``off``: nothing."""
    trace: bool = False
    """Whether every event is recorded in execution order: modules, gradients, weights, random states, optimizers."""
    digest: DigestPlace = "auto"
    """Where weights are digested: on the ``host`` after a copy, on the ``device`` where they lie; ``auto`` takes the
    device when a CUDA device or an NPU holds any."""
    configurations: bool = True
    """Whether ``configurations.json`` is written."""
    dump_stages: tuple[str, ...] = ()
    """Stages whose layers are dumped."""
    step_start: int = 0
    """First step whose layers are dumped."""
    step_end: int = 0
    """Last step whose layers are dumped, inclusive."""
    token_range: tuple[int, int] = (0, 0)
    """First and last generated token, inclusive, whose forward passes are dumped."""
    task: str = "tensor"
    """msprobe's dump task for layers."""
    level: str = "L0"
    """msprobe's dump level for layers."""
    capture: CaptureRequest | None = None
    """A call of a module that is captured whole; with ``trace`` only."""
    last_step: int | None = None
    """Nothing after this step is needed; a trainer may stop there. None: every step is."""
    step: StepKind = "auto"
    """What a step is in a script that does not say so itself: an ``optimizer``'s update, an outermost ``call`` of a
    model, or ``auto``: updates where there is an optimizer, else calls."""
    groups: dict[str, int] = field(default_factory=dict)
    """Groups of processes whose ranks each begin at 0, with their sizes, where a trainer has such; their ranks in the
    run follow each other in this order."""
    on_error: OnError = "raise"
    """What an error inside the probe does: end the trainer, or record no more and say so in the manifest."""
    determinism: dict[str, Any] = field(default_factory=dict)
    """The determinism settings that were asked for, for ``environment.json``."""
    configuration: dict[str, Any] | None = None
    """The resolved configuration, for ``configurations.json``."""

    @property
    def keeps_data(self) -> bool:
        """Whether what a trainer saves is recorded, as key data or in a trace."""
        return self.trace or self.key_data != "off"

    def to_json(self) -> str:
        """The spec as one JSON document."""
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> RunSpec:
        """Reads what ``to_json`` wrote.

        Raises:
            TypeError: A key is unknown.
            ValueError: The text is not JSON.
        """
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError(f"a spec is an object, not {type(raw).__name__}")
        raw["dump_stages"] = tuple(raw.get("dump_stages", ()))
        raw["token_range"] = tuple(raw.get("token_range", (0, 0)))
        if isinstance(raw.get("capture"), dict):
            raw["capture"] = CaptureRequest(**raw["capture"])
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a rank's index: a tensor, number or string that was saved.

    Example:
        >>> Record(tag="loss", step=2, rank=0, micro_step=1, path="", call=0, stage="actor_update", dtype="float32",
        ...        shape=(), digest="5a…", masked=None, file="data/loss/step2/rank0/micro_step1/loss.npy").key
        ('loss', 1, '', 0)
    """

    tag: str
    step: int
    rank: int
    micro_step: int
    path: str
    """Dotted path inside what was saved under the tag, ``""`` for the whole."""
    call: int
    """Which save of this tag and path at this step, rank and micro-step: 0, 1, …"""
    stage: str | None
    """The stage that was open when it was saved."""
    dtype: str
    shape: tuple[int, ...]
    digest: str | None
    """Hexadecimal digest of dtype, shape and bytes; None in dumps that other tools wrote."""
    masked: str | None
    """Digest of the entries inside the mask, zeros for the others, and the mask; None without a mask."""
    file: str | None
    """The values' file, relative to the dump folder; None when only the digest was kept."""

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What makes two records of one step and rank the same entry in two runs."""
        return (self.tag, self.micro_step, self.path, self.call)


@dataclass(frozen=True, slots=True)
class Target:
    """Where the layers are dumped.

    Example:
        >>> Target(step=2, stage="reference_compute_log_prob").switch
        'reference_dump'
    """

    step: int
    stage: str
    token: int = 0
    """The generated token, from 0, up to which forward passes are dumped; for ``actor_generate_sequences``."""

    @property
    def switch(self) -> str:
        """The key of ``msprobe_config`` that dumps this stage."""
        return SWITCH_OF_STAGE[self.stage]

    @property
    def stages(self) -> tuple[str, ...]:
        """All stages that the switch dumps; none for a stage that msprobe does not know."""
        if self.stage not in SWITCH_OF_STAGE:
            return ()
        return tuple(stage for stage, switch in SWITCH_OF_STAGE.items() if switch == self.switch)
