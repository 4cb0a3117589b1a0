"""The first key-data entry that differs, and which layers to dump to look inside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.compare import Entry, KeyDataComparison
from probe.compare.values import bits_differ
from probe.errors import DumpError
from probe.store.reader import Dump, read_values
from probe.types import ROLES_OF_STAGE, STAGE_OF_TAG, STAGES, Target

VALIDATION = "validation."
"""Begins the tags of the samples of a validation in a run of verl."""
ALL_TOKENS = 1_000_000
"""A token beyond the last of any response."""


@dataclass(frozen=True, slots=True)
class FirstKeyData:
    """The first divergence of the key data.

    Example:
        >>> first = first_key_data(KeyDataComparison())
        >>> first is None
        True
    """

    entry: Entry
    """The entry on the lowest rank that has it."""
    ranks: tuple[int, ...]
    """Every rank in which the same entry differs."""

    @property
    def stage(self) -> str | None:
        """The stage whose model computed it; None for data and host code."""
        record = self.entry.record
        if record.tag in STAGE_OF_TAG and STAGE_OF_TAG[record.tag] is None:
            return None  # wherever it was saved
        if record.tag != "weights":
            known = STAGE_OF_TAG.get(record.tag)
            if known is None or record.stage is None or record.stage not in STAGES:
                return record.stage or known
            updates = {record.stage, known} == {"actor_update", "critic_update"}  # both have losses and gradients
            same_role = ROLES_OF_STAGE[record.stage][-1] == ROLES_OF_STAGE[known][-1]
            return record.stage if same_role or updates else known
        return {"actor": "actor_update", "critic": "critic_update"}.get(record.path.split(".")[0])


def first_key_data(comparison: KeyDataComparison) -> FirstKeyData | None:
    """The first entry that differs: by step, then by place in the step, with all ranks that share it."""
    differing = comparison.differing
    if not differing:
        return None
    first = min(differing, key=lambda entry: (*entry.order, entry.rank))
    same = {entry.rank for entry in differing if entry.step == first.step and entry.record.key == first.record.key}
    return FirstKeyData(first, tuple(sorted(same)))


def target_of(first: FirstKeyData, a: Dump, b: Dump) -> Target | None:
    """Which layers to dump to look inside a difference; None where no model is involved.

    A stage that was entered in only one run, and data that no model computes, give no layers to compare.
    """
    stage = first.stage
    if stage is None:
        return None
    token = _first_token(first, a, b) if stage == "actor_generate_sequences" else 0
    after = first.entry.record.tag.startswith(VALIDATION)  # its samples come after the step's update
    return Target(first.entry.step + after, stage, token)


def _first_token(first: FirstKeyData, a: Dump, b: Dump) -> int:
    """The first generated token that differs in any row: a column of the last axis.

    ``ALL_TOKENS`` where the records do not say: their values were not kept, or have no such axis in common.
    """
    one, two = first.entry.a, first.entry.b
    if one is None or two is None or not one.file or not two.file:
        return ALL_TOKENS
    try:
        left, right = read_values(a.folder, one), read_values(b.folder, two)
    except DumpError:
        return ALL_TOKENS
    if left.ndim < 2 or left.shape[:-1] != right.shape[:-1] or left.dtype != right.dtype:
        return ALL_TOKENS
    width = min(left.shape[-1], right.shape[-1])
    if width == 0:
        return ALL_TOKENS
    unequal = bits_differ(left[..., :width], right[..., :width]).reshape(-1, width).any(axis=0)
    return int(np.argmax(unequal)) if unequal.any() else ALL_TOKENS
