"""What the first difference of two checkpoints means."""

from __future__ import annotations

from probe.compare.checkpoints import TAG, CheckpointComparison
from probe.compare.entries import Entry
from probe.locate.cause import Cause, First


def cause_of_checkpoints(found: CheckpointComparison) -> tuple[First, Cause] | None:
    """The first parameter that differs, in the model's order; None where none does.

    Args:
        found: How the checkpoints compare.
    """
    entry = next(iter(found.records.differing), None)
    if entry is None:
        return None
    name = entry.record.path
    count = f"{found.records.differences} of {found.records.compared} differ"
    why = f"{how(entry)}; {count}, this one first ({found.order})"
    return First(0, None, (), 0, "weights", name, TAG, 0), Cause("weights", name, why)


def how(entry: Entry) -> str:
    """How a value of two checkpoints differs, in a few words."""
    if entry.status == "missing":
        return "only checkpoint a has it"
    if entry.status == "extra":
        return "only checkpoint b has it"
    difference = entry.difference
    if difference is None:
        return entry.problem or "it differs"
    ulp = "" if difference.max_ulp is None else f" or {difference.max_ulp} ULP"
    only = f"; only {difference.harmless} differ" if difference.harmless else ""
    largest = float(difference.max_absolute)
    return f"{difference.count} of {difference.size} elements differ, by {largest:.3g}{ulp} at most{only}"
