"""Whether runs whose saved values differ harmlessly are equivalent: the traces have to show that nothing followed."""

from __future__ import annotations

from typing import Any

from probe.compare import Entry, KeyDataComparison
from probe.compare.trace_found import RankTrace, TraceComparison
from probe.errors import DumpError
from probe.store.trace_events import KIND, NO_EVENT, parse_place

_WEIGHTS = "weights"


def equivalent_entries(key_data: KeyDataComparison, traces: TraceComparison) -> list[dict[str, Any]]:
    """The differences of two runs that are equivalent; empty where they are not known to be.

    Equivalent are runs of which saved values alone differ, in signs of zeros, payloads of NaN or entries outside the
    mask, where every event of every rank was observed and compared, and all others are the same, among them weights
    after the last difference of each rank.

    Args:
        key_data: The saved values, compared.
        traces: The traces, compared.
    """
    entries = key_data.differing
    unknown = key_data.problems or key_data.counts["unreadable"] or key_data.counts["not_compared"]
    if unknown or not entries or len(entries) != key_data.differences:
        return []
    if not traces.recorded or not traces.whole or traces.total("not_observed"):
        return []
    if any(entry.harmless is None or entry.record.tag == _WEIGHTS for entry in entries):
        return []
    harmless = {
        (entry.rank, entry.step, entry.record.micro_step, entry.record.tag, entry.record.path) for entry in entries
    }
    differing = [found for found in traces.ranks.values() if found.differences]
    saved = {place for found in differing for place in found.saved}
    if saved != harmless or not all(found.only_saved and _weights_follow(found) for found in differing):
        return []
    if {rank for _, _, rank in key_data.cells} - traces.ranks.keys():
        return []
    return [_described(entry) for entry in entries]


def _weights_follow(found: RankTrace) -> bool:
    """Whether weights were recorded after the last difference; all of them are the same then."""
    assert found.file is not None and found.last_index is not None
    try:
        for line in found.file.lines_before(found.file.size()):
            if parse_place(line).index <= found.last_index:
                return False
            if KIND + b'weights"' in line or (KIND + b'optimizer"' in line and b':weights"' in line):
                return True
    except NO_EVENT as error:
        raise DumpError(f"{found.file.path}: a line is damaged ({error})") from error
    return False


def _described(entry: Entry) -> dict[str, Any]:
    record = entry.record
    return {
        "step": entry.step,
        "rank": entry.rank,
        "micro_step": record.micro_step,
        "tag": record.tag,
        "path": record.path or None,
        "call": record.call,
        "only": entry.harmless,
    }
