"""Two checkpoints in ``verdict.json`` and on a terminal."""

from __future__ import annotations

from typing import Any

from probe.compare import Entry
from probe.compare.checkpoints import CheckpointComparison
from probe.language import recall, tell
from probe.locate import how
from probe.store.numeric import strict_number

LISTED = 1000
"""Most parameters that are listed; all are counted."""


def checkpoint_document(found: CheckpointComparison | None) -> dict[str, Any] | None:
    """The content of ``checkpoint`` in ``verdict.json``; None where no checkpoints were compared.

    Args:
        found: How they compare.
    """
    if found is None:
        return None
    return {
        "formats": {"a": found.a.format, "b": found.b.format},
        "order": found.order,
        "parameters": [_row(entry) for entry in found.records.differing[:LISTED]],
        "parameters_left_out": max(0, found.records.differences - LISTED),
    }


def checkpoint_lines(document: dict[str, Any], most: int = 10) -> list[str]:
    """The first parameters that differ, for a terminal, one line each.

    Args:
        document: The content of ``verdict.json``.
        most: Most that are shown; the rest is counted.
    """
    found = document["checkpoint"]
    if found is None or not found["parameters"]:
        return []
    rows = found["parameters"]
    lines: list[str] = [tell("{name}: {how}", name=row["name"], how=recall(row["how"])) for row in rows[:most]]
    more = len(rows) + found["parameters_left_out"] - most
    lines += [tell("{more} more parameters", more=more)] if more > 0 else []
    return [*lines, tell("order: {order}", order=recall(found["order"]))]


def _row(entry: Entry) -> dict[str, Any]:
    record, difference = entry.record, entry.difference
    values = difference.values if difference else (None, None)
    return {
        "name": record.path,
        "status": entry.status,
        "dtype": record.dtype,
        "shape": list(record.shape),
        "how": how(entry),
        "differing": difference.count if difference else None,
        "size": difference.size if difference else None,
        "max_absolute": _number(difference.max_absolute) if difference else None,
        "max_relative": _number(difference.max_relative) if difference else None,
        "max_ulp": difference.max_ulp if difference else None,
        "first_index": list(difference.first_index) if difference else None,
        "a": _number(values[0]),
        "b": _number(values[1]),
    }


def _number(value: Any) -> Any:
    if value is None or isinstance(value, complex):
        return None if value is None else str(value)
    return strict_number(value)
