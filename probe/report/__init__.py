"""What a check leaves for people and programs: ``verdict.json``, ``report.html``, msprobe's official tables."""

from __future__ import annotations

from probe.report.html import write_report
from probe.report.names import DumpNames
from probe.report.summary import SUMMARY, summary_lines, summary_rows, write_summary
from probe.report.tables import Tables, key_data_tables, layer_tables
from probe.report.verdict import CheckResult, last_line, reservations, verdict_document, write_verdict

__all__ = [
    "SUMMARY",
    "CheckResult",
    "DumpNames",
    "Tables",
    "key_data_tables",
    "last_line",
    "layer_tables",
    "reservations",
    "summary_lines",
    "summary_rows",
    "verdict_document",
    "write_report",
    "write_summary",
    "write_verdict",
]
