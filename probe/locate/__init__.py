"""Finding the first difference and its cause: the first event in execution order that differs is the answer."""

from __future__ import annotations

from probe.locate.capture import capture_of_answer, why_no_capture
from probe.locate.cause import Cause, First, cause_of_key_data, cause_of_layers
from probe.locate.checkpoint import cause_of_checkpoints, how
from probe.locate.conclude import Conclusion, SecondPair, conclude
from probe.locate.equivalent import equivalent_entries
from probe.locate.first import FirstKeyData, first_key_data, target_of
from probe.locate.reruns import Reruns, judge_reruns
from probe.locate.samples import conclude_of_last, judge_samples, target_before
from probe.locate.trace import TraceAnswer, is_earliest, locate_trace, target_of_answer

__all__ = [
    "Cause",
    "Conclusion",
    "First",
    "FirstKeyData",
    "Reruns",
    "SecondPair",
    "TraceAnswer",
    "capture_of_answer",
    "cause_of_checkpoints",
    "cause_of_key_data",
    "cause_of_layers",
    "conclude",
    "conclude_of_last",
    "equivalent_entries",
    "first_key_data",
    "how",
    "is_earliest",
    "judge_reruns",
    "judge_samples",
    "locate_trace",
    "target_before",
    "target_of",
    "target_of_answer",
    "why_no_capture",
]
