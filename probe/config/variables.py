"""Variables of a trainer's environment whose value is not in the profile: where it comes from, and getting it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import Discriminator, Tag, model_validator

from probe.config.base import StrictModel
from probe.errors import ConfigError
from probe.masking import holds_password, is_secret

_HANDED_ON = "FIRSTDIFF_SECRET_"
"""Begins the names of variables in which a command hands secrets on to its flow."""
_ENV = "trainer.env"


class Source(StrictModel):
    """Where the value of a variable comes from. It is a secret, whatever the variable is called."""

    secret: str | None = None
    """The name of a Secret block on the Prefect server."""
    variable: str | None = None
    """The name of a variable in the environment of Firstdiff itself."""

    @model_validator(mode="after")
    def _one_place(self) -> Source:
        if (self.secret is None) == (self.variable is None):
            raise ValueError("give {secret: BLOCK} or {variable: NAME}")
        return self


def _kind(value: Any) -> str:
    return "source" if isinstance(value, (dict, Source)) else "text"


TextOrSource = Annotated[Annotated[str, Tag("text")] | Annotated[Source, Tag("source")], Discriminator(_kind)]
"""The value of a variable."""


def filled_in(raw: dict[str, Any], read_secret: Callable[[str], str | None]) -> list[str]:
    """Puts the values of all sources in their place; returns the names of their variables.

    Args:
        raw: A profile's mapping, which is changed.
        read_secret: Reads a Secret block; None where there is none.

    Raises:
        ConfigError: A variable is not set, or there is no such block.
    """
    names: dict[str, None] = {}
    for key, env, entry, name in list(_entries(raw)):
        value = env[entry]
        if not isinstance(value, dict):
            continue
        names[name] = None
        block, variable = value.get("secret"), value.get("variable")
        found = read_secret(block) if block is not None else os.environ.get(str(variable))
        if found is None:
            problem = f"the Prefect server has no Secret block {block!r}; make one, or name another"
            if block is None:
                problem = f"the variable {variable} is not set; export it, or name another"
            raise ConfigError("the profile", key, problem)
        env[entry] = found
    return list(names)


def has_sources(raw: dict[str, Any]) -> bool:
    """Whether a profile's mapping has variables whose value is not in it."""
    return any(isinstance(env[entry], dict) for _, env, entry, _ in _entries(raw))


def hand_on(overrides: list[str], names: list[str]) -> list[str]:
    """``--set`` entries without secrets: a flow's parameters are stored, and shown on the page.

    Each secret is put into a variable of this process, for the flow that runs in it, and the entry names that.

    Args:
        overrides: Entries that ``load_profile`` takes.
        names: Names of variables that are secrets, beside those that look so.
    """
    from probe.config.loading import read_override
    from probe.config.variant import get, put

    handed = []
    for override in overrides:
        key, value = read_override(override)
        raw: dict[str, Any] = {}
        put(raw, key, value, "--set")
        changed = False
        for _, env, entry, name in list(_entries(raw)):
            content = env[entry]
            if isinstance(content, str) and (is_secret(name, names) or holds_password(content)):
                variable = f"{_HANDED_ON}{name}"
                while os.environ.get(variable, content) != content:
                    variable += "_"
                os.environ[variable] = content
                env[entry] = {"variable": variable}
                changed = True
        handed.append(f"{key}={json.dumps(get(raw, key))}" if changed else override)
    return handed


def _entries(raw: Any, prefix: str = "") -> Iterator[tuple[str, dict[str, Any], str, str]]:
    """Every variable of a profile's mapping, also of ``check.b``.

    For each its dotted key, the mapping that holds it, its key in that, and the variable's name.
    """
    trainer = raw.get("trainer") if isinstance(raw, dict) else None
    env = trainer.get("env") if isinstance(trainer, dict) else None
    if isinstance(env, dict):
        for name in env:
            yield f"{prefix}{_ENV}.{name}", env, name, str(name)
    check = raw.get("check") if isinstance(raw, dict) else None
    changes = check.get("b") if isinstance(check, dict) else None
    if not isinstance(changes, dict):
        return
    for key, value in changes.items():
        if isinstance(key, str) and key.startswith(f"{_ENV}.") and key.count(".") == 2:
            yield f"check.b.{key}", changes, key, key.removeprefix(f"{_ENV}.")
        elif key == _ENV and isinstance(value, dict):
            yield from _entries({"trainer": {"env": value}}, "check.b.")
        elif key == "trainer":
            yield from _entries({"trainer": value}, "check.b.")
