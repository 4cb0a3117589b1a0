"""A culprit of one rank, under DDP and FSDP2: its whole weights are captured, and the plain module runs alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from probe import Probe
from probe.errors import DumpError
from probe.replay import replay_check
from probe.types import CaptureRequest, RunSpec

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = Path(__file__).with_name("replayed_ranks.py")
LAYER = "actor.layers.1"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Captures with two real ranks what the tests replay, each kind once."""
    known: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in known:
            folder = known[kind] = tmp_path_factory.mktemp(kind)
            torchrun = ["torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
            modules = [f"{name}-{what}" for name in (LAYER, "actor") for what in ("forward", "backward", "still")]
            command = [sys.executable, "-m", *torchrun, "--rdzv-endpoint=127.0.0.1:0", str(SCRIPT), kind, str(folder)]
            env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            done = subprocess.run([*command, *modules], env=env, capture_output=True, text=True, timeout=300)
            assert done.returncode == 0, done.stderr
        return known[kind]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", [LAYER, "actor"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp2-bfloat16"])
def test_a_module_of_one_rank_is_replayed_alone(ranks: Callable[[str], Path], kind: str, name: str) -> None:
    still = replay_check(ranks(kind) / f"{name}-still", 3)
    assert still.tried[0] == {"what": "one process", "times": 3, "distinct": 1, "error": None}
    assert still.equals_captured, "the plain module with the gathered weights gives what rank 1 had"
    for direction in ("forward", "backward"):
        answer = replay_check(ranks(kind) / f"{name}-{direction}", 3)
        assert (answer.result, answer.direction) == ("confirmed alone", direction)


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # of torch about its own hooks
@pytest.mark.parametrize("replayed", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_gathered_weights_are_captured(modules: Any, one_rank: None, tmp_path: Path, replayed: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = modules.Two()
    whole = {f"weights.{name}": one.detach().clone() for name, one in model.named_parameters()}
    for one in (model.used, model.unused, model):
        fully_shard(one)
    request = CaptureRequest("actor", 0, "actor_update", backward=True)
    probe = Probe(RunSpec(run="c", dump_path=str(tmp_path / "dump"), key_data="off", trace=True, capture=request))
    probe.attach(actor=model)
    with probe.stage("actor_update"):
        model(torch.randn(2, 3)).sum().backward()
    probe.step()
    probe.close()
    info = json.loads((tmp_path / "dump/capture/capture.json").read_text())
    assert "note" not in info, info["note"]
    assert info["module"] == "replayed_modules.Two"
    found = safetensors.torch.load_file(tmp_path / "dump/capture/tensors.safetensors")
    for name, weight in whole.items():
        if ".unused." in name:
            assert name not in found
            assert info["tensors"][name]["device"] == "meta"
        else:
            assert torch.equal(found[name], weight), name
    assert {"param_grad.used.weight", "param_grad.scale", "grad_output.out"} <= set(found)
    assert not replayed or replay_check(tmp_path / "dump", 2).equals_captured


@pytest.mark.filterwarnings("ignore")  # of torch about its own hooks
def test_what_tensor_parallel_modules_get_is_not_captured_and_said(
    modules: Any, one_rank: None, tmp_path: Path
) -> None:
    from torch.distributed.tensor import distribute_module, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (1,))
    model = distribute_module(modules.Two(), mesh)
    request = CaptureRequest("actor.used", 0, "actor_update")
    probe = Probe(RunSpec(run="c", dump_path=str(tmp_path / "dump"), key_data="off", trace=True, capture=request))
    probe.attach(actor=model)
    with probe.stage("actor_update"):
        model(distribute_tensor(torch.randn(2, 3), mesh)).sum().backward()
    probe.step()
    probe.close()
    with pytest.raises(DumpError, match=r"not captured: actor.used: \S+ is a DTensor, of which each rank has a part$"):
        replay_check(tmp_path / "dump", 2)
