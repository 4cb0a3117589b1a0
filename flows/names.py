"""What flow runs and artifacts are called."""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from pathlib import PurePath
from typing import Any

from prefect.runtime import flow_run

from probe.config import Profile, parse_request, resolve
from probe.errors import FirstdiffError

_LONGEST = 60


def check_name() -> str:
    """The name of the flow run that is about to begin: profile, seed and date."""
    parameters: dict[str, Any] = dict(flow_run.parameters)
    named = str(parameters.get("profile", ""))
    try:
        fields = {name: value for name, value in parameters.items() if name not in ("out", "force")}
        seed = seed_of(resolve(parse_request(fields)))
    except (FirstdiffError, OSError):
        seed = None  # the flow says what is wrong
    return " · ".join([plain(profile_label(named)), *([f"seed {seed}"] if seed is not None else []), now()])


def seed_of(profile: Profile) -> int | None:
    """The seed of a profile's training; None where its trainer is a program, which has its own."""
    return None if profile.trainer.kind != "integrated" else profile.trainer.config.megatron_training.seed


def profile_label(named: str) -> str:
    """A profile's name: that of its file, without folders."""
    path = PurePath(named)
    return path.stem if path.suffix in (".yaml", ".yml") else path.name


def artifact_key(label: str) -> str:
    """The key of a profile's artifacts: lowercase letters, digits and dashes, another one for every name.

    Example:
        >>> artifact_key("demo")
        'demo'
        >>> artifact_key("My profile")
        'my-profile-271c62'
    """
    plain_key = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:_LONGEST]
    if plain_key == label != "":
        return label
    digest = hashlib.sha256(label.encode(errors="backslashreplace")).hexdigest()[:6]
    return f"{plain_key}-{digest}".strip("-")


def now() -> str:
    """This minute, in local time."""
    return datetime.now().strftime("%Y-%m-%d %H:%M")


def plain(text: str) -> str:
    """Text of one short line."""
    return "".join(c if c.isprintable() else "�" for c in text)[:_LONGEST]
