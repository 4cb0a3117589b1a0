"""Prefect tasks: each calls one public function of ``probe``.

None is cached and no result is persisted: run ``b`` served from the cache of run ``a`` would be a run compared with
itself.
"""

from __future__ import annotations

from typing import Any

from prefect.cache_policies import NO_CACHE

UNCACHED: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False}
"""Options of every task."""
