"""``origin.json``: what only the beginning of a check knows. Its time, its name, and the code that it runs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from probe.config import Profile, find_profile
from probe.errors import HistoryError
from probe.history.revision import revision_of
from probe.masking import MASK, is_secret
from probe.store import layout
from probe.store.writer import write_json

FILE = "origin.json"
FORMAT = 1
SAME_EXPERIMENT = (
    *("check.keep", "check.compress", "check.report_url", "record"),
    *(
        "trainer.time_limit",
        "trainer.stall_seconds",
        "trainer.node_rank",
        "trainer.rdzv_endpoint",
        "trainer.local_dump",
    ),
)
"""Keys that say how an experiment is run, recorded and kept, not which one it is."""


def begin(
    folder: Path,
    name: str,
    profile: Profile,
    overrides: Sequence[str] = (),
    time: datetime | None = None,
) -> None:
    """Notes that a check begins: writes ``origin.json`` into its folder. One that goes on after a crash began before.

    Args:
        folder: The check's folder.
        name: The profile's name or path, as it was asked for.
        profile: The resolved profile.
        overrides: ``dotted.key=value`` entries over the profile; checks of one profile with other overrides have a
            history of their own.
        time: When it begins; None for now.
    """
    if (folder / FILE).exists():
        return
    file = find_profile(name)
    places = [Path(profile.trainer.cwd)] if profile.trainer.kind != "integrated" else []
    write_json(
        folder / FILE,
        {
            "format": FORMAT,
            "id": uuid.uuid4().hex,
            "started": (time or datetime.now(timezone.utc)).astimezone(timezone.utc).isoformat(timespec="seconds"),
            "profile": file.stem,
            "variant": variant_of(overrides),
            "revision": revision_of([*places, file.parent]).as_dict(),
        },
    )


def note_size(folder: Path, size: int) -> None:
    """Notes in ``origin.json`` how many bytes a check took when its verdict was written.

    Raises:
        OSError: It cannot be read or written.
        HistoryError: It is damaged.
    """
    path = folder / FILE
    try:
        content = layout.read_json(path)
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except ValueError as error:
        raise HistoryError(f"{path}: is damaged ({error})") from error
    write_json(path, {**content, "peak_bytes": size})


def variant_of(overrides: Sequence[str]) -> list[str]:
    """Overrides that make another experiment, in an order of their own, the last of each key, without secrets.

    Example:
        >>> variant_of(["check.steps=4", "check.steps=3", "check.keep=all"])
        ['check.steps=3']
    """
    last: dict[str, str] = {}
    for override in overrides:
        key, _, value = override.partition("=")
        if not any(key.strip() == same or key.strip().startswith(f"{same}.") for same in SAME_EXPERIMENT):
            last[key.strip()] = value
    return [f"{key}={MASK if _is_secret(key) else value}" for key, value in sorted(last.items())]


def without_secrets(configuration: dict[str, Any]) -> dict[str, Any]:
    """A profile as a mapping, without the values of variables that look like secrets."""
    trainer = configuration.get("trainer")
    variables = trainer.get("env") if isinstance(trainer, dict) else None
    if not isinstance(trainer, dict) or not isinstance(variables, dict):
        return configuration
    more = trainer.get("secrets") or ()
    masked = {name: MASK if is_secret(str(name), more) else value for name, value in variables.items()}
    return {**configuration, "trainer": {**trainer, "env": masked}}


def _is_secret(key: str) -> bool:
    whole_section = key in ("trainer", "trainer.env")
    return whole_section or (key.startswith("trainer.env.") and is_secret(key))
