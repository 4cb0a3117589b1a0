"""Starts MindSpeed-RL: ``cli/train_*.py`` of an unmodified checkout, on a configuration of its own for each run.

The script is the child of this process. Without ``ray_address`` it starts a Ray of its own, whose processes inherit its
environment: all of them are found and ended with it. On a running cluster, Ray starts the workers, in the environment
that ``runtime_env.yaml`` names: those on this host are found by the same variable; on the others Ray ends them when the
script, their driver, is gone (none of MindSpeed-RL's actors is detached).
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from probe.config import MindSpeedRLTrainer, Profile
from probe.errors import ConfigError
from probe.language import tell
from probe.launch.finished import note_finished
from probe.launch.hydra_compose import compose, quoted
from probe.launch.mindspeed_config import (
    FOLDER,
    Checkout,
    lacking,
    read_runtime_env,
    runtime_env_setting,
    script_of,
    settings,
    variables_to_set,
    write_config,
    write_runtime_env,
)
from probe.launch.mindspeed_requirements import ENVIRONMENT, VARIABLES
from probe.launch.observed import lasting_offer, why_nothing_of_ranks
from probe.launch.requirements import Requirement, refuse, unmet, value_at
from probe.launch.running import MARK, Ended, Start
from probe.launch.whole import found_command, run_whole
from probe.masking import is_secret
from probe.store.adopting import adopt
from probe.store.layers import msprobe_missing
from probe.types import RunSpec

ADAPTER = "mindspeed_rl"


class MindSpeedRLLauncher:
    """Starts a checkout of MindSpeed-RL.

    Args:
        profile: The experiment; its trainer is MindSpeed-RL.
        trainer: That trainer's section.
    """

    def __init__(self, profile: Profile, trainer: MindSpeedRLTrainer) -> None:
        self._profile = profile
        self._trainer = trainer
        self._repo = Path(trainer.repo)

    def cannot_dump_layers(self) -> str | None:
        """Msprobe dumps them in the workers; whether it can, trying will tell. They are read here. See ``Launcher``."""
        if self._trainer.depth == "dumps":
            return None
        return msprobe_missing() if self._trainer.python == "python" else None

    def preflight(self) -> list[str]:
        """Refuses a configuration of which two runs cannot be the same, or says what is set. See ``Launcher``."""
        checkout = self._checkout
        script_of(self._trainer, checkout)
        held = lacking(checkout, Path(f"CHECK{os.sep}"))
        if not self._profile.determinism.enforce:
            refuse(str(checkout.file), checkout.found, held)
        said: list[str] = [
            tell(
                "{config}: {key} is set to {value} (determinism: enforce)",
                config=checkout.config,
                key=one.key,
                value=_shown(one.value),
            )
            for one in held
        ]
        steps, iterations = self._profile.check.steps, checkout.iterations
        if steps is not None and steps != iterations:
            name = checkout.config
            said.append(
                tell("{config}: megatron_training.train_iters is {steps} (check.steps)", config=name, steps=steps)
            )
        return [*said, *_reservations(self._trainer, checkout)]

    def run(self, folder: Path, spec: RunSpec) -> None:
        """Runs the training to its end. See ``Launcher``."""
        checkout = self._checkout
        own = self._own(spec, checkout)
        if self._trainer.depth == "dumps":
            closing = partial(self._adopt, own, checkout)
            run_whole(self._profile, self.start, folder, own, partial(_nothing_dumped, folder), closing)
        else:
            run_whole(self._profile, self.start, folder, own, partial(why_nothing_of_ranks, folder))
        note_finished(folder, spec)  # of what was asked for

    def start(self, folder: Path, spec: RunSpec) -> Start:
        """Writes the run's own configuration, on which the script is started. See ``Launcher``."""
        trainer, check = self._trainer, folder.parent
        checkout = self._checkout
        script = script_of(trainer, checkout)
        held = lacking(checkout, check) if self._profile.determinism.enforce else []
        values = settings(self._profile, trainer, spec, held)
        variables = {**trainer.variables, **variables_to_set(held)}
        if handed_on := self._for_ray(folder, checkout, variables):
            values |= runtime_env_setting(write_runtime_env(checkout, check, handed_on))
        place, name = write_config(checkout, folder, values)
        by_user = {entry.lstrip("+~").partition("=")[0] for entry in trainer.overrides}
        forced = [f"++{key}={quoted(value)}" for key, value in values.items() if key in by_user]
        self._verify(folder, name, forced, held)
        outputs = f"hydra.run.dir={quoted(str(folder / FOLDER / 'outputs'))}"
        command = found_command([trainer.python, str(script), "--config-dir", str(place), "--config-name", name])
        path = [variables.get("PYTHONPATH", os.environ.get("PYTHONPATH")), str(self._repo)]
        return Start(
            [*command, *trainer.overrides, *forced, outputs],
            self._repo,
            {
                **variables,
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "RAY_ADDRESS": trainer.ray_address or "local",
            },
            ADAPTER if trainer.depth == "trace" else None,
        )

    @cached_property
    def _checkout(self) -> Checkout:
        """The user's configuration; reading it starts the trainer's interpreter."""
        trainer = self._trainer
        configs = self._repo / "configs"
        if not (configs / f"{trainer.config}.yaml").is_file():
            known = ", ".join(sorted(path.stem for path in configs.glob("*.yaml"))) or "none"
            problem = f"no {trainer.config}.yaml in {configs}; there are {known}"
            raise ConfigError("the profile", "trainer.config", problem)
        found = self._composed(configs, trainer.config, trainer.overrides)
        file, of_ray = read_runtime_env(self._repo, found)
        given = {**os.environ, **self._profile.determinism.environment, **trainer.variables, **of_ray}
        environment = {name: given.get(name) for name in VARIABLES}
        return Checkout(self._repo, trainer.config, {**found, ENVIRONMENT: environment}, file, of_ray)

    def _composed(self, folder: Path, name: str, overrides: list[str]) -> dict[str, object]:
        (python,) = found_command([self._trainer.python])
        return compose(python, folder, name, overrides, {**os.environ, **self._trainer.variables})

    def _verify(self, folder: Path, name: str, forced: list[str], held: list[Requirement]) -> None:
        """Makes sure that what is enforced is what hydra makes of the run's own file.

        Raises:
            ConfigError: A default of the file, or an override, says otherwise.
        """
        mine = [one for one in held if not one.key.startswith(f"{ENVIRONMENT}.")]
        if not mine or any(entry.lstrip("+").startswith("hydra.searchpath") for entry in self._trainer.overrides):
            return
        search = f"hydra.searchpath=[{quoted(f'file://{self._repo}/configs')}]"
        found = self._composed(folder / FOLDER, name, [*self._trainer.overrides, *forced, search])
        refuse(str(folder / FOLDER / f"{name}.yaml"), found, unmet(found, mine))

    def _own(self, spec: RunSpec, checkout: Checkout) -> RunSpec:
        """The spec of a run with what MindSpeed-RL's configuration says: its last step, and its groups of workers."""
        iterations = self._profile.check.steps or checkout.iterations
        last = spec.last_step if spec.last_step is not None else None if iterations is None else iterations - 1
        return replace(spec, last_step=last, groups=checkout.groups)

    def _for_ray(self, folder: Path, checkout: Checkout, variables: dict[str, str]) -> dict[str, str]:
        """Variables that the workers would not have without a file of ours; none where they inherit them all.

        Secret values are left out: they would stand in a file.
        """
        trainer, traced = self._trainer, self._trainer.depth == "trace"
        asked = {**self._profile.determinism.environment, **variables}
        hidden = [name for name, value in asked.items() if checkout.runtime_variables.get(name, value) != value]
        takes_path = traced and "PYTHONPATH" in checkout.runtime_variables
        if trainer.ray_address is None and not takes_path:
            return {name: asked[name] for name in hidden if name not in trainer.variables}
        path = [variables.get("PYTHONPATH"), checkout.runtime_variables.get("PYTHONPATH"), str(self._repo)]
        if traced:
            path.insert(0, str(lasting_offer(folder)))
        plain = {name: text for name, text in asked.items() if not is_secret(name) and name not in trainer.secrets}
        ours = {MARK: str(folder / "spec.json"), "FIRSTDIFF_RUN": folder.name}
        if traced:
            ours |= {"FIRSTDIFF_TRAINER": ADAPTER}
        return {**plain, **ours, "PYTHONPATH": os.pathsep.join(filter(None, path))}

    def _adopt(self, spec: RunSpec, checkout: Checkout, ended: Ended) -> None:
        """Makes a dump of ours of what MindSpeed-RL left."""
        iterations = self._profile.check.steps or checkout.iterations
        ranks = max(checkout.groups.values(), default=None)
        adopt(Path(spec.dump_path), spec.run, steps=iterations, ranks=ranks, complete=ended.error is None)


