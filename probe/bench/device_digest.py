"""``device-digest``: the digest that a device can compute against xxh3, and against copying to the host first.

The contenders take turns in a process of their own, with one thread for an operation of torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probe.bench.processes import run_child
from probe.bench.rounds import described, ratio
from probe.bench.sizes import DeviceDigestSize

XXH3, REFERENCE, ON_HOST, COPYING, ON_DEVICE = "xxh3", "reference", "torch_on_host", "copying", "on_device"


def measure_device_digest(size: DeviceDigestSize, scratch: Path) -> dict[str, Any]:
    """Runs the benchmark.

    Args:
        size: How much is digested.
        scratch: An empty folder.

    Returns:
        ``contenders`` with seconds, ``device`` (None without one), and the ratios ``reference_over_xxh3``,
        ``torch_on_host_over_xxh3`` (None without xxhash) and ``on_device_over_copying`` (None without a device).

    Raises:
        InconclusiveError: The process that measures failed.
    """
    variables = {"OMP_NUM_THREADS": "1"}
    measured: dict[str, Any] = run_child("probe.bench.digest_contenders", [size.to_json()], scratch, variables)
    seconds = measured.pop("seconds")
    return {
        "size": size.to_dict(),
        **measured,
        "contenders": described(seconds),
        "reference_over_xxh3": ratio(seconds, REFERENCE, XXH3),
        "torch_on_host_over_xxh3": ratio(seconds, ON_HOST, XXH3),
        "on_device_over_copying": ratio(seconds, ON_DEVICE, COPYING),
    }
