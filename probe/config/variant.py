"""The two sides of a check: the profile of run ``a``, and that of run ``b`` where ``check.b`` changes it on purpose."""

from __future__ import annotations

import copy
from typing import Any

from probe.config.profile import Profile
from probe.errors import ConfigError
from probe.keys import (
    CONFIGURATIONS,
    close_keys,
    environment_keys,
    is_of_environment,
    parse_key,
    sections,
    show_key,
)

MAY_CHANGE = ("trainer", "determinism", "faults")
"""Sections of a profile that ``check.b`` may change."""
_NOT_IN_B = ("trainer.config.msprobe_config",)
OWN = {"trainer": {"config": {"msprobe_config": {"msprobe": True, "dump_path": True}}}}
"""Keys that a check sets itself, as pydantic's ``model_dump`` leaves them out: a profile may not name them."""


def profile_of(profile: Profile, run: str) -> Profile:
    """The profile of one run: ``b`` and ``d`` train what ``check.b`` says.

    Args:
        profile: A profile that ``load_profile`` read.
        run: ``a``, ``b``, ``c`` or ``d``.
    """
    if run not in ("b", "d") or not profile.check.b:
        return profile
    raw = plain(profile)
    for key, value in profile.check.b.items():
        put(raw, key, value, "check.b")
    return Profile.model_validate(raw)


def plain(profile: Profile) -> dict[str, Any]:
    """A profile as the mapping that a file of it holds."""
    return profile.model_dump(mode="json", exclude=OWN if profile.trainer.kind == "integrated" else None)


def apply_b(raw: dict[str, Any], changes: dict[str, Any], source: str) -> dict[str, Any]:
    """A profile's mapping with the changes of ``check.b``.

    Args:
        raw: The mapping; it stays as it is.
        changes: Dotted keys and values.
        source: The profile's file.

    Raises:
        ConfigError: A key is none of those that may be changed.
    """
    changed = copy.deepcopy(raw)
    for key, value in changes.items():
        section = key.split(".")[0]
        if section not in MAY_CHANGE:
            raise ConfigError(source, f"check.b.{key}", f"only keys of {', '.join(MAY_CHANGE)} may differ in run b")
        if any(key == own or key.startswith(f"{own}.") for own in _NOT_IN_B):
            raise ConfigError(source, f"check.b.{key}", "a check sets what its runs record; remove the key")
        put(changed, key, copy.deepcopy(value), f"{source}: check.b")
    return changed


def put(raw: dict[str, Any], key: str, value: Any, source: str) -> None:
    """Sets a dotted key in a mapping, making the sections on the way to it.

    Raises:
        ConfigError: The way leads through a single value, or past the end of a list.
    """
    *parents, last = _parts(key)
    target: Any = raw
    for part in parents:
        target = _step_into(target, part, key, source)
    if isinstance(target, list):
        target[_index(target, last, key, source)] = value
    elif isinstance(target, dict):
        target[last] = value
    else:
        raise ConfigError(source, key, f"{'.'.join(parents)} is a single value, it has no keys")


def get(raw: Any, key: str) -> Any:
    """The value at a dotted key that ``put`` has set."""
    for part in _parts(key):
        raw = raw[int(part)] if isinstance(raw, list) else raw[part]
    return raw


def check_allowed(profile: Profile, other: Profile, source: str) -> None:
    """Sees to it that every key of ``check.allow_different`` exists.

    Args:
        profile: The profile.
        other: That of run ``b``.
        source: The profile's file.

    Raises:
        ConfigError: One does not; names those that look like it.
    """
    if not profile.check.allow_different:
        return
    dumps = [each.model_dump(mode="json", exclude={"check": True}) for each in (profile, other)]
    known = dict.fromkeys(path for dump in dumps for path in sections({CONFIGURATIONS: dump}))
    for index, key in enumerate(profile.check.allow_different):
        path = parse_key(key)
        if len(path) > 1 and (path in known or _is_open(path)) or is_of_environment(path):
            continue
        close = close_keys(path, [*known, *environment_keys()])
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        where = f"check.allow_different.{index}"
        raise ConfigError(source, where, f"{show_key(path)} is no key of the profile or of environment.json{hint}")


def _is_open(path: tuple[str, ...]) -> bool:
    """Whether a key lies in a section of free names: variables that only the trainer's environment has."""
    return path[:3] == (CONFIGURATIONS, "trainer", "env") and len(path) == 4


def _parts(key: str) -> list[str]:
    """The parts of a ``--set`` key; all that follows ``check.b`` is one key of its own."""
    if key.startswith("check.b."):
        return ["check", "b", key.removeprefix("check.b.")]
    return key.split(".")


def _step_into(target: Any, part: str, key: str, source: str) -> Any:
    if isinstance(target, list):
        return target[_index(target, part, key, source)]
    if isinstance(target, dict):
        if target.get(part) is None:
            target[part] = {}
        return target[part]
    raise ConfigError(source, key, f"there are no keys below a single value (at {part!r})")


def _index(target: list[Any], part: str, key: str, source: str) -> int:
    if not part.isdigit() or int(part) >= len(target):
        raise ConfigError(source, key, f"{part!r} is not an index of a list of {len(target)}")
    return int(part)
