"""Prefect's settings for a check, put into the environment before Prefect is imported.

Prefect reads them once, at import. A value that the user set stays, except that nothing ever calls home.
"""

from __future__ import annotations

import os

ALWAYS = {
    "DO_NOT_TRACK": "1",  # Prefect's SDK sends on import otherwise
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
}
"""Analytics and telemetry, off."""

DEFAULTS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",  # a fresh home first migrates its database
    "PREFECT_SERVER_UI_V2_ENABLED": "false",  # that page asks an outside host for its configuration
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "firstdiff",  # what probe logs reaches the flow run's log
}


def prepare(verbose: bool) -> None:
    """Sets what a check needs.

    Args:
        verbose: Whether Prefect's own logs are shown. They reach the flow run's log in any case.
    """
    os.environ.update(ALWAYS)
    console = {} if verbose else {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
    for name, value in {**DEFAULTS, **console}.items():
        os.environ.setdefault(name, value)
