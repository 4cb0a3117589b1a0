"""What ``probe.step`` records of the attached models: the digest of every weight and buffer, by name.

One run digests all of its weights by one algorithm, wherever they lie: what is moved between host and device from one
step to the next, or in one of two runs, stays comparable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch

from probe.collect.device_digest import DeviceDigests
from probe.collect.values import Snapshot, dtype_name, on_host, own_part, raw_bytes
from probe.store import device_digest
from probe.store.background import Background
from probe.store.digest import digest
from probe.store.writer import DigestEntry, DumpWriter
from probe.types import DigestPlace

TAG = "weights"

Tensors = list[tuple[str, torch.Tensor]]

_DEVICES = ("cuda", "npu")
"""Where digesting in place is cheaper than copying."""


class WeightRecorder:
    """Records the digests of all parameters and buffers, one step after the other.

    Args:
        place: Where they are digested. ``auto`` decides when the first weights are recorded.
        writer: Takes the digests, as tag ``weights``.
        background: Orders them after what was saved before.
    """

    def __init__(self, place: DigestPlace, writer: DumpWriter, background: Background) -> None:
        self._place = place
        self._writer = writer
        self._background = background
        self._on_device = DeviceDigests()
        self._named = False

    def save(self, models: Mapping[str, torch.nn.Module], step: int, rank: int) -> None:
        """Records the weights as they are.

        Weights on the host are digested where they lie; others are copied and digested beside the training, or
        digested on their device, for which this waits once.

        Args:
            models: Role to module.
            step: The training step that ends.
            rank: Whose weights they are.
        """
        tensors = [
            (f"{role}.{name}", tensor)
            for role, model in models.items()
            for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        ]
        if not tensors:
            return
        self._place = decided(self._place, (tensor.device.type for _, tensor in tensors))
        if self._place == "device" and not self._named:
            self._background.submit(partial(self._writer.name_digest, TAG, device_digest.NAME), 0)
            self._named = True
        entries = self._digested(tensors) if self._place == "device" else self._copied(tensors)
        self._background.submit(partial(self._writer.add_digests, TAG, step, rank, entries), 0)

    def _digested(self, tensors: Tensors) -> list[DigestEntry]:
        parts = [(path, own_part(tensor)) for path, tensor in tensors]
        tickets = [self._on_device.add(part) for _, part in parts]
        found = self._on_device.fetch()
        return [
            (path, dtype_name(part), tuple(part.shape), found[ticket])
            for (path, part), ticket in zip(parts, tickets, strict=True)
        ]

    def _copied(self, tensors: Tensors) -> list[DigestEntry]:
        """The entries, of which some are added in the background."""
        entries: list[DigestEntry] = []
        for path, tensor in tensors:
            if tensor.device.type == "cpu":
                host = on_host(tensor)
                kind, shape = dtype_name(host), tuple(host.shape)
                value = digest(kind, shape, raw_bytes(host))
                self._background.submit(partial(entries.append, (path, kind, shape, value)), 0)
            else:
                shot = Snapshot.take(tensor)
                self._background.submit(partial(_append, entries, path, shot), shot.size)
        return entries


def decided(place: DigestPlace, device_types: Iterable[str]) -> DigestPlace:
    """Where weights are digested, once it is known where they lie.

    Args:
        place: What was asked for.
        device_types: Of each of them, such as ``cpu``.

    Example:
        >>> decided("auto", ["cpu", "cuda"])
        'device'
    """
    if place != "auto":
        return place
    return "device" if any(kind in _DEVICES for kind in device_types) else "host"


def _append(entries: list[DigestEntry], path: str, shot: Snapshot) -> None:
    entries.append((path, shot.dtype, shot.shape, shot.digest))
