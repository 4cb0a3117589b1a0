"""Starting trainers as processes, watching them, and ending their process groups. Never imports a trainer."""

from __future__ import annotations

from probe.launch.claim import abandoned_checks, claimed, forget, is_of, is_running, running_checks
from probe.launch.follow import follow
from probe.launch.hosts import leading
from probe.launch.launcher import CommandLauncher, IntegratedLauncher, Launcher, launcher_for
from probe.launch.plan import check_folder, dump_folder, run_spec
from probe.launch.process import run_process

__all__ = [
    "CommandLauncher",
    "IntegratedLauncher",
    "Launcher",
    "abandoned_checks",
    "check_folder",
    "claimed",
    "dump_folder",
    "follow",
    "forget",
    "is_of",
    "is_running",
    "launcher_for",
    "leading",
    "run_process",
    "run_spec",
    "running_checks",
]
