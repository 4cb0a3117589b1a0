"""Records trainings with planted faults: ``python faulty [--kind KIND] [--folder FOLDER] FAULT[=TIMES] …``.

The run is ``$FIRSTDIFF_RUN``. With ``--folder``, each fault is recorded into ``FOLDER/FAULT-0/RUN``,
``FOLDER/FAULT-1/RUN`` and so on. Without it, the one fault is recorded as ``$FIRSTDIFF_SPEC`` says, as a check does.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import further
import reported
import torch
import updates
from training import Training

from probe import Probe
from probe.types import RunSpec

FAULTS = {"none": lambda training: None, **reported.FAULTS, **further.FAULTS, **updates.FAULTS}


def train(name: str, training: Training, probe: Probe) -> None:
    FAULTS[name](training)
    training.train(probe)
    probe.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("faults", nargs="+")
    arguments = parser.parse_args()
    run = os.environ["FIRSTDIFF_RUN"]
    rank = 0
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
    for fault in arguments.faults:
        name, _, times = fault.partition("=")
        for attempt in range(int(times or 1)):
            torch.set_num_threads(1)
            training = Training(run, attempt, arguments.kind, rank)
            if arguments.folder is None:
                probe = Probe.from_env()
            else:
                dump = arguments.folder / f"{name}-{attempt}" / run
                probe = Probe(RunSpec(run=run, dump_path=str(dump), trace=True))
            train(name, training, probe)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
