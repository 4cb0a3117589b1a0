"""Secrets of a profile that are kept on the Prefect server, in Secret blocks."""

from __future__ import annotations

import json
from typing import Any

from prefect.blocks.system import Secret

from probe.config import Profile, env_entries, plain
from probe.errors import ConfigError


def with_secrets(profile: Profile) -> Profile:
    """A profile with the values of its Secret blocks, which are read once, so that all runs get the same.

    Args:
        profile: A profile that ``load_profile`` read.

    Raises:
        ConfigError: There is no such block.
    """
    raw = plain(profile)
    read: dict[str, str] = {}
    for key, env, name in env_entries(raw):
        value = env[name]
        block = value.get("secret") if isinstance(value, dict) else None
        if block is not None:
            if block not in read:
                read[block] = _read(block, key)
            env[name] = {**value, "value": read[block]}
    return Profile.model_validate(raw) if read else profile


def _read(block: str, key: str) -> str:
    try:
        loaded: Any = Secret.load(block)
    except ValueError as error:
        problem = f"the Prefect server has no Secret block {block!r}; make one, or name another"
        raise ConfigError("the profile", key, problem) from error
    value = loaded.get()
    return value if isinstance(value, str) else json.dumps(value)
