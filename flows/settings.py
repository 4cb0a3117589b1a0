"""Prefect's settings for a check, put into the environment before Prefect is imported, and the server it talks to.

Prefect reads them once, at import. A value that the user set stays, except that nothing ever calls home.
"""

from __future__ import annotations

import os

from flows.local_server import LocalServer
from flows.stale import HEARTBEAT_SECONDS
from probe.privacy import never_call_home

FOLDERS = "FIRSTDIFF_PROFILE_FOLDERS"
"""Variable of a worker: further folders of profiles that a deployment's flow run may check."""

DEFAULTS = {
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",  # a fresh home first migrates its database
    "PREFECT_SERVER_UI_V2_ENABLED": "false",  # that page asks an outside host for its configuration
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    "PREFECT_LOGGING_EXTRA_LOGGERS": "firstdiff",  # what probe logs reaches the flow run's log
}


def prepare(verbose: bool) -> None:
    """Sets what a check needs.

    Args:
        verbose: Whether Prefect's own logs are shown. They reach the flow run's log in any case.
    """
    never_call_home()
    os.environ.pop("PREFECT__FLOW_RUN_ID", None)  # a command that a flow run starts is not that flow run
    console = {} if verbose else {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
    for name, value in {**DEFAULTS, **console}.items():
        os.environ.setdefault(name, value)


def connect() -> None:
    """Imports Prefect and sees to it that it has a server: the one that is configured, or one for this check alone.

    ``prepare`` comes first. A server of our own starts while everything is imported; where one of Prefect's own files
    (a profile, ``prefect.toml``) turns out to name another, that one is taken.

    Raises:
        InconclusiveError: The server of our own did not start.
    """
    if os.environ.get("PREFECT_API_URL"):
        return
    server = LocalServer()
    from prefect.context import refresh_global_settings_context
    from prefect.settings import get_current_settings

    from flows import determinism  # noqa: F401  (takes about as long as the server does)

    if get_current_settings().api.url:
        server.stop()
        return
    os.environ["PREFECT_API_URL"] = server.wait()
    refresh_global_settings_context()
    del os.environ["PREFECT_API_URL"]  # trainers have nothing to do with this server
