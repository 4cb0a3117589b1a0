"""The processes that measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.bench.processes import run_child
from probe.errors import InconclusiveError


def test_a_child_that_fails_is_named_with_its_last_line(tmp_path: Path):
    with pytest.raises(InconclusiveError, match=r"probe.bench.nowhere failed \(1\): .*No module named"):
        run_child("probe.bench.nowhere", [], tmp_path)


def test_a_child_that_leaves_no_result_is_named(tmp_path: Path):
    with pytest.raises(InconclusiveError, match="probe.bench.child left no result"):
        run_child("probe.bench.child", [], tmp_path)


def test_the_peak_is_the_childs_own(run_python):
    code = "data = b'1' * {size}; from probe.bench.child import peak_memory_mb; print(peak_memory_mb())"
    small, large = (float(run_python(code.format(size=size))) for size in (1, 200_000_000))
    assert 1 < small < 100  # pytest, which started it, is larger by far
    assert 200 < large < 300


def test_what_a_grandchild_held_counts_too(run_python):
    code = """
import subprocess, sys
from probe.bench.child import peak_memory_mb
subprocess.run([sys.executable, "-c", "data = b'1' * 200_000_000"], check=True)
print(peak_memory_mb())
"""
    assert 200 < float(run_python(code)) < 300


def test_the_process_that_compares_digests_loads_little(run_python):
    code = "import sys, probe.bench.digest_comparison; print(*{name.split('.')[0] for name in sys.modules})"
    assert set(run_python(code).split()).isdisjoint({"torch", "pandas", "pydantic", "prefect", "msprobe"})
