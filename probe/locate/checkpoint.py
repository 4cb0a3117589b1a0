"""What the first difference of two checkpoints means."""

from __future__ import annotations

from probe.compare.checkpoints import TAG, CheckpointComparison
from probe.compare.entries import Entry
from probe.language import tell
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
    records = found.records
    why = tell(
        "{how}; {differing} of {compared} differ, this one first ({order})",
        how=how(entry),
        differing=records.differences,
        compared=records.compared,
        order=found.order,
    )
    return First(0, None, (), 0, "weights", name, TAG, 0), Cause("weights", name, why)


def how(entry: Entry) -> str:
    """How a value of two checkpoints differs, in a few words."""
    if entry.status == "missing":
        return tell("only checkpoint a has it")
    if entry.status == "extra":
        return tell("only checkpoint b has it")
    difference = entry.difference
    if difference is None:
        return entry.problem or tell("it differs")
    counted = {"count": difference.count, "size": difference.size, "largest": float(difference.max_absolute)}
    if difference.max_ulp is None:
        said = tell("{count} of {size} elements differ, by {largest:.3g} at most", **counted)
    else:
        said = tell(
            "{count} of {size} elements differ, by {largest:.3g} or {ulp} ULP at most",
            **counted, ulp=difference.max_ulp,
        )  # fmt: skip
    return said + tell("; only {harmless} differ", harmless=difference.harmless) if difference.harmless else said
