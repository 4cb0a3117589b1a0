"""MindSpeed-RL, with no edit: a stand-in for its class ``mindspeed_rl.utils.utils.MsProbe``.

Its workers call that class where a stage begins and ends, where key data is there, and at the end of a step; here these
calls become stages, saved tags, attached models and steps of a ``Probe``. The class has the same class methods under
the same name, so that Ray finds it by that name in each process. It is put there when the module has been imported,
before any of those that import the class from it.

Who calls what, as of MindSpeed-RL 2.2 and 2.3: the task ``train`` (``config_init``, ``save_configs``; it has no rank
and records nothing), ``IntegratedWorker`` and ``CriticWorker`` (all else), the actor's loss functions (``save_data``).
``RuleReward`` and the transfer docks call nothing.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch

from probe.adapters import Host
from probe.adapters.opening import Opening
from probe.errors import UsageError

if TYPE_CHECKING:
    from probe.collect import Probe
    from probe.store.writer import Place
    from probe.types import RunSpec

MODULE = "mindspeed_rl.utils.utils"
CLASS = "MsProbe"
METHODS = ("config_init", "save_configs", "save_data", "debugger_start", "debugger_stop", "step")
"""What its callers call."""
ROLES = {"actor_generate_sequences": "rollout", "reference_compute_log_prob": "reference"}
"""The model of a stage, where the stage is not called after it: the inference engine has a copy of the actor."""
CRITIC = "critic"
_OF_CRITIC = frozenset({"values"})
"""Tags that only a critic's worker saves."""


def install(host: Host) -> None:
    """Puts the stand-in into the module that has just been imported."""
    module = sys.modules[MODULE]
    own = getattr(module, CLASS, None)
    lacking = [name for name in METHODS if not callable(getattr(own, name, None))]
    if lacking:
        host.problem(f"{MODULE}.{CLASS} has no {', '.join(lacking)}: this version of MindSpeed-RL is not known")
        return
    recorder = Recorder(host, module, own)
    host.observer = recorder
    setattr(module, CLASS, standing_in(own, recorder))


def standing_in(own: Any, recorder: Recorder) -> type:
    """A class in place of MindSpeed-RL's own.

    Args:
        own: That class; what the stand-in does not define is found there, and stays turned off.
        recorder: Gets the calls.
    """

    class MsProbe(own):  # type: ignore[misc]
        """Hands its calls to Firstdiff. See ``mindspeed_rl.utils.utils.MsProbe``."""

        @classmethod
        def config_init(cls, msprobe_config: Any) -> None:
            """Says that this process is one that may record."""
            recorder.config_init(msprobe_config)

        @classmethod
        def save_configs(cls, data: Any) -> None:
            """Says what the configuration amounts to, which the check's own files hold."""

        @classmethod
        def save_data(cls, data: Any) -> None:
            """Records key data."""
            recorder.save_data(data)

        @classmethod
        def debugger_start(cls, model: Any = None, tag: Any = None) -> None:
            """Begins a stage, in which a model runs."""
            recorder.debugger_start(model, tag)

        @classmethod
        def debugger_stop(cls, tag: Any = None) -> None:
            """Ends a stage."""
            recorder.debugger_stop(tag)

        @classmethod
        def step(cls) -> None:
            """Ends a training step."""
            recorder.step()

    MsProbe.__module__, MsProbe.__qualname__, MsProbe.__name__ = MODULE, CLASS, CLASS  # pickled by name
    return MsProbe


