"""Starts verl: its own entry point with the profile's overrides, and those that make a run leave what is compared.

verl's main process is the child of this one. Where it starts a Ray of its own, all of Ray's processes inherit its
environment, by which they are found and ended with the run. On a cluster that ran before, Ray ends verl's actors when
their driver, that child, is gone.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from probe.config import Profile, VerlTrainer
from probe.errors import InconclusiveError
from probe.language import tell
from probe.launch.hydra_compose import quoted
from probe.launch.requirements import is_number, refuse, unmet, value_at
from probe.launch.running import Ended, Start
from probe.launch.verl_compose import SOURCE, command_of, composed
from probe.launch.verl_requirements import (
    cannot_dump,
    follows_the_end,
    has_critic,
    not_enforced,
    requirements,
    roles,
    world_size,
)
from probe.launch.whole import run_whole
from probe.store import verl as left
from probe.store.layers import msprobe_missing
from probe.store.windows import STAGES_OF_VERL, find_windows
from probe.types import RunSpec

GENERATION = "actor_generate_sequences"
_STAGES_OF_ROLE = {
    "actor_rollout_ref.actor": ("actor_compute_log_prob", "actor_update"),
    "actor_rollout_ref.ref": ("reference_compute_log_prob",),
}
"""Our stages that the tool can dump: those whose workers carry its annotations, by the section of their profiler."""
_TOOL = "global_profiler.global_tool_config.precision_debugger"
_SAMPLES_ONLY = tell(
    "compared are samples alone, the texts and rewards of each step: a difference in weights shows there only when"
    " another token is drawn from it, so equal runs are at best inconclusive"
)


class VerlLauncher:
    """Starts verl.

    Args:
        profile: The experiment; its trainer is verl.
        trainer: That trainer's section.
    """

    def __init__(self, profile: Profile, trainer: VerlTrainer) -> None:
        self._profile = profile
        self._trainer = trainer

    def cannot_dump_layers(self) -> str | None:
        """Its profiler has a tool for it since 0.9; whether msprobe is there, trying may tell. See ``Launcher``."""
        return (msprobe_missing() if self._trainer.python == "python" else None) or cannot_dump(self._configuration)

    def preflight(self) -> list[str]:
        """Refuses a configuration of which two runs cannot be the same, or says what is set. See ``Launcher``."""
        configuration = self._configuration
        lacking = unmet(configuration, requirements(configuration))
        if not self._profile.determinism.enforce:
            refuse(SOURCE, configuration, lacking)
        said: list[str] = [
            tell(
                "{key}={value} is added (determinism: enforce); else {why}",
                key=one.key,
                value=quoted(one.value),
                why=one.why,
            )
            for one in lacking
        ]
        last = self._last_dumped(self._profile.last_step, configuration)
        compared = tell("compared are the samples of each step, and the layers of step {step}, the last one", step=last)
        said += [_SAMPLES_ONLY if last is None else compared, *not_enforced(configuration)]
        if (address := self._cluster(configuration)) is not None:
            said.append(
                tell(
                    "verl runs on the Ray cluster at {address}, which was there before: Ray ends its workers when their"
                    " driver is gone; the check's folder must be the same on all of its hosts",
                    address=address,
                )
            )
        if (reason := cannot_dump(configuration)) is not None:
            said.append(reason)
        elif has_critic(configuration):
            said.append(
                tell(
                    "verl's precision_debugger cannot dump the critic: its worker names its stages otherwise than the"
                    " tool"
                )
            )
        return said

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Runs the training to its end. See ``Launcher``."""
        configuration = self._configuration
        if spec.dump_stages:
            dumped_steps(self._profile, self._trainer, spec)  # or there is nothing to be had
        closing = partial(self._adopt, folder, spec, configuration)
        run_whole(self._profile, self.start, folder, spec, _nothing, closing)

    def start(self, folder: Path, spec: RunSpec) -> Start:
        """The overrides of the run, and what they name. See ``Launcher``."""
        configuration = self._configuration
        lacking = unmet(configuration, requirements(configuration)) if self._profile.determinism.enforce else []
        values = {**{one.key: one.value for one in lacking}, **self._recorded(folder, spec, configuration)}
        own = [f"++{key}={quoted(value)}" for key, value in values.items()]
        outputs = f"hydra.run.dir={quoted(str(folder / left.FOLDER / 'outputs'))}"
        return Start(command_of(self._trainer, [*own, outputs]), Path(self._trainer.cwd), dict(self._trainer.variables))

    def _recorded(self, folder: Path, spec: RunSpec, configuration: Mapping[str, Any]) -> dict[str, Any]:
        """What makes verl leave what is compared."""
        own = folder / left.FOLDER
        values: dict[str, Any] = {
            "trainer.rollout_data_dir": str(own / left.SAMPLES / left.ROLLOUT),
            "trainer.validation_data_dir": str(own / left.SAMPLES / left.VALIDATION),
        }
        last = spec.last_step
        if follows_the_end(configuration):
            last = self._profile.last_step  # that of all four runs
        if last is not None:
            values["trainer.total_training_steps"] = last
        if spec.dump_stages:
            steps = dumped_steps(self._profile, self._trainer, spec)
        elif (end := self._last_dumped(spec.last_step, configuration)) is not None:
            steps = [end]
        else:
            return values
        settings = own / "msprobe.json"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(json.dumps(msprobe_settings(spec), indent=1), encoding="utf-8")
        sections = [section for section in roles(configuration) if section in _STAGES_OF_ROLE]
        theirs = {ours: verl for verl, ours in reversed(STAGES_OF_VERL.items())}
        stages = [theirs.get(stage, stage) for section in sections for stage in _STAGES_OF_ROLE[section]]
        return {
            **values,
            "global_profiler.tool": "precision_debugger",
            "global_profiler.steps": steps,
            "global_profiler.profile_continuous_steps": False,
            "global_profiler.save_path": str(own / left.PROFILE),
            f"{_TOOL}.config_path": str(settings),
            f"{_TOOL}.stages": stages,
            f"{_TOOL}.strict": True,
            **{f"{section}.profiler.{key}": True for section in sections for key in ("enable", "all_ranks")},
            "actor_rollout_ref.rollout.profiler.enable": False,
        }

    def _last_dumped(self, last: int | None, configuration: Mapping[str, Any]) -> int | None:
        """The last step of runs a and b, where its layers are dumped."""
        if self._trainer.last_step == "samples" or cannot_dump(configuration) is not None:
            return None
        last = last if last is not None else value_at(configuration, "trainer.total_training_steps")
        return last if is_number(last) else None

    def _adopt(self, folder: Path, spec: RunSpec, configuration: Mapping[str, Any], ended: Ended) -> None:
        """Makes a dump of ours of what verl left.

        Raises:
            InconclusiveError: Layers were asked for, and there are none.
        """
        dump, profile = Path(spec.dump_path), folder / left.FOLDER / left.PROFILE
        if spec.dump_stages and ended.error is None and not find_windows(profile):
            raise InconclusiveError(
                f"run {spec.run}: verl ended well, and its precision_debugger dumped nothing; it needs msprobe"
                " (mindstudio-probe) where its workers run"
            )
        ranks = world_size(configuration)
        left.adopt_verl(folder, dump, spec.run, spec.configuration, ended.error is None, ranks)

    @cached_property
    def _configuration(self) -> dict[str, Any]:
        """What the overrides amount to; asking starts verl's interpreter."""
        env = {**os.environ, **self._profile.determinism.environment, **self._trainer.variables}
        return composed(self._profile, self._trainer, env)

    def _cluster(self, configuration: Mapping[str, Any]) -> str | None:
        """The address of a Ray that verl does not start itself."""
        address = value_at(configuration, "ray_kwargs.ray_init.address")
        address = address or self._trainer.variables.get("RAY_ADDRESS") or os.environ.get("RAY_ADDRESS")
        return None if address in (None, "", "local") else str(address)


