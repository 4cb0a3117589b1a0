"""What a check leaves: ``verdict.json``, ``report.html`` and ``keydata/summary.xlsx``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prefect import task

from probe.report import CheckResult, verdict_document, write_report, write_summary, write_verdict
from tasks import UNCACHED


@task(name="write verdict and report", **UNCACHED)
def write_results(result: CheckResult, folder: Path) -> dict[str, Any]:
    """Writes all three; returns the content of ``verdict.json``."""
    if result.key_data is not None:
        result.summary = write_summary(result.key_data, folder / "keydata")
    document = verdict_document(result, folder)
    write_verdict(document, folder)
    write_report(result, document, folder)
    return document
