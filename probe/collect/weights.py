"""What ``probe.step`` records of the attached models: the digest of every weight and buffer, by name."""

from __future__ import annotations

from functools import partial

import torch

from probe.collect.values import Snapshot, dtype_name, on_host, raw_bytes
from probe.store.background import Background
from probe.store.digest import digest
from probe.store.writer import DigestEntry, DumpWriter

TAG = "weights"


def save_weights(
    models: dict[str, torch.nn.Module], step: int, rank: int, writer: DumpWriter, background: Background
) -> None:
    """Records the digests of all parameters and buffers.

    Weights on the host are digested where they lie; others are copied, and digested beside the training.

    Args:
        models: Role to module.
        step: The training step that ends.
        rank: Whose weights they are.
        writer: Takes the digests, as tag ``weights``.
        background: Orders them after what was saved before.
    """
    entries: list[DigestEntry] = []
    for role, model in models.items():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.device.type == "cpu":
                host = on_host(tensor)
                kind, shape = dtype_name(host), tuple(host.shape)
                value = digest(kind, shape, raw_bytes(host))
                background.submit(partial(entries.append, (f"{role}.{name}", kind, shape, value)), 0)
            else:
                shot = Snapshot.take(tensor)
                background.submit(partial(_append, entries, f"{role}.{name}", shot), shot.size)
    background.submit(partial(writer.add_digests, TAG, step, rank, entries), 0)


def _append(entries: list[DigestEntry], path: str, shot: Snapshot) -> None:
    entries.append((path, shot.dtype, shot.shape, shot.digest))
