"""``python -m probe.bench.digest_contenders SIZE RESULT``: the contenders of ``device-digest``, in one process.

All digest the same tensor, and those of one algorithm must find the same.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from probe.bench.child import leave_result
from probe.bench.device_digest import COPYING, ON_DEVICE, ON_HOST, REFERENCE, XXH3
from probe.bench.rounds import run_rounds
from probe.bench.sizes import DeviceDigestSize
from probe.collect.device_digest import DeviceDigests
from probe.collect.values import raw_bytes, to_host
from probe.errors import InternalError
from probe.store import device_digest
from probe.store.digest import ALGORITHM, digest
from probe.trainer.device import pick_device


def _contenders(size: DeviceDigestSize, device: torch.device) -> dict[str, Callable[[], str]]:
    host = torch.randn(size.tensor_bytes // 4, generator=torch.Generator().manual_seed(1))
    shape = tuple(host.shape)

    def of_lanes(tensor: torch.Tensor) -> str:
        digests = DeviceDigests()
        ticket = digests.add(tensor)
        return digests.fetch()[ticket]

    contenders: dict[str, Callable[[], str]] = {
        REFERENCE: lambda: device_digest.digest("float32", shape, raw_bytes(host)),
        ON_HOST: lambda: of_lanes(host),
    }
    if ALGORITHM != device_digest.NAME:
        contenders[XXH3] = lambda: digest("float32", shape, raw_bytes(host))
    if device.type != "cpu":
        there = host.to(device)
        contenders[COPYING] = lambda: digest("float32", shape, raw_bytes(to_host(there)))
        contenders[ON_DEVICE] = lambda: of_lanes(there)
    return contenders


def _measure(size: DeviceDigestSize) -> dict[str, Any]:
    device = torch.device(pick_device("auto"))
    contenders = _contenders(size, device)
    expected = {name: contender() for name, contender in contenders.items()}  # all are warm then
    lanes = {expected[name] for name in (REFERENCE, ON_HOST, ON_DEVICE) if name in expected}
    if len(lanes) != 1:
        raise InternalError(f"one tensor has several digests: {', '.join(sorted(lanes))}")

    def timed(name: str) -> float:
        start = time.perf_counter()
        found = contenders[name]()
        seconds = time.perf_counter() - start
        if found != expected[name]:
            raise InternalError(f"{name}: the digest of one tensor has changed")
        return seconds

    runs = {name: partial(timed, name) for name in contenders}
    return {"device": None if device.type == "cpu" else device.type, "seconds": run_rounds(runs, size.rounds)}


if __name__ == "__main__":
    leave_result(sys.argv[2], _measure(DeviceDigestSize(**json.loads(sys.argv[1]))))
