"""The device, its random states, and determinism in effect."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest
import torch

from probe.config import Determinism
from probe.errors import UsageError
from probe.trainer.device import RandomStates, make_deterministic, pick_device
from probe.trainer.parallel import Ranks

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
no_npu = pytest.mark.skipif(importlib.util.find_spec("torch_npu") is not None, reason="torch_npu is installed")
CPU = torch.device("cpu")


@no_cuda
def test_cuda_without_a_device_is_refused():
    with pytest.raises(UsageError, match="device: cuda is asked for.*set device to auto or cpu"):
        pick_device("cuda")


@no_npu
def test_npu_without_torch_npu_is_refused():
    with pytest.raises(UsageError, match="device: npu is asked for, but torch_npu is not installed"):
        pick_device("npu")


@no_npu
def test_a_torch_npu_that_does_not_import_is_refused_and_passed_over_by_auto(tmp_path, monkeypatch):
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match="torch_npu cannot be imported.*libhccl.so"):
        pick_device("npu")
    assert pick_device("auto").type != "npu"


@no_cuda
@no_npu
def test_auto_takes_the_cpu_where_there_is_nothing_else():
    assert pick_device("auto") == CPU == pick_device("cpu")


def draws() -> list[float]:
    return [random.random(), float(np.random.rand()), torch.rand(1).item()]


def test_every_random_state_is_seeded():
    make_deterministic(Determinism(), 5, CPU)
    first = draws()
    make_deterministic(Determinism(), 5, CPU)
    assert draws() == first
    make_deterministic(Determinism(), 6, CPU)
    assert not set(draws()) & set(first)


def test_seeds_beyond_numpy_s_range_work():
    make_deterministic(Determinism(), 2**40 + 5, CPU)


def test_deterministic_algorithms_are_errors_and_not_warnings():
    make_deterministic(Determinism(), 1, CPU)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    make_deterministic(Determinism(deterministic_algorithms=False), 1, CPU)
    assert not torch.are_deterministic_algorithms_enabled()


def test_the_number_of_threads_is_set_or_left_alone():
    make_deterministic(Determinism(num_threads=2), 1, CPU)
    assert torch.get_num_threads() == 2
    make_deterministic(Determinism(), 1, CPU)
    assert torch.get_num_threads() == 2


def test_the_sampling_generator_is_its_own():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    torch.rand(3, generator=RandomStates(1, 1, Ranks(CPU)).sampling)
    assert torch.equal(torch.rand(3), expected)
    draws = [
        torch.rand(3, generator=RandomStates(seed, 1, Ranks(CPU, rank, 2)).sampling)
        for seed, rank in ((1, 0), (1, 0), (2, 0), (1, 1))
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[3])


def test_every_random_state_is_restored():
    states = RandomStates(1, 2, Ranks(CPU))

    def draw():
        return [
            random.random(),
            np.random.rand(),
            *(torch.rand(1, generator=g).item() for g in (None, states.sampling, states.shuffling)),
        ]

    draw()
    saved = states.state()
    first = draw()
    draw()
    states.restore(saved)
    assert draw() == first
