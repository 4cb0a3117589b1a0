"""Finding the first difference and its cause: the first event in execution order that differs is the answer."""

from __future__ import annotations

from probe.locate.cause import Cause, First, cause_of_key_data, cause_of_layers
from probe.locate.conclude import Conclusion, SecondPair, conclude
from probe.locate.first import FirstKeyData, first_key_data, target_of
from probe.locate.reruns import Reruns, judge_reruns

__all__ = [
    "Cause",
    "Conclusion",
    "First",
    "FirstKeyData",
    "Reruns",
    "SecondPair",
    "cause_of_key_data",
    "cause_of_layers",
    "conclude",
    "first_key_data",
    "judge_reruns",
    "target_of",
]
