"""Starting trainers as processes, watching them, and ending their process groups. Never imports a trainer."""

from __future__ import annotations

from probe.launch.follow import follow
from probe.launch.hosts import leading
from probe.launch.launcher import CommandLauncher, IntegratedLauncher, Launcher, launcher_for
from probe.launch.plan import check_folder, dump_folder, run_spec, training_steps
from probe.launch.process import run_process

__all__ = [
    "CommandLauncher",
    "IntegratedLauncher",
    "Launcher",
    "check_folder",
    "dump_folder",
    "follow",
    "launcher_for",
    "leading",
    "run_process",
    "run_spec",
    "training_steps",
]
