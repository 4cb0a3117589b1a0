"""Starting trainers as processes, watching them, and ending their process groups. Never imports a trainer."""

from __future__ import annotations

from probe.launch.claim import abandoned_checks, claimed, is_running, running_checks, taken_from_the_dead
from probe.launch.devices import devices_reserved
from probe.launch.examine import examine_workers
from probe.launch.finished import begin_run, forget_results, is_finished
from probe.launch.follow import follow
from probe.launch.hosts import leading
from probe.launch.launcher import CommandLauncher, IntegratedLauncher, Launcher, launcher_for
from probe.launch.mindspeed_rl import MindSpeedRLLauncher
from probe.launch.plan import check_folder, dump_folder, records_as_it_trains, run_spec, training_steps
from probe.launch.process import run_process

__all__ = [
    "CommandLauncher",
    "IntegratedLauncher",
    "Launcher",
    "MindSpeedRLLauncher",
    "abandoned_checks",
    "begin_run",
    "check_folder",
    "claimed",
    "devices_reserved",
    "examine_workers",
    "dump_folder",
    "follow",
    "forget_results",
    "is_finished",
    "is_running",
    "launcher_for",
    "leading",
    "records_as_it_trains",
    "run_process",
    "run_spec",
    "running_checks",
    "taken_from_the_dead",
    "training_steps",
]
