"""What a container leaves of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.collect.limits import cpu_model, limits


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        ({"cpu.max": "150000 100000\n", "memory.max": "1073741824\n"}, 1.5, 1 << 30),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, None, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5, None),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, None, None),
        ({"memory/memory.limit_in_bytes": "4096"}, None, 4096),
        ({"cpu.max": "rubbish", "memory.max": "?"}, None, None),
        ({"cpu.max": "5 0"}, None, None),
        ({}, None, None),
    ],
)
def test_limits_of_both_versions_of_control_groups(
    tmp_path: Path, files: dict[str, str], cpus: float | None, memory: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = limits(tmp_path)
    assert (found["cpus"], found["memory_bytes"]) == (cpus, memory)
    assert found["affinity"] >= 1


def test_the_processor_is_named(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: Kunpeng-920 \nmodel name\t: another\n")
    assert cpu_model(tmp_path / "cpuinfo") == "Kunpeng-920"
    assert cpu_model() != ""
