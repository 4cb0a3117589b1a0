"""Saving one tag: one copy of each leaf to the host, the rest beside the training."""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import Any

from probe.collect.trace import Tracer
from probe.collect.trace.saved import Saved, write
from probe.collect.values import Array, Snapshot, leaves, named
from probe.store.background import Background
from probe.store.writer import DumpWriter
from probe.types import RunSpec


def save(
    spec: RunSpec,
    writer: DumpWriter,
    background: Background,
    tracer: Tracer,
    place: tuple[str, int, int, int],
    stage: str | None,
    value: Any,
    mask: Array | None,
) -> None:
    """Records what was saved under a tag: as key data, as an event of the trace, or both.

    Args:
        spec: Says which.
        writer: Writes both.
        background: The thread in which that happens.
        tracer: Takes the event.
        place: Tag, step, rank and micro-step.
        stage: The open stage.
        value: A leaf, or nested containers of leaves.
        mask: Entries that count.

    Raises:
        RecordError: A leaf has no exact bytes.
    """
    tag, _, rank, micro_step = place
    traced: list[tuple[str, Saved]] = []
    for path, leaf in leaves(value):
        with named(f"{tag}.{path}" if path else tag):
            shot = Snapshot.take(leaf, mask)
        saved = Saved(shot) if spec.trace else None
        if saved is not None:
            traced.append((path, saved))
        entry = (*place, path, stage) if spec.key_data != "off" else None
        background.submit(partial(write, writer, entry, shot, saved), shot.size)
    traced.sort(key=itemgetter(0))  # the order in which a dictionary was filled is no value
    tracer.data(tag, rank, micro_step, stage, traced)
