"""Secrets of a profile that are kept elsewhere: in Secret blocks on the Prefect server, or in variables."""

from __future__ import annotations

import json
from typing import Any

from prefect.blocks.system import Secret

from probe.config import Profile, filled_in, has_sources, plain


def with_secrets(profile: Profile) -> Profile:
    """A profile with the values of its Secret blocks and variables, for the trainers. It is never written.

    Each is read once, so that all runs of a check get the same.

    Args:
        profile: A profile that ``load_profile`` read.

    Raises:
        ConfigError: There is no such block or variable.
    """
    raw = plain(profile)
    if not has_sources(raw):
        return profile
    names = filled_in(raw, _read)
    raw["trainer"]["secrets"] = list(dict.fromkeys([*raw["trainer"]["secrets"], *names]))
    return Profile.model_validate(raw)


def _read(block: str) -> str | None:
    try:
        loaded: Any = Secret.load(block)
    except ValueError:
        return None
    value = loaded.get()
    return value if isinstance(value, str) else json.dumps(value)
