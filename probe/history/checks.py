"""One check as the history knows it: read from the check's folder, which is the truth."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from probe.compare import counted_values, read_experiment
from probe.config import read_yaml
from probe.errors import ConfigError, HistoryError
from probe.history import start
from probe.keys import CONFIGURATIONS, ENVIRONMENT
from probe.store import layout
from probe.types import EXIT_CODES

VERDICT = "verdict.json"
PROFILE = "profile.yaml"
FORMAT = 1
"""Version of ``verdict.json`` that is read."""

_LARGEST = 1 << 26
_LONGEST_TEXT = 2000
_LARGEST_PROFILE = 1 << 22
_MOST_VALUES = 100_000
_NAME = re.compile(r"(?P<name>.+)-(?P<time>\d{8}-\d{6})-[0-9a-f]{4}")
"""A check's folder, where nobody named it."""


@dataclass(frozen=True, slots=True)
class PastCheck:
    """A check that has ended.

    Example:
        >>> from datetime import datetime, timezone
        >>> PastCheck("1", datetime(2026, 1, 6, tzinfo=timezone.utc), "demo", Path("checks/x"), "identical").is_same
        True
    """

    id: str
    time: datetime
    """When it began, in UTC."""
    profile: str
    """The profile's name."""
    folder: Path
    verdict: str
    variant: tuple[str, ...] = ()
    """What was set over the profile."""
    error: str | None = None
    first: dict[str, Any] | None = None
    """Where the first difference is, as in ``verdict.json``."""
    cause: dict[str, Any] | None = None
    fingerprint: str | None = None
    """What the cause is called from one night to the next; None where there is none."""
    experiment: dict[str, Any] = field(default_factory=dict)
    """Configuration and environment of run ``a``."""
    configuration_digest: str | None = None
    environment_digest: str | None = None
    revision: dict[str, Any] = field(default_factory=dict)
    """See ``Revision``."""
    cost: dict[str, Any] = field(default_factory=dict)
    """``seconds``, ``trainer_steps``, ``documented_recipe_steps``."""
    peak_bytes: int | None = None
    """Size of its folder when its verdict was written; None where nobody measured it."""
    removed: datetime | None = None
    """When ``firstdiff prune`` removed its folder."""

    @property
    def is_same(self) -> bool:
        """Whether its two runs were the same."""
        return self.verdict in ("identical", "equivalent")

    @property
    def conditions(self) -> tuple[str | None, str | None, str]:
        """What it ran under: two checks of the same conditions should have the same verdict."""
        return (self.configuration_digest, self.environment_digest, digest_of(self.revision))

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "id": self.id,
            "time": self.time.isoformat(timespec="seconds"),
            "profile": self.profile,
            "variant": list(self.variant),
            "verdict": self.verdict,
            "error": self.error,
            "first": self.first,
            "cause": self.cause,
            "fingerprint": self.fingerprint,
            "configuration_digest": self.configuration_digest,
            "environment_digest": self.environment_digest,
            "revision": self.revision,
            "cost": self.cost,
            "peak_bytes": self.peak_bytes,
            "folder": str(self.folder),
            "removed": self.removed.isoformat(timespec="seconds") if self.removed else None,
        }


def fingerprint_of(document: dict[str, Any]) -> str | None:
    """What a divergent check's cause is called from one night to the next; None where it names none.

    In it is what a person would call the same fault: the stage, the kind of the cause, the module, parameter or tag
    that it names, and the tag that showed the difference first. Not in it is what differs between two nights of one
    fault: step, rank, micro-step, call, values, time, host and folder, and the sentence that explains it.

    Args:
        document: The content of ``verdict.json``.
    """
    first, cause = document.get("first"), document.get("cause")
    if document.get("verdict") != "divergent" or not isinstance(first, dict) or not isinstance(cause, dict):
        return None
    key_data = document.get("key_data")
    shown = key_data.get("first") if isinstance(key_data, dict) else None
    tag = shown.get("tag") if isinstance(shown, dict) else first.get("tag")
    name = cause.get("name") or first.get("name")
    return digest_of([first.get("stage"), cause.get("kind"), name, tag])[:16]


