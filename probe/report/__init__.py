"""What a check leaves for people and programs: ``verdict.json``, ``report.html``, msprobe's official tables."""

from __future__ import annotations

from probe.report.advice import hint_line
from probe.report.certainty import certainty_line
from probe.report.checkpoints import checkpoint_lines
from probe.report.html import write_report
from probe.report.names import DumpNames
from probe.report.page import difference_rows, log_block, markdown_summary, report_address
from probe.report.picture import data_uri, picture, step_map
from probe.report.summary import SUMMARY, summary_lines, summary_rows, write_summary
from probe.report.tables import Tables, key_data_tables, layer_tables
from probe.report.verdict import CheckResult, last_line, reservations, verdict_document, write_verdict

__all__ = [
    "SUMMARY",
    "CheckResult",
    "DumpNames",
    "Tables",
    "certainty_line",
    "checkpoint_lines",
    "data_uri",
    "difference_rows",
    "hint_line",
    "key_data_tables",
    "last_line",
    "layer_tables",
    "log_block",
    "markdown_summary",
    "picture",
    "report_address",
    "reservations",
    "step_map",
    "summary_lines",
    "summary_rows",
    "verdict_document",
    "write_report",
    "write_summary",
    "write_verdict",
]
