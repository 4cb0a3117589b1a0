"""What the checks of one profile tell together: since when it differs, what changed then, whether it is one cause.

A story is of one profile with one set of overrides. Nights without a verdict (``inconclusive``) are counted, and say
nothing of whether anything differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from probe.compare import compare_experiments
from probe.history.checks import PastCheck
from probe.keys import CONFIGURATIONS, ENVIRONMENT, parse_key

Part = Literal["configuration", "environment", "code"]

_CODE_KEYS = ("commit", "dirty", "changes", "changed_files", "firstdiff")


@dataclass(frozen=True, slots=True)
class Change:
    """Something that was not the same in two checks.

    Example:
        >>> Change("code", "commit", "5a…", "7c…").part
        'code'
    """

    part: Part
    key: str
    before: Any
    after: Any

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {"part": self.part, "key": self.key, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class Story:
    """The history of one profile with one set of overrides.

    Example:
        >>> story = stories(past_checks(Path("checks")))[0]  # doctest: +SKIP
        >>> story.first_divergent.time, [change.key for change in story.changes]  # doctest: +SKIP
        (datetime(2026, 1, 6, …), ['trainer.config.actor_config.lr'])
    """

    checks: tuple[PastCheck, ...]
    """All of them, the oldest first; at least one."""
    last_identical: PastCheck | None = None
    """The last check without a difference before the first of ``divergent_since``; the latest where none differs."""
    divergent: tuple[PastCheck, ...] = ()
    """The divergent checks since then, the oldest first: none where the latest verdict is that nothing differs."""
    changes: tuple[Change, ...] = ()
    """What changed between the last identical and the first divergent check."""
    changes_left_out: int = 0
    unknown: tuple[Part, ...] = ()
    """What one of those two says nothing of."""
    same_cause: bool | None = None
    """Whether the latest divergent check has the cause of the divergent one before it; None where there is none."""
    cause_since: PastCheck | None = None
    """The first of ``divergent`` from which on all have the latest one's cause."""
    flaky: bool = False
    """Whether the verdict went to and fro under one configuration, environment and code."""
    switches: int = field(default=0)
    """How often it did."""

    @property
    def latest(self) -> PastCheck:
        """The newest check."""
        return self.checks[-1]

    @property
    def profile(self) -> str:
        """The profile's name."""
        return self.latest.profile

    @property
    def name(self) -> str:
        """The profile's name with what was set over it."""
        return " ".join([self.profile, *self.latest.variant])

    @property
    def first_divergent(self) -> PastCheck | None:
        """The check since which it is divergent; None where it is not."""
        return self.divergent[0] if self.divergent else None

    @property
    def is_new(self) -> bool:
        """Whether its newest verdict is the first that is divergent after one that was not."""
        return len(self.divergent) == 1 and self.last_identical is not None and not self.flaky

    @property
    def unexplained(self) -> bool:
        """Whether it became divergent and nothing that is recorded had changed."""
        return self.last_identical is not None and bool(self.divergent) and not self.changes and not self.unknown

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""

        def brief(check: PastCheck | None) -> dict[str, Any] | None:
            if check is None:
                return None
            return {"id": check.id, "time": check.as_dict()["time"], "folder": str(check.folder)}

        return {
            "profile": self.profile,
            "variant": list(self.latest.variant),
            "verdict": self.latest.verdict,
            "last_identical": brief(self.last_identical),
            "divergent_since": brief(self.first_divergent),
            "divergent_checks": len(self.divergent),
            "changes": [change.as_dict() for change in self.changes],
            "changes_left_out": self.changes_left_out,
            "changes_unknown": list(self.unknown),
            "fingerprint": self.divergent[-1].fingerprint if self.divergent else None,
            "same_cause": self.same_cause,
            "cause_since": brief(self.cause_since),
            "new": self.is_new,
            "flaky": self.flaky,
            "unexplained": self.unexplained,
            "checks": [check.as_dict() for check in self.checks],
        }


def stories(checks: Iterable[PastCheck]) -> list[Story]:
    """The story of every profile and set of overrides among some checks, by name.

    Args:
        checks: In any order.
    """
    series: dict[tuple[str, tuple[str, ...]], list[PastCheck]] = {}
    ordered = sorted(checks, key=lambda check: (check.time, check.id))
    for check in ordered:
        series.setdefault((check.profile, check.variant), []).append(check)
    told = []
    for (profile, variant), own in sorted(series.items()):
        others = [check for check in ordered if check.profile == profile and check.variant != variant]
        told.append(_story(own, others))
    return told


def _story(checks: Sequence[PastCheck], others: Sequence[PastCheck]) -> Story:
    conclusive = [check for check in checks if check.verdict != "inconclusive"]
    divergent: list[PastCheck] = []
    for check in reversed(conclusive):
        if check.is_same:
            break
        divergent.insert(0, check)
    switches = _switches(conclusive)
    same = conclusive[: len(conclusive) - len(divergent)]
    if not divergent:
        return Story(tuple(checks), last_identical=same[-1] if same else None, flaky=switches > 1, switches=switches)
    # overrides that are new tonight are a change too: what the profile did without them
    before = same or [check for check in others if check.is_same and check.time < divergent[0].time]
    last = before[-1] if before else None
    changes, left_out, unknown = ((), 0, ()) if last is None else _changes(last, divergent[0])
    earlier = [check for check in conclusive if not check.is_same and check is not divergent[-1]]
    return Story(
        tuple(checks),
        last_identical=last,
        divergent=tuple(divergent),
        changes=changes,
        changes_left_out=left_out,
        unknown=unknown,
        same_cause=earlier[-1].fingerprint == divergent[-1].fingerprint if earlier else None,
        cause_since=_cause_since(divergent),
        flaky=switches > 1,
        switches=switches,
    )


def _switches(conclusive: Sequence[PastCheck]) -> int:
    """How often the verdict changed among the checks that ran under the newest one's conditions."""
    alike = [check.is_same for check in conclusive if check.conditions == conclusive[-1].conditions]
    return sum(one != two for one, two in zip(alike, alike[1:], strict=False))


def _cause_since(divergent: Sequence[PastCheck]) -> PastCheck:
    since = divergent[-1]
    for check in reversed(divergent):
        if check.fingerprint != since.fingerprint:
            break
        since = check
    return since


def _changes(before: PastCheck, after: PastCheck) -> tuple[tuple[Change, ...], int, tuple[Part, ...]]:
    """What changed between two checks, how much of it is left out, and what is not known."""
    found = compare_experiments(before.experiment, after.experiment)
    changes = [
        Change("environment" if parse_key(one.key)[0] == ENVIRONMENT else "configuration", one.key, one.a, one.b)
        for one in found.different
    ]
    unknown: list[Part] = []
    for section, part in ((CONFIGURATIONS, "configuration"), (ENVIRONMENT, "environment")):
        if section not in before.experiment or section not in after.experiment:
            unknown.append("environment" if part == "environment" else "configuration")
    one, two = before.revision, after.revision
    changes += [
        Change("code", key, one.get(key), two.get(key))
        for key in _CODE_KEYS
        if one and two and one.get(key) != two.get(key)
    ]
    if not one.get("commit") or not two.get("commit"):
        unknown.append("code")
    return tuple(changes), found.unmeant - len(found.different), tuple(unknown)
