"""What runs inside a trainer: the ``Probe``.

Imports the standard library, torch, NumPy and xxhash; msprobe only when layers are dumped; never pydantic, pandas or
Prefect.
"""

from __future__ import annotations

from probe.collect.probe import Probe

__all__ = ["Probe"]
