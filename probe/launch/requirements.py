"""What a trainer's own configuration must say so that two runs of it can be the same: looked at beforehand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from probe.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Requirement:
    """One key of a trainer's configuration, and what it must be.

    Example:
        >>> seed = Requirement("generate_config.sampling_config.seed", "a number", is_number, 1, "it samples at random")
        >>> seed.is_met({"generate_config": {"sampling_config": {"seed": 7}}}), seed.is_met({})
        (True, False)
    """

    key: str
    """Dotted path in the configuration."""
    wanted: str
    """What the trainer's documentation asks for, as it is written there."""
    holds: Callable[[Any], bool]
    """Whether a value is such; is asked None where the key is lacking."""
    value: Any
    """What ``determinism: enforce`` sets."""
    why: str
    """What goes wrong otherwise, in a few words."""

    def is_met(self, configuration: Mapping[str, Any]) -> bool:
        """Whether a configuration says so."""
        return self.holds(value_at(configuration, self.key))


def is_number(value: Any) -> bool:
    """Whether a value is a whole number, as seeds are."""
    return isinstance(value, int) and not isinstance(value, bool)


def value_at(configuration: Mapping[str, Any], key: str) -> Any:
    """What a dotted key holds; None where it is lacking.

    Example:
        >>> value_at({"rl_config": {"seed": 1}}, "rl_config.seed"), value_at({}, "rl_config.seed")
        (1, None)
    """
    found: Any = configuration
    for part in key.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return found


def unmet(configuration: Mapping[str, Any], requirements: Iterable[Requirement]) -> list[Requirement]:
    """Those that a configuration does not meet, in their order."""
    return [one for one in requirements if not one.is_met(configuration)]


def refuse(source: str, configuration: Mapping[str, Any], lacking: list[Requirement]) -> None:
    """Ends a check before it starts: its trainer cannot run the same twice.

    Args:
        source: The configuration, by the name that its user knows it by.
        configuration: What it says.
        lacking: What it does not meet; nothing is refused where that is empty.

    Raises:
        ConfigError: Names the first key, its value and the one that is asked for, and the other keys.
    """
    if not lacking:
        return
    first, *others = lacking
    found = value_at(configuration, first.key)
    problem = f"is {_shown(found)}, must be {first.wanted}: {first.why}"
    if others:
        problem += "; so are " + ", ".join(
            f"{one.key} ({_shown(value_at(configuration, one.key))}, must be {one.wanted})" for one in others
        )
    raise ConfigError(source, first.key, f"{problem}; determinism: enforce in the profile sets what can be set")


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value!r:.60}"
