"""What Prefect's page shows of a check: artifacts with one key per profile, so that they form a history.

============================  =============================================================
``<profile>``                 markdown: verdict, first difference, cause, what to do, the bill
``<profile>-differences``     table: the first differences
``<profile>-map``             a small picture of steps and tags
``<profile>-report``          link to the report, where ``check.report_url`` says an address
============================  =============================================================

All of it is small, and numbers are finite: the data itself stays in the check's folder.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException

from flows.names import artifact_key, profile_label, seed_of
from probe.config import Profile
from probe.language import said, tell
from probe.report import (
    CheckResult,
    data_uri,
    difference_rows,
    log_block,
    markdown_summary,
    picture,
    report_address,
    step_map,
)

log = logging.getLogger("firstdiff")
LONGEST_WAIT_SECONDS = 60.0
"""How long a server that is gone is waited for before the page goes without."""
MOST_PICTURE = 64_000
"""Bytes of the largest picture that goes into the database."""


def show_check(named: str, profile: Profile, result: CheckResult, document: dict[str, Any], folder: Path) -> None:
    """Puts a check on the page. A server that does not take it is a warning: the check's folder has everything.

    Args:
        named: The profile's name or path.
        profile: The resolved profile.
        result: What was found.
        document: The content of ``verdict.json``.
        folder: The check's folder.
    """
    label, template = profile_label(named), profile.check.report_url
    seed = seed_of(profile)
    title = label if seed is None else said(tell("{profile}, seed {seed}", profile=label, seed=seed))
    names = {"check": folder.name, "path": str(folder), "host": platform.node(), "profile": label}
    url = report_address(template, **names) if template else None
    with warning("the page does not show the check"):
        show(
            artifact_key(label),
            title,
            document,
            folder,
            url,
            picture(step_map(result.key_data, result.traces)),
            result.log_tail,
        )


def show(
    key: str,
    title: str,
    document: dict[str, Any],
    folder: Path | None,
    report_url: str | None = None,
    svg: str | None = None,
    log_tail: str = "",
) -> None:
    """Puts a verdict on the page, in the language that is spoken here.

    Args:
        key: The artifacts' key.
        title: What was checked or compared.
        document: The content of ``verdict.json``.
        folder: Where verdict and report are; None where none were written.
        report_url: Address of the report.
        svg: A picture of the map.
        log_tail: The end of a failed trainer's log.
    """
    uri = data_uri(svg) if svg is not None and len(svg) <= MOST_PICTURE else None
    place = f"{platform.node()}:{folder}" if folder else said(tell("nowhere: no folder was named"))
    text = markdown_summary(document, title, place, report_url, uri) + log_block(log_tail)
    create_markdown_artifact(text, key, title)
    if rows := difference_rows(document):
        create_table_artifact(rows, f"{key}-differences", said(tell("First differences of {title}", title=title)))
    if uri is not None:
        create_image_artifact(uri, f"{key}-map", said(tell("Steps and tags of {title}", title=title)))
    if report_url is not None:
        link = said(tell("report of {check}", check=os.path.basename(str(folder))))
        create_link_artifact(report_url, link, f"{key}-report")


@contextmanager
def warning(what: str) -> Iterator[None]:
    """Makes what the server does not take a warning. A server that is being started again is waited for.

    Args:
        what: What is missing then.
    """
    _wait_for_server()
    try:
        yield
    except (PrefectException, httpx.HTTPError, OSError) as error:
        log.warning("%s: %s", what, " ".join(f"{type(error).__name__}: {error}".split())[:300])


def _wait_for_server() -> None:
    deadline = time.monotonic() + LONGEST_WAIT_SECONDS
    with get_client(sync_client=True) as client:
        while client.api_healthcheck() is not None and time.monotonic() < deadline:
            time.sleep(1.0)
