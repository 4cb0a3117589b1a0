"""The nightly check: every profile of a list, with every combination of seeds, processes and settings.

Each is a ``determinism_check`` of its own, one after the other, in this flow's process: a failure of one does not stop
the others. The final state is the worst verdict, so that one alert says that the night was bad.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.client.schemas.objects import State

from flows.determinism import determinism_check
from flows.logs import heard
from flows.names import now
from flows.orphaned import outliving_its_worker
from flows.page import warning
from flows.permissions import require_allowed
from flows.spoken import AS_ON_WORKER, Lang, spoken_by
from flows.states import BY_SEVERITY, document_of, state_of_error, verdict_state
from probe.config import override_lines, parse_request
from probe.config.request import SOURCE, Lines, OptionalNumber
from probe.errors import ConfigError, FirstdiffError, InconclusiveError, UsageError
from probe.history import past_checks, stories, summary_markdown
from probe.language import join, said, speaking, tell, verdict_word
from probe.report import last_line

log = logging.getLogger("firstdiff")
MOST_CHECKS = 200
"""Most checks of one night."""


class BadNight(InconclusiveError):
    """A night was not identical throughout.

    Args:
        checks: One row a check.
        sentence: What is wrong.
    """

    def __init__(self, checks: list[dict[str, Any]], sentence: str) -> None:
        self.checks = checks
        super().__init__(sentence)


def night_name() -> str:
    """The name of the flow run: its date."""
    return f"nightly · {now()}"


@flow(
    name="nightly",
    flow_run_name=night_name,
    validate_parameters=False,
    persist_result=False,
    log_prints=False,
)
def nightly(
    profiles: list[str],
    seeds: list[int] = [],  # noqa: B006  (Prefect's form shows it; nothing changes it)
    nproc_per_node: list[int] = [],  # noqa: B006
    settings: list[str] = [],  # noqa: B006
    overrides: Lines = "",
    time_limit: OptionalNumber = -1,
    lang: Lang = AS_ON_WORKER,
) -> State[Any]:
    """Checks every profile of a list, with every combination of seeds, processes and settings.

    Args:
        profiles: Names of profiles, or paths of .yaml files on the worker's machine; one at least.
        seeds: Seeds to check each with, 0 to 4,294,967,295. Empty: as in each profile.
        nproc_per_node: Numbers of processes to check each with, 1 to 4,096. Empty: as in each profile.
        settings: Settings to check each with: dotted.key=value, several with a blank between them, such as
            determinism.num_threads=1 record.key_data=digests. Empty: as in each profile.
        overrides: What all checks have, one dotted.key=value a line.
        time_limit: Longest time of one training run in seconds, above 0, at most 2,592,000. -1: as in each profile.
        lang: Language of the reports and of what this page shows, en or zh.

    Returns:
        A final state by the name of the worst verdict. The matrix has at most 200 checks.
    """
    try:
        spoken = spoken_by(lang)
        matrix = list(_matrix(profiles, seeds, nproc_per_node, settings, override_lines(overrides)))
        for parameters in matrix:
            _require_allowed({**parameters, "time_limit": time_limit})
    except UsageError as error:
        return state_of_error(error)
    with outliving_its_worker(), heard():
        rows = [_checked({**parameters, "time_limit": time_limit, "lang": spoken}) for parameters in matrix]
    with speaking(spoken):
        return _state_of_night(rows)


def _state_of_night(rows: list[dict[str, Any]]) -> State[Any]:
    verdict = next(each for each in BY_SEVERITY if each in {row["verdict"] for row in rows})
    bad = [row for row in rows if row["verdict"] in ("divergent", "inconclusive")]
    parts: list[str] = [tell("{count} checks, {bad} of them not identical", count=len(rows), bad=len(bad))]
    parts += [tell("{profile}: {found}", profile=row["profile"], found=row["found"]) for row in bad[:3]]
    sentence = said(join("; ", parts))
    with warning("the page does not show the night"):
        create_table_artifact(_table(rows), "nightly-checks", said(tell("Checks of {time}", time=now())))
    show_history()
    return verdict_state(verdict, sentence, rows, BadNight(rows, sentence))


def _table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows for people."""
    return [
        {
            said(tell("profile")): row["profile"],
            said(tell("seed")): row["seed"],
            said(tell("processes")): row["processes"],
            said(tell("settings")): row["settings"],
            said(tell("verdict")): said(verdict_word(row["verdict"])),
            said(tell("found")): row["found"],
            said(tell("folder")): row["folder"],
        }
        for row in rows
    ]


