"""How sure a comparison is: by the weakest of what was compared, exact bytes, checksums or statistics."""

from __future__ import annotations

from typing import Any

from probe.compare import KeyDataComparison, LayerComparison, TraceComparison
from probe.language import recall, tell
from probe.store.evidence import LEVELS

_TEXTS = {
    "exact": tell("all bytes, or digests of them"),
    "checksum": tell("checksums that msprobe kept, CRC-32 or MD5"),
    "xor": tell("an XOR of all words, which sees neither another order nor words that stand there twice"),
    "statistics": tell("max, min, mean and norm, which may be the same where values differ"),
    "nothing": tell("some values left nothing but their dtype and shape"),
}
"""What was compared, by the weakest of it."""


def certainty(
    key_data: KeyDataComparison | None, layers: LayerComparison | None, traces: TraceComparison | None
) -> dict[str, Any]:
    """The content of ``certainty`` in ``verdict.json``.

    ``level`` is ``exact``, ``checksum`` or ``statistics``, whichever is the weakest by which anything was compared,
    also what differs; null where nothing was compared. ``values`` counts values of layer dumps that show no difference.

    Args:
        key_data: How the key data compares.
        layers: How the layer dumps compare.
        traces: How the traces compare.
    """
    found = set(layers.levels) | {difference.level for difference in layers.differences} if layers else set()
    if (key_data is not None and key_data.compared) or (traces is not None and traces.compared):
        found.add("exact")
    weakest = next((level for level in reversed(LEVELS) if level in found), None)
    known = {"xor": "checksum", "nothing": "statistics"}
    return {
        "level": known.get(weakest, weakest) if weakest else None,
        "text": _TEXTS[weakest] if weakest else tell("nothing was compared"),
        "values": {level: layers.levels[level] if layers else 0 for level in LEVELS},
    }


def certainty_line(document: dict[str, Any]) -> str | None:
    """How sure the comparison is, for a terminal; None where it is by exact bytes, or nothing was compared.

    Args:
        document: The content of ``verdict.json``.
    """
    found = document["certainty"]
    if found["level"] in ("exact", None):
        return None
    return tell("certainty: {level}: {text}", level=level_word(found["level"]), text=recall(found["text"]))


def level_word(level: str) -> str:
    """How sure a comparison is, for people."""
    return {"exact": tell("exact"), "checksum": tell("checksum"), "statistics": tell("statistics")}.get(level, level)
