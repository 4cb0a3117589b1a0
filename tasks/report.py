"""What a check leaves: ``verdict.json`` and ``report.html``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task

from probe.report import CheckResult, verdict_document, write_report, write_verdict
from tasks import UNCACHED


@task(name="write verdict and report", **UNCACHED)
def write_results(result: CheckResult, folder: Path) -> dict[str, Any]:
    """Writes both; returns the content of ``verdict.json``."""
    document = verdict_document(result, folder)
    write_verdict(document, folder)
    write_report(result, document, folder)
    return document
