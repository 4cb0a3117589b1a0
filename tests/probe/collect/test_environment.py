"""``environment.json``: what is in effect, read back rather than believed."""

from __future__ import annotations

import json
import random
import sys
import types
from importlib import metadata

import numpy as np
import pytest
import torch

from probe.collect import environment


@pytest.fixture(autouse=True)
def torch_settings():
    """Puts torch's process-wide settings back."""
    threads = torch.get_num_threads()
    deterministic, cudnn = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.deterministic
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cudnn.deterministic = cudnn
    torch.set_float32_matmul_precision(precision)


def test_versions_are_those_of_the_installed_packages():
    versions = environment.versions()
    assert versions["torch"] == metadata.version("torch")
    assert versions["numpy"] == metadata.version("numpy")
    assert set(versions) >= {"torch", "torch-npu", "numpy", "transformers", "mindstudio-probe", "xxhash"}


def test_settings_are_those_of_the_libraries_and_not_what_was_asked_for():
    torch.use_deterministic_algorithms(False)
    described = environment.describe({"deterministic_algorithms": True, "num_threads": 77})["determinism"]
    assert described["requested"] == {"deterministic_algorithms": True, "num_threads": 77}
    assert described["in_effect"]["deterministic_algorithms"] is False
    assert described["in_effect"]["num_threads"] == torch.get_num_threads() != 77


def test_settings_follow_the_libraries():
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("high")
    found = environment.in_effect()
    names = ("deterministic_algorithms", "warn_only", "num_threads", "cudnn_deterministic", "float32_matmul_precision")
    assert [found[name] for name in names] == [True, False, 1, True, "high"]


def test_warn_only_is_told_apart_from_an_error():
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert environment.in_effect()["warn_only"] is True


@pytest.mark.parametrize(
    "name",
    [
        "CUBLAS_WORKSPACE_CONFIG",
        "HCCL_DETERMINISTIC",
        "LCCL_DETERMINISTIC",
        "ATB_MATMUL_SHUFFLE_K_ENABLE",
        "CLOSE_MATMUL_K_SHIFT",
        "PYTHONHASHSEED",
        "OMP_NUM_THREADS",
    ],
)
def test_variables_are_those_of_the_process(name, monkeypatch):
    monkeypatch.setenv(name, "value-of-it")
    assert environment.in_effect()["variables"][name] == "value-of-it"
    monkeypatch.delenv(name)
    assert environment.in_effect()["variables"][name] is None


def test_random_states_are_told_apart():
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    first = environment.in_effect()
    assert first["torch_seed"] == 5
    assert first["random_states"] == environment.in_effect()["random_states"]
    for name, draw in (("python", random.random), ("numpy", np.random.rand), ("torch", lambda: torch.rand(1))):
        before = environment.random_states()
        draw()
        after = environment.random_states()
        assert {key for key in before if before[key] != after[key]} == {name}


def test_describing_draws_no_random_number_and_is_strict_json():
    before = environment.random_states()
    described = environment.describe({"num_threads": None})
    assert environment.random_states() == before
    assert json.loads(json.dumps(described, allow_nan=False)) == described


def test_models_are_described_by_kind_and_place():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1).bfloat16(), torch.nn.LazyLinear(4))
    described = environment.describe({}, {"actor": model})
    assert described["models"] == {
        "actor": {
            **{"class": "Sequential", "parameters": 13, "dtypes": ["bfloat16", "float32"], "devices": ["cpu"]},
            "attention": None,
        }
    }
    assert described["world_size"] == 1


@pytest.mark.parametrize(("tell", "version"), [(lambda: "8.3.RC1", "8.3.RC1"), (lambda: "", None), (None, None)])
def test_cann_is_what_torch_npu_tells(tell, version, monkeypatch):
    """A stand-in for torch_npu, which only loads where CANN is."""
    utils = types.SimpleNamespace(get_cann_version=tell) if tell else types.SimpleNamespace()
    monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(utils=utils))
    assert environment.versions()["cann"] == version


def test_no_accelerator_is_claimed_that_is_not_there():
    found = environment.devices()
    assert len(found["cuda"]) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)
    assert found["npu"] == [] or hasattr(torch, "npu")


def test_a_run_writes_it_once_its_first_step_is_done(record):
    recording = record(determinism={"num_threads": 1})
    assert not (recording.folder / "environment.json").exists()
    torch.use_deterministic_algorithms(True)
    recording.probe.step()
    torch.use_deterministic_algorithms(False)
    recording.probe.step()
    written = json.loads((recording.folder / "environment.json").read_text())
    assert written["determinism"]["requested"] == {"num_threads": 1}
    assert written["determinism"]["in_effect"]["deterministic_algorithms"] is True
