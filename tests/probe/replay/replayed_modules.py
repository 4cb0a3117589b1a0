"""Modules that are captured in a test and replayed in other processes, which import this file."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import Any

import torch

entropy = random.SystemRandom()
chosen: list[int] = []


class Steady(torch.nn.Module):
    """Dropout, a view, a keyword and a buffer that it changes: the same each time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(6, 6)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor, *, extra: dict[str, Any]) -> Any:
        self.count += 1
        return {"x": self.dropout(self.inner(x) * extra["scale"]) + self.count, "n": 3}


class Unsteady(Steady):
    """Adds in an order from entropy."""

    def forward(self, x: torch.Tensor, *, extra: dict[str, Any]) -> Any:
        parts = [self.inner(x) * (n + 1) / 7 for n in range(9)]
        entropy.shuffle(parts)
        return {"x": sum(parts[1:], parts[0]) * extra["scale"], "n": 3}


@torch.library.custom_op("firstdiff_tests::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    return x + entropy.random()


torch.library.register_autograd("firstdiff_tests::noise", lambda ctx, gradient: gradient)


class Noise(Steady):
    def forward(self, x: torch.Tensor, *, extra: dict[str, Any]) -> Any:
        return {"x": noise(x.relu()) * extra["scale"], "n": 3}


class OncePerProcess(Steady):
    """A choice that each process makes at its first call."""

    def forward(self, x: torch.Tensor, *, extra: dict[str, Any]) -> Any:
        if not chosen:
            chosen.append(entropy.randrange(1 << 30))
        return {"x": x + chosen[0], "n": 3}


class Threads(Steady):
    """Adds in another order with another number of threads."""

    def forward(self, x: torch.Tensor, *, extra: dict[str, Any]) -> Any:
        return {"x": x + torch.get_num_threads(), "n": 3}


class UnsteadyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return noise(gradient)


class Backward(Steady):
    def forward(self, x: torch.Tensor, *, extra: dict[str, Any]) -> Any:
        return {"x": self.inner(UnsteadyGradient.apply(x)) * extra["scale"], "n": 3}


class Crash(Steady):
    def forward(self, x: torch.Tensor, *, extra: dict[str, Any]) -> Any:
        match os.environ.get("REPLAYED"):
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "hang":
                time.sleep(600)
            case "raise":
                raise ValueError("not today")
            case "exit":
                os._exit(7)
        return {"x": x, "n": 3}


class Held(Steady):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Two(torch.nn.Module):
    """Of two modules, it uses one."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
        self.scale = torch.nn.Parameter(torch.rand(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.used(x) * self.scale
        return result


class Model(torch.nn.Module):
    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)[:, ::2].repeat(1, 2)
        return self.part(h.t().contiguous().t(), extra={"scale": torch.tensor(0.7)})["x"] + h