def digest_of(value: Any) -> str:
    """128 bits of a value's canonical JSON, as hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:32]


def is_check(folder: Path) -> bool:
    """Whether a folder is a check of ours that has ended, or began: never for a link."""
    if folder.is_symlink() or not folder.is_dir():
        return False
    names = [name for name in (PROFILE, VERDICT, start.FILE) if (folder / name).is_file()]
    return PROFILE in names and len(names) > 1


def read_check(folder: Path) -> PastCheck:
    """Reads a check's folder.

    Raises:
        HistoryError: It has no verdict, or none that can be read.
    """
    document = _read_json(folder / VERDICT)
    verdict = document.get("verdict")
    if not isinstance(verdict, str) or verdict not in EXIT_CODES:
        raise HistoryError(f"{folder / VERDICT}: holds no verdict")
    if document.get("format") != FORMAT:
        raise HistoryError(f"{folder / VERDICT}: is of format {str(document.get('format'))[:20]}, not {FORMAT}")
    begun = _begun(folder)
    experiment, _ = read_experiment(folder / "a" / layout.DUMP)
    if CONFIGURATIONS not in experiment:
        experiment[CONFIGURATIONS] = _profile(folder)
    experiment[CONFIGURATIONS] = start.without_secrets(experiment[CONFIGURATIONS])
    digests = _digests(experiment)
    return PastCheck(
        id=_text(begun.get("id")) or digest_of([folder.name, document])[:32],
        time=_time(begun, folder),
        profile=_text(begun.get("profile")) or _name(folder),
        folder=folder.absolute(),
        verdict=verdict,
        variant=tuple(str(entry)[:_LONGEST_TEXT] for entry in _list(begun.get("variant"))),
        error=_text(document.get("error")),
        first=_mapping(document.get("first")),
        cause=_mapping(document.get("cause")),
        fingerprint=fingerprint_of(document),
        experiment=experiment,
        configuration_digest=digests[CONFIGURATIONS],
        environment_digest=digests[ENVIRONMENT],
        revision=_mapping(begun.get("revision")) or {},
        cost=_mapping(document.get("cost")) or {},
        peak_bytes=size if isinstance(size := begun.get("peak_bytes"), int) else None,
    )


def read_unfinished(folder: Path) -> PastCheck | None:
    """A check that never came to a verdict, which is then empty; None where the folder does not say that it is one."""
    begun = _begun(folder)
    id_, name = _text(begun.get("id")), _text(begun.get("profile"))
    if id_ is None or name is None or begun.get("started") is None:
        return None
    return PastCheck(id_, _time(begun, folder), name, folder.absolute(), "")


def _digests(experiment: dict[str, Any]) -> dict[str, str | None]:
    """Digest of each part of an experiment, over what makes it the same as another."""
    values: dict[str, list[Any]] = {CONFIGURATIONS: [], ENVIRONMENT: []}
    for path, value in counted_values(experiment).items():
        values[path[0]].append([list(path), value])
    return {
        name: digest_of(sorted(found, key=lambda entry: list(entry[0]))) if name in experiment else None
        for name, found in values.items()
    }


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = layout.read_json(path, _LARGEST)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise HistoryError(f"{path}: cannot be read ({reason})") from error
    if not isinstance(content, dict):
        raise HistoryError(f"{path}: holds no object")
    return content


def _begun(folder: Path) -> dict[str, Any]:
    """The content of ``origin.json``; nothing for a check that another version made."""
    try:
        return _read_json(folder / start.FILE)
    except HistoryError:
        return {}


def _profile(folder: Path) -> dict[str, Any]:
    """The content of ``profile.yaml``; nothing where it is none that a check writes."""
    try:
        if (folder / PROFILE).stat().st_size > _LARGEST_PROFILE:
            return {}
        found = read_yaml(folder / PROFILE)
    except (ConfigError, OSError, RecursionError):
        return {}
    waiting: list[Any] = [found]
    for _ in range(_MOST_VALUES):  # YAML's aliases make much of little
        if not waiting:
            return found
        value = waiting.pop()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {}


def _time(begun: dict[str, Any], folder: Path) -> datetime:
    """When a check began; by its folder's name, or its verdict's file, where it does not say."""
    try:
        said = datetime.fromisoformat(str(begun.get("started")))
        return (said if said.tzinfo else said.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        pass
    if match := _NAME.fullmatch(folder.name):
        try:
            return datetime.strptime(match["time"], "%Y%m%d-%H%M%S").astimezone(timezone.utc)
        except (ValueError, OverflowError):
            pass
    dated = folder / VERDICT if (folder / VERDICT).is_file() else folder
    return datetime.fromtimestamp(int(dated.stat().st_mtime), timezone.utc)


def _name(folder: Path) -> str:
    match = _NAME.fullmatch(folder.name)
    return match["name"] if match else folder.name


def _text(value: Any) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) and value else None


def _mapping(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
