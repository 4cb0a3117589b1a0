"""Exact comparison of two dumps: key data by digest or bytes, layers by every dumped tensor's bytes, traces by event.

Nothing is cropped, converted or skipped: what only one side has is a difference, what cannot be read is said. Works
without torch, except for layer dumps, whose tensors only torch reads.
"""

from __future__ import annotations

from probe.compare.checkpoints import CheckpointComparison, compare_checkpoints
from probe.compare.configurations import (
    ConfigurationComparison,
    KeyDifference,
    compare_configurations,
    compare_experiments,
    counted_values,
    read_experiment,
)
from probe.compare.entries import Cell, Entry, KeyDataComparison
from probe.compare.keydata import compare_key_data, compare_part
from probe.compare.layers import LayerComparison, LayerDifference, compare_layers
from probe.compare.parts import Part, Share, merge_parts, split
from probe.compare.place import Place, chosen_place, place_for
from probe.compare.processes import compare_on_this_machine
from probe.compare.trace import compare_traces
from probe.compare.trace_found import EventDifference, RankTrace, TraceComparison
from probe.compare.workers import not_in_effect, read_environments, unlike_workers, worker_notes

__all__ = [
    "Cell",
    "CheckpointComparison",
    "ConfigurationComparison",
    "Entry",
    "EventDifference",
    "KeyDataComparison",
    "KeyDifference",
    "LayerComparison",
    "LayerDifference",
    "Part",
    "Place",
    "RankTrace",
    "Share",
    "TraceComparison",
    "chosen_place",
    "compare_checkpoints",
    "compare_configurations",
    "compare_experiments",
    "compare_key_data",
    "compare_layers",
    "compare_on_this_machine",
    "compare_part",
    "compare_traces",
    "counted_values",
    "merge_parts",
    "not_in_effect",
    "place_for",
    "read_environments",
    "read_experiment",
    "split",
    "unlike_workers",
    "worker_notes",
]
