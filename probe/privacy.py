"""Nothing calls home: analytics, telemetry and searches for newer versions are off. Standard library only."""

from __future__ import annotations

import os

SWITCHES = {
    "DO_NOT_TRACK": "1",  # Prefect's SDK sends on import otherwise; Hugging Face's libraries and vLLM heed it too
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
"""Environment variables that the libraries read, most of them once, when they are imported."""


def never_call_home() -> None:
    """Turns off everything that would call home, in this process and all that it starts.

    It comes before what it concerns is imported. It overrides what the user set.
    """
    os.environ.update(SWITCHES)
