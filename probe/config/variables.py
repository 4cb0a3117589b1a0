"""The variables of a trainer's environment: text, or where their value comes from; and profiles without secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import Discriminator, Tag, model_validator

from probe.config.base import StrictModel
from probe.errors import ConfigError
from probe.masking import is_masked, is_secret, mask, mask_urls

SHOWN = {"secrets": "shown"}
"""The context in which a profile is dumped with its secrets: to be validated again, never to be written."""
_ENV = ("trainer", "env")
_HANDED_ON = "FIRSTDIFF_SECRET_"
"""Begins the names of variables in which a command hands secrets on to its flow."""


class Source(StrictModel):
    """Where the value of a variable comes from. It is a secret, whatever the variable is called."""

    secret: str | None = None
    """The name of a Secret block on the Prefect server; it is read when the check begins."""
    variable: str | None = None
    """The name of a variable in Firstdiff's own environment."""
    value: str | None = None
    """The value itself."""

    @model_validator(mode="after")
    def _comes_from_one_place(self) -> Source:
        if self.secret is not None and self.variable is not None:
            raise ValueError("give a secret or a variable, not both")
        if self.secret is None and self.variable is None and self.value is None:
            raise ValueError("give {secret: BLOCK} or {variable: NAME}")
        return self


def _kind(value: Any) -> str:
    return "text" if isinstance(value, str) else "source"


TextOrSource = Annotated[Annotated[str, Tag("text")] | Annotated[Source, Tag("source")], Discriminator(_kind)]
"""The value of a variable."""


def text_or_source(env: Any) -> Any:
    """Sees to it that values of an environment are text or mappings; no message repeats a value.

    Raises:
        ValueError: One is neither.
    """
    if isinstance(env, dict):
        for name, value in env.items():
            if not isinstance(value, (str, dict, Source)):
                raise ValueError(f"{name}: must be text in quotes, {{secret: BLOCK}} or {{variable: NAME}}")
    return env


def without_secrets(values: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """A profile's mapping as it may be written: secrets are masked, as are passwords in addresses.

    Args:
        values: The mapping; it stays as it is.
        names: Names of variables that are secrets, beside those that look so.
    """
    shown: dict[str, Any] = _without_passwords(values)
    for (_, given, name), (_, env, _) in zip(env_entries(values), env_entries(shown), strict=True):
        value = given[name]
        if isinstance(value, dict):
            kept = {key: each for key, each in value.items() if each is not None}
            env[name] = {key: mask(each) if key == "value" else each for key, each in kept.items()}
        elif is_secret(name, names):
            env[name] = mask(value)
    return shown


def take_from_environment(raw: dict[str, Any], source: str) -> None:
    """Fills in what comes from Firstdiff's own environment, in place.

    Raises:
        ConfigError: A variable is not set, or a value was masked when the profile was written.
    """
    for key, env, name in env_entries(raw):
        value = env[name]
        if not isinstance(value, dict):
            continue
        if value.keys() & {"secret", "variable"} and is_masked(str(value.get("value", ""))):
            del value["value"]
        wanted = value.get("variable")
        if isinstance(wanted, str) and "value" not in value:
            if wanted not in os.environ:
                raise ConfigError(source, key, f"the variable {wanted} is not set; export it, or name another one")
            value["value"] = os.environ[wanted]
    _refuse_masked(raw, source, ())


def hand_on(overrides: list[str], names: list[str]) -> list[str]:
    """``--set`` entries without secrets, which a flow's parameters would show to everybody.

    A secret is put into a variable of this process, for the flow that runs in it, and the entry names that.

    Args:
        overrides: Entries that ``load_profile`` takes.
        names: As for ``without_secrets``.
    """
    from probe.config.loading import read_override
    from probe.config.variant import get, put

    handed = []
    for override in overrides:
        key, value = read_override(override)
        raw: dict[str, Any] = {}
        put(raw, key, value, "--set")
        changed = False
        for _, env, name in env_entries(raw):
            content = env[name].get("value") if isinstance(env[name], dict) else env[name]
            if isinstance(content, str) and (isinstance(env[name], dict) or is_secret(name, names)):
                variable = f"{_HANDED_ON}{name}"
                while os.environ.get(variable, content) != content:
                    variable += "_"
                os.environ[variable] = content
                env[name] = {"variable": variable}
                changed = True
        handed.append(f"{key}={json.dumps(get(raw, key))}" if changed else override)
    return handed


def env_entries(raw: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Every variable of a profile's mapping, also of ``check.b``: its dotted key, its mapping, and its name in that.

    In ``check.b`` the name is the last part of a dotted key; the mapping then is one whose change counts.
    """
    trainer = raw.get("trainer") if isinstance(raw, dict) else None
    env = trainer.get("env") if isinstance(trainer, dict) else None
    if isinstance(env, dict):
        for name in env:
            yield ".".join((*path, *_ENV, str(name))), env, str(name)
    check = raw.get("check") if isinstance(raw, dict) else None
    changes = check.get("b") if isinstance(check, dict) else None
    if isinstance(changes, dict):
        yield from _entries_of_b(changes)


def _entries_of_b(changes: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str]]:
    prefix = ".".join(_ENV)
    for key, value in changes.items():
        if key.startswith(f"{prefix}.") and key.count(".") == 2:
            yield f"check.b.{key}", _OneKey(changes, key), key.removeprefix(f"{prefix}.")
        elif key == prefix and isinstance(value, dict):
            for name in value:
                yield f"check.b.{key}.{name}", value, str(name)
        elif key == "trainer" and isinstance(value, dict):
            yield from env_entries({"trainer": value}, ("check", "b"))


class _OneKey(dict[str, Any]):
    """A variable of ``check.b`` under its own name: what is set here is set there."""

    def __init__(self, changes: dict[str, Any], key: str) -> None:
        super().__init__({key.rpartition(".")[2]: changes[key]})
        self._changes, self._key = changes, key

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._changes[self._key] = value


def _without_passwords(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_passwords(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without_passwords(each) for each in value]
    return mask_urls(value) if isinstance(value, str) else value


def _refuse_masked(value: Any, source: str, path: tuple[str, ...]) -> None:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        _refuse_masked(child, source, (*path, str(key)))
    if isinstance(value, str) and is_masked(value):
        key = ".".join(path)
        raise ConfigError(
            source, key, f"this secret was masked when the profile was written; give it with --set {key}=VALUE"
        )
