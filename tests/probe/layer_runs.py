"""Records the layers of a small model with msprobe, once for every fault: ``python layer_runs.py FOLDER``.

A script and not a fixture, because msprobe keeps singletons. Each fault changes one thing; nothing else is random.
"""

import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from probe import Probe
from probe.types import RunSpec

A_LITTLE = 1 + 2**-20
STEPS = 2


class Linear(torch.nn.Linear):
    factor = 1.0

    def forward(self, x):
        return super().forward(x) * self.factor


class TanhFunction(torch.autograd.Function):
    @staticmethod
    def forward(context, x, factor):
        y = x.tanh()
        context.save_for_backward(y)
        context.factor = factor
        return y

    @staticmethod
    def backward(context, gradient):
        (y,) = context.saved_tensors
        return gradient * (1 - y * y) * context.factor, None


class IdentityFunction(torch.autograd.Function):
    @staticmethod
    def forward(context, x, factor):
        context.factor = factor
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient * context.factor, None


class Tanh(torch.nn.Module):
    backward_factor = 1.0

    def forward(self, x):
        return TanhFunction.apply(x, self.backward_factor)


class Block(torch.nn.Module):
    between = 1.0
    between_backward = 1.0

    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = Linear(4, 8), Tanh(), Linear(8, 4)

    def forward(self, x):
        hidden = IdentityFunction.apply(self.fc1(x) * self.between, self.between_backward)
        return x + self.fc2(self.act(hidden))


class Model(torch.nn.Module):
    calls_of_b = 1

    def __init__(self):
        super().__init__()
        self.a, self.b = Block(), Block()

    def forward(self, x):
        x = self.a(x)
        for _ in range(self.calls_of_b):
            x = self.b(x)
        return x


@dataclass(frozen=True)
class Fault:
    """What is changed, and the only place where."""

    kind: str
    stage: str = "actor_update"
    step: int = 0
    micro_step: int = 0
    ranks: tuple[int, ...] = (0, 1)

    def plant(self, model, here):
        """Changes the model of one window."""
        if here != (self.stage, self.step, self.micro_step) and self.kind != "weights":
            return
        match self.kind:
            case "output":
                model.b.fc1.factor = A_LITTLE
            case "between":
                model.b.between = A_LITTLE
            case "between, backward":
                model.b.between_backward = A_LITTLE
            case "backward":
                model.b.act.backward_factor = A_LITTLE
            case "calls":
                model.calls_of_b = 2
            case "parameter gradient":
                model.b.fc1.weight.register_hook(lambda gradient: gradient * A_LITTLE)
            case "weights":
                model.b.fc1.weight.data[0, 0] *= A_LITTLE

    def acts(self, kind, here):
        return self.kind == kind and here == (self.stage, self.step, self.micro_step)


REFERENCE = "reference_compute_log_prob"
RUNS = {
    "base": [],
    "again": [],
    "output": [Fault("output")],
    "between": [Fault("between")],
    "between-backward": [Fault("between, backward")],
    "weights": [Fault("weights")],
    "backward": [Fault("backward")],
    "parameter-gradient": [Fault("parameter gradient")],
    "calls": [Fault("calls")],
    "loss": [Fault("loss")],
    "input": [Fault("input")],
    "second-window": [Fault("output", micro_step=1)],
    "both-ranks": [Fault("output", REFERENCE)],
    "rank-1": [Fault("output", REFERENCE, ranks=(1,))],
    "update-then-reference": [Fault("output", step=0), Fault("output", REFERENCE, step=1)],
}


def build(faults, here, rank):
    torch.manual_seed(0)
    model = Model()
    for fault in faults:
        if rank in fault.ranks:
            fault.plant(model, here)
    return model


def window(probe, faults, stage, step, micro_step, rank):
    here = (stage, step, micro_step)
    model = build(faults, here, rank)
    probe.attach(**{"reference" if stage == REFERENCE else "actor": model})
    x = torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_()  # float32 [2, 4]
    if any(fault.acts("input", here) for fault in faults):
        x = (x * A_LITTLE).detach().requires_grad_()
    with probe.stage(stage, micro_step=micro_step, rank=rank):
        y = model(x)
        if stage != REFERENCE:
            factor = A_LITTLE if any(fault.acts("loss", here) for fault in faults) else 1.0
            (y.square().sum() * factor).backward()


def record(folder, faults):
    stages = (REFERENCE, "actor_update")
    probe = Probe(RunSpec(run="c", dump_path=str(folder), key_data="off", dump_stages=stages, step_end=STEPS - 1))
    for step in range(STEPS):
        for rank in (0, 1):
            window(probe, faults, REFERENCE, step, 0, rank)
        for micro_step in (0, 1):
            window(probe, faults, "actor_update", step, micro_step, 0)
        probe.step()
    probe.close()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name, faults in RUNS.items():
        record(Path(sys.argv[1]) / name, faults)
