"""What a flow run of a deployment may change: never what is run, unless the worker allows it.

Whoever can fill in a deployment's form can choose among the profiles that somebody put on the worker. What these
profiles run, where, with which variables, and which files it reads and writes is their owner's decision.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect.context import FlowRunContext

from probe.config import SHIPPED_PROFILES, find_profile, read_override
from probe.errors import ConfigError, UsageError

ALLOW = "FIRSTDIFF_ALLOW_COMMANDS"
"""The variable of a worker that lets parameters change everything."""
OF_A_WORKER = "PREFECT__FLOW_RUN_ID"
"""The variable that every process has which a worker, ``serve`` or ``flow-run execute`` started for a flow run."""

OWNERS = tuple(
    tuple(key.split("."))
    for key in (
        *("trainer.kind", "trainer.command", "trainer.cwd", "trainer.env", "trainer.local_dump"),
        *("trainer.rdzv_endpoint", "trainer.config.model.path", "trainer.config.megatron_training.load"),
        *("trainer.config.megatron_training.save", "trainer.config.megatron_training.data_path"),
    )
)
"""Keys that the owner of a profile decides: what is run, and which folders and hosts it has to do with."""


def require_allowed(profile: str, overrides: list[str] | None = None) -> None:
    """Refuses parameters that would have a flow run of a deployment run something that no profile here says.

    Args:
        profile: Name or path of the profile.
        overrides: ``dotted.key=value`` entries over it.

    Raises:
        UsageError: The profile is in none of the folders for profiles, or an entry changes what its owner decides.
    """
    if not of_a_deployment() or is_allowed():
        return
    file = find_profile(profile)  # with links and .. resolved
    folders = [(Path.cwd() / "profiles").resolve(), SHIPPED_PROFILES.resolve()]
    if not any(file.is_relative_to(folder) for folder in folders):
        where = " or ".join(map(str, folders))
        raise UsageError(
            f"profile: {profile} is not in {where}, and a flow run of a deployment takes no other; put it there, or set"
            f" {ALLOW}=1 on the worker"
        )
    for override in overrides or []:
        key, value = read_override(override)
        found = next(_of_the_owner(tuple(key.split(".")), value), None)
        if found is not None:
            raise ConfigError(
                "overrides",
                found,
                f"a flow run of a deployment may not change it; set it in the profile, or {ALLOW}=1 on the worker",
            )


def of_a_deployment() -> bool:
    """Whether this process works for a deployment, in the flow itself or in one that it calls."""
    if os.environ.get(OF_A_WORKER):
        return True
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


def is_allowed() -> bool:
    """Whether the worker allows everything."""
    return os.environ.get(ALLOW, "").strip().lower() not in ("", "0", "false", "no", "off")


def _of_the_owner(key: tuple[str, ...], value: Any) -> Iterator[str]:
    """The keys of the owner that an entry sets, however it is nested."""
    if key[:2] == ("check", "b"):
        if len(key) > 2:
            yield from _of_the_owner(key[2:], value)
        elif isinstance(value, dict):
            for name, each in value.items():
                yield from _of_the_owner(tuple(str(name).split(".")), each)
        return
    if any(key[: len(owned)] == owned for owned in OWNERS):
        yield ".".join(key)
    elif key == ("check",) or any(owned[: len(key)] == key for owned in OWNERS):
        if isinstance(value, dict):
            for name, each in value.items():
                yield from _of_the_owner((*key, str(name)), each)
        elif value is not None:
            yield ".".join(key)  # a file in place of the section, say
