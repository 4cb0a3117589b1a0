"""What flow runs and artifacts are called."""

from __future__ import annotations

import hashlib
import logging
import re
from datetime import datetime
from pathlib import PurePath
from typing import Any

from prefect.runtime import flow_run

from probe.config import Profile, parse_request, resolve

log = logging.getLogger("firstdiff")
_LONGEST = 60
NOT_OF_THE_PROFILE = ("out", "force", "lang")
"""Parameters of a check that are none of its profile's."""


def check_name() -> str:
    """The name of the flow run that is about to begin: profile, seed and date.

    It raises nothing: before the flow begins, an error is a crash that counts as no try, and would be tried again for
    ever.
    """
    named, seed = "", None
    try:
        parameters: dict[str, Any] = dict(flow_run.parameters)
        named = plain(profile_label(str(parameters.get("profile", ""))))
        fields = {name: value for name, value in parameters.items() if name not in NOT_OF_THE_PROFILE}
        seed = seed_of(resolve(parse_request(fields)))
    except Exception as error:  # noqa: BLE001  (whatever it is, the flow begins, and says it)
        log.debug("the name of this run has no seed: %s", error)
    return " · ".join([named, *([f"seed {seed}"] if seed is not None else []), now()])


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


def plain(text: str, longest: int = _LONGEST) -> str:
    """Text of one short line."""
    return "".join(c if c.isprintable() else "�" for c in text)[:longest]
