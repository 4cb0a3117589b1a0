"""Dumps a small training with msprobe alone, once for every mode and fault: ``python msprobe_runs.py FOLDER MODE…``.

A mode is ``task-level-summary``, as ``statistics-mix-xor``. Each run is a process of its own, forked when the imports
are done, as msprobe keeps singletons. No run is told a rank, so each lies in a folder ``proc{pid}``; only what is
planted differs.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
from msprobe.pytorch import PrecisionDebugger

A_LITTLE = 1 + 2**-20
FAULTS = ("base", "again", "output", "operation", "order", "call", "weight")


class Head(torch.nn.Linear):
    fault = ""

    def forward(self, x):
        y = super().forward(x)  # float32 [4, 4]
        if self.fault == "output":
            return y * A_LITTLE
        return y.flip(0) if self.fault == "order" else y


class Block(torch.nn.Module):
    fault = ""

    def __init__(self):
        super().__init__()
        self.fc1, self.act, self.fc2 = torch.nn.Linear(4, 8), torch.nn.Tanh(), Head(8, 4)

    def forward(self, x):
        hidden = self.fc1(x) * (A_LITTLE if self.fault == "operation" else 1.0)
        y = x + self.fc2(self.act(hidden))
        return y + self.act(y) if self.fault == "call" else y


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Block(), Block()

    def forward(self, x):
        return self.b(self.a(x))


def train(folder, mode, fault):
    task, level, summary = mode.split("-")
    config = folder.with_suffix(".json")
    chosen = {"scope": [], "list": [], "data_mode": ["all"]}
    config.write_text(
        json.dumps({"task": task, "level": level, "dump_path": str(folder), "rank": [], "step": [],
                    "statistics": {**chosen, "summary_mode": summary}, "tensor": chosen})
    )  # fmt: skip
    torch.manual_seed(0)
    model = Model()
    debugger = PrecisionDebugger(config_path=str(config))
    for step in range(2):
        if step == 1:
            model.b.fault = model.b.fc2.fault = fault
            if fault == "weight":
                model.b.fc2.weight.data[0, 0] *= 1.5
        debugger.start(model=model)
        loss = model(torch.linspace(-1, 1, 16).reshape(4, 4)).square().sum()
        if summary != "md5":  # of memory on the host, msprobe takes checksums when it has changed
            loss.backward()
        debugger.stop()
        debugger.step()


def main():
    folder, *modes = sys.argv[1:]
    for mode in modes:
        for fault in FAULTS:
            child = os.fork()
            if not child:
                train(Path(folder) / mode / fault, mode, fault)
                sys.stdout.flush()
                os._exit(0)
            if os.waitpid(child, 0)[1]:
                raise SystemExit(f"{mode}, {fault}: failed")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for name in sys.argv[2:]:
        (Path(sys.argv[1]) / name).mkdir(parents=True)
    main()