def _nothing_dumped(folder: Path) -> str:
    """Why MindSpeed-RL's own class recorded nothing, in one sentence."""
    log = (folder / "trainer.log").read_text(encoding="utf-8", errors="replace")
    if "import msprobe error" in log:
        return tell("nothing was recorded: MindSpeed-RL could not import msprobe; pip install mindstudio-probe there")
    return tell("nothing was recorded: MindSpeed-RL ended well, and its class MsProbe saved no key data")


def _reservations(trainer: MindSpeedRLTrainer, checkout: Checkout) -> list[str]:
    """What a check of MindSpeed-RL does not see, and what it leaves."""
    said: list[str] = []
    if value_at(checkout.found, "megatron_training.no_shuffle") is not True:
        said.append(
            tell(
                "MindSpeed-RL keeps index files (*.npy) beside the data set and reads them again: remove those of an"
                " earlier configuration before a comparison, as its documentation asks"
            )
        )
    said.append(tell("each run saves a checkpoint when it ends, as MindSpeed-RL always does"))
    if trainer.depth == "dumps":
        said.append(
            tell(
                "depth dumps compares what msprobe keeps: key data as float32 (integers above 2^24 lose digits), of the"
                " layers only max, min, mean and norm, of weights, random states and the workers' settings nothing;"
                " depth trace has exact digests of all of it"
            )
        )
    return said


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"
