"""Which responses are computed together: the mini-batches of an update, and micro-batches by number or by tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from probe.config import RLConfig
from probe.trainer.parallel import Ranks


def mini_batches(config: RLConfig, responses: int, size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """The responses of each optimizer step of an update: all of them, once an epoch.

    Args:
        config: Epochs, and whether each draws a new order.
        responses: This rank's responses.
        size: This rank's responses in one optimizer step.
        generator: Source of the order, on the CPU.
    """
    for _ in range(config.epochs):
        order = list(range(responses))
        if config.shuffle_mini_batch:
            order = torch.randperm(responses, generator=generator).tolist()
        yield from (order[start : start + size] for start in range(0, responses, size))


def micro_batches(config: RLConfig, rows: list[int], lengths: list[int], size: int, ranks: Ranks) -> list[list[int]]:
    """Splits responses into those of each forward pass: as many on every rank, since ranks wait for each other.

    Args:
        config: Whether tokens or responses are counted, and how many tokens fit.
        rows: The responses.
        lengths: Tokens of each sequence, of all responses of this rank.
        size: Most responses together, where responses are counted.
        ranks: The ranks.
    """
    if not config.use_dynamic_bsz:
        return [rows[start : start + size] for start in range(0, len(rows), size)]
    count = ranks.largest(len(_filled(rows, lengths, config.max_packing_token_size)))
    return _into(rows, lengths, count, config.max_packing_token_size)


def _filled(rows: list[int], lengths: list[int], most: int) -> list[list[int]]:
    """Consecutive parts of at most so many tokens; a longer sequence is alone."""
    parts: list[list[int]] = []
    held = 0
    for row in rows:
        if not parts or held + lengths[row] > most:
            parts.append([])
            held = 0
        parts[-1].append(row)
        held += lengths[row]
    return parts


def _into(rows: list[int], lengths: list[int], count: int, most: int) -> list[list[int]]:
    """Filled parts, of which the longest are halved until there are so many."""
    parts = _filled(rows, lengths, most)
    while len(parts) < count:
        index = max(range(len(parts)), key=lambda at: len(parts[at]))
        part = parts[index]
        parts[index : index + 1] = [part[: len(part) // 2], part[len(part) // 2 :]]
    return parts