def _require_allowed(parameters: dict[str, Any]) -> None:
    """Refuses a whole night for its own parameters; what is wrong with one profile, that profile's check says.

    Raises:
        ConfigError: A parameter is wrong, or asks for what the worker's owner does not allow.
    """
    try:
        require_allowed(parse_request(parameters))
    except ConfigError as error:
        if error.source == SOURCE and error.key != "profile":
            raise
    except Exception as error:  # noqa: BLE001  (the check of this profile looks again, and its row has the reason)
        log.debug("%r: %s", parameters["profile"], error)


def show_history(checks: Path = Path("checks")) -> None:
    """Puts on the page what the nights tell together: since when a profile is divergent, and what changed then.

    Args:
        checks: The folder of checks.
    """
    try:
        text = summary_markdown(stories(past_checks(checks)))
    except (FirstdiffError, OSError) as error:
        log.warning("the nightly summary is not made: %s", error)
        return
    with warning("the page does not show the nightly summary"):
        create_markdown_artifact(text, "nightly", said(tell("Since when, and what changed")))


def _checked(parameters: dict[str, Any]) -> dict[str, Any]:
    """One check: a row of the night's table."""
    row = {
        "profile": _storable(parameters["profile"]),
        "seed": "" if parameters["seed"] is None else parameters["seed"],
        "processes": "" if parameters["nproc_per_node"] is None else parameters["nproc_per_node"],
        "settings": _storable(" ".join(parameters["overrides"])),
    }
    log.info("checking %s", " ".join(str(value) for value in row.values() if value != ""))
    try:
        document = document_of(determinism_check(**parameters, return_state=True))
        with speaking(parameters.get("lang", "en")):
            line = last_line(document, None)
        found = {"verdict": document["verdict"], "found": line, "folder": document["folder"]}
    except Exception as error:  # noqa: BLE001  (whatever one check fails with, the night goes on)
        kind = "" if isinstance(error, FirstdiffError) else f"{type(error).__name__}: "
        found = {"verdict": "inconclusive", "found": f"{kind}{error}", "folder": ""}
    return {**row, **found, "found": _storable(found["found"])[:300]}


def _storable(text: str) -> str:
    """Text that a server stores: half a character is written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def _matrix(profiles: Any, seeds: Any, processes: Any, settings: Any, overrides: list[str]) -> Iterator[dict[str, Any]]:
    """The parameters of every check.

    Raises:
        ConfigError: A list is none; names it.
    """
    given = {"profiles": profiles, "seeds": seeds, "nproc_per_node": processes, "settings": settings}
    for name, values in given.items():
        kind = str if name in ("profiles", "settings") else int
        if not isinstance(values, list | None) or any(type(value) is not kind for value in values or ()):
            raise ConfigError("parameters", name, f"must be a list of {kind.__name__}, not {values!r:.60}")
    if not profiles:
        raise ConfigError("parameters", "profiles", "name one at least")
    lines = [override_lines(setting.split()) for setting in settings or [""]]
    every = list(itertools.product(profiles, seeds or [None], processes or [None], lines))
    if len(every) > MOST_CHECKS:
        raise ConfigError("parameters", "profiles", f"{len(every)} checks in one night; {MOST_CHECKS} are the most")
    for profile, seed, number, entries in every:
        yield {"profile": profile, "seed": seed, "nproc_per_node": number, "overrides": [*overrides, *entries]}
