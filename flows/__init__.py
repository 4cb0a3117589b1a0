"""The flows: the order of tasks, and the ``firstdiff`` command."""

from __future__ import annotations

from probe.privacy import never_call_home

never_call_home()  # Prefect sends when it is imported, whoever imports it: a worker's flow run starts here too