def dumped_steps(profile: Profile, trainer: VerlTrainer, spec: RunSpec) -> list[int]:
    """The steps whose layers are dumped: for samples that differ, those that made the weights that drew them.

    Args:
        profile: The experiment.
        trainer: Its trainer.
        spec: A run that dumps layers.

    Raises:
        InconclusiveError: No step was trained before.
    """
    if GENERATION not in spec.dump_stages:
        return list(range(spec.step_start, spec.step_end + 1))
    steps = list(range(max(profile.first_step, spec.step_start - trainer.look_back), spec.step_start))
    if not steps:
        raise InconclusiveError(
            f"the samples of step {spec.step_start} differ before anything was trained: the rollout itself draws them"
            " (its seed, its inference engine), and verl's precision_debugger does not dump it"
        )
    return steps


def msprobe_settings(spec: RunSpec) -> dict[str, Any]:
    """The content of msprobe's own configuration file, for a run.

    Args:
        spec: What is dumped.
    """
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    return {"task": spec.task, "rank": [], "step": [], "level": spec.level, "async_dump": False, spec.task: section}


def _nothing() -> str:
    """Why there are no samples of a training that ended well."""
    return (
        "verl ended well and wrote no samples (trainer.rollout_data_dir): did it train a step, and is the check's"
        " folder the same on the host of its main process?"
    )