class Recorder:
    """Records what one process of MindSpeed-RL says.

    Args:
        host: Where it is at home.
        module: The module that the stand-in is put into.
        own: The class that was there.
    """

    def __init__(self, host: Host, module: Any, own: Any) -> None:
        self._host = host
        self._module = module
        self._own = own
        self._opening = Opening(host, self._end)
        self._enabled = False
        self._stage: str | None = None
        self._open_stage = ExitStack()
        self._entered: Counter[str] = Counter()
        self._models: dict[str, Any] = {}
        """What was handed over for each role: a module, or a list of them."""
        self._done = False
        """Whether every step that the check needs is recorded."""

    def step_back(self) -> Probe | None:
        """See ``Adapter``."""
        self._done = True
        self._close_stage()
        setattr(self._module, CLASS, self._own)
        return self._opening.hand_over()

    def config_init(self, config: Any) -> None:
        """This process may record, if the configuration says so."""
        self._enabled = bool(config.msprobe)

    def save_data(self, data: Any) -> None:
        """Records key data, in the open stage or outside of one."""
        of_critic = isinstance(data, dict) and not set(data).isdisjoint(_OF_CRITIC)
        probe = self._probe(CRITIC if of_critic else "")
        if probe is not None:
            kept = {tag: value for tag, value in data.items() if value is not None} if isinstance(data, dict) else data
            probe.save(kept)

    def debugger_start(self, model: Any, tag: Any) -> None:
        """Begins a stage. What was left open before ends."""
        tag = str(tag)
        role = ROLES.get(tag, tag.partition("_")[0])
        probe = self._probe(role)
        if probe is None:
            return
        self._close_stage()
        if self._models.get(role) is not model and (module := _module_of(model)) is not None:
            self._models[role] = model
            probe.attach(**{role: module})
        name = self._name_of(tag, role)
        if name is None:
            return
        self._open_stage.enter_context(probe.stage(name, micro_step=self._entered[tag]))
        self._entered[tag] += 1
        self._stage = tag

    def debugger_stop(self, tag: Any) -> None:
        """Ends a stage."""
        if self._stage == tag:
            self._close_stage()

    def step(self) -> None:
        """Ends a training step; with the last that is needed, the recording."""
        probe = self._probe("")
        if probe is None:
            return
        self._close_stage()
        self._entered.clear()
        probe.step()
        if probe.finished:  # how Ray ends a worker is nothing to rely on
            self._done = True
            self._opening.close()

    # ---- inside ----

    def _probe(self, role: str) -> Probe | None:
        """The open probe, opened by the first call that has something to record; None where nothing is."""
        if not self._enabled or self._done:
            return None
        if self._opening.probe is None and not self._opening.refused and self._has_no_rank():
            return None
        return self._opening.open(lambda spec: self._place(spec, role))

    def _has_no_rank(self) -> bool:
        """Whether nobody knows which of several processes this is: what it says would pass for that of rank 0."""
        from probe.collect.spec import spec_from_env

        spec = spec_from_env()
        if _rank_and_size() is not None or spec is None or sum(spec.groups.values()) <= 1:
            return False
        self._opening.refused = True
        self._host.problem("a process without a rank (RANK and WORLD_SIZE, or torch.distributed) called MsProbe")
        return True

    def _place(self, spec: RunSpec, role: str) -> Place | None:
        """This process among all that record: the ranks of a critic's own workers follow those of the actor's."""
        own, total = _rank_and_size() or (0, 1), sum(spec.groups.values())
        if total <= 1:
            return None
        from probe.store.writer import Place

        group = CRITIC if role == CRITIC and CRITIC in spec.groups else next(iter(spec.groups))
        if own[1] != spec.groups[group]:
            raise UsageError(
                f"{own[1]} processes train the {group}, the configuration asks for {spec.groups[group]} (num_npus)"
            )
        names = list(spec.groups)
        before = sum(spec.groups[name] for name in names[: names.index(group)])
        local = os.environ.get("LOCAL_RANK")
        return Place(before + own[0], total, first_of_host=local == "0")

    def _name_of(self, tag: str, role: str) -> str | None:
        """What a stage is called here; None for one that has neither a name nor a model."""
        from probe.types import STAGES

        if tag in STAGES:
            return tag
        rest = tag.removeprefix(f"{role}_")
        return f"{role}.{rest}" if role in self._models and rest.isidentifier() else None

    def _close_stage(self) -> None:
        self._stage = None
        self._open_stage.close()

    def _end(self) -> None:
        """The process ends."""
        self._close_stage()


def _rank_and_size() -> tuple[int, int] | None:
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is not None and size is not None and rank.isdigit() and size.isdigit():
        return int(rank), int(size)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return None


def _module_of(model: Any) -> torch.nn.Module | None:
    """The module that is meant: Megatron hands over lists of the chunks of a model."""
    if isinstance(model, torch.nn.Module):
        return model
    if isinstance(model, (list, tuple)) and model and all(isinstance(one, torch.nn.Module) for one in model):
        return model[0] if len(model) == 1 else torch.nn.ModuleList(model)
    return None
