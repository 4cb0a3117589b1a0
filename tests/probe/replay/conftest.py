"""Captures of real modules, made by a real probe."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from probe import Probe
from probe.types import CaptureRequest, RunSpec


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, torch_state: None) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    yield importlib.import_module("replayed_modules")


@pytest.fixture
def captured(modules: Any, tmp_path: Path) -> Callable[..., Path]:
    """Trains three steps of a model with a module in it, and captures that at step 1; returns the dump folder.

    ``before`` is called with the model in that stage, before its forward.
    """

    def make(
        kind: str,
        backward: bool = False,
        name: str = "actor.part",
        folder: str = "dump",
        before: Callable[[torch.nn.Module], object] = lambda model: None,
        **spec: Any,
    ) -> Path:
        torch.manual_seed(3)
        model = modules.Model(getattr(modules, kind)())
        request = CaptureRequest(name, 1, "actor_update", micro_step=1, backward=backward)
        dump = tmp_path / folder
        probe = Probe(RunSpec(run="c", dump_path=str(dump), trace=True, capture=request, **spec))
        probe.attach(actor=model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            for micro_step in range(2):
                with probe.stage("actor_update", micro_step=micro_step):
                    x = torch.randn(4, 6)
                    if (step, micro_step) == (request.step, request.micro_step):
                        before(model)
                    model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step()
        probe.close()
        return dump

    return make
