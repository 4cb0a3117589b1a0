"""The command that starts a trainer's processes on this host with torchrun."""

from __future__ import annotations

import sys
from pathlib import Path

from probe.adapters.bootstrap import ALIAS
from probe.config import Launch

_AGENT = f"""
import pathlib, sys
from {ALIAS}.launch import agent
sys.exit(agent.main(pathlib.Path(sys.argv[1]), sys.argv[2:]))
"""
PREFIX = "[rank${rank}] "
"""What torchrun puts before each line of a rank's output."""


def hosts_are_one_machine(trainer: Launch) -> bool:
    """Whether the hosts of a trainer meet on the loopback interface: all of them are this machine."""
    return trainer.nnodes > 1 and str(trainer.rdzv_endpoint).startswith(("127.", "localhost:"))


def torchrun_command(
    trainer: Launch, command: list[str], logs: Path, failures: Path, name: str, script: bool = False
) -> list[str]:
    """The command that runs another once a rank.

    The hosts find each other by torchrun's static rendezvous: it alone gives host ``node_rank`` the same ranks in
    every run, so that a rank of two runs is on one host.

    Args:
        trainer: How many processes, and which host this is.
        command: What each rank runs.
        logs: Receives each rank's output; removed by the caller.
        failures: Receives the ranks that failed.
        name: What no other launch at the same endpoint is called.
        script: Whether ``probe`` is importable under its other name only (``probe.adapters.bootstrap``).
    """
    if trainer.nnodes == 1:
        hosts = ["--standalone", "--local-addr", "127.0.0.1"]
    else:
        endpoint = str(trainer.rdzv_endpoint)
        hosts = ["--nnodes", str(trainer.nnodes), "--node-rank", str(trainer.node_rank)]
        hosts += ["--rdzv-backend", "static", "--rdzv-endpoint", endpoint, "--rdzv-id", name]
        hosts += ["--local-addr", "127.0.0.1"] if hosts_are_one_machine(trainer) else []
    run = ["-c", _AGENT] if script else ["-m", "probe.launch.agent"]
    agent = [sys.executable, *run, str(failures), *hosts]
    agent += ["--nproc-per-node", str(trainer.nproc_per_node), "--max-restarts", "0"]
    return [*agent, "--tee", "3", "--log-dir", str(logs), "--no-python", *command]
