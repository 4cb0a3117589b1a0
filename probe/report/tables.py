"""msprobe's own tables, made in a process of their own.

They are made because people know them; no verdict rests on them. msprobe keeps singletons, forks a pool and prints a
great deal: ``python -m probe.report.tables`` is where that happens.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from probe.errors import DumpError
from probe.language import tell
from probe.report.summary import SUMMARY
from probe.store import layout
from probe.store.layers import find_windows, msprobe_missing
from probe.store.scan import shown

TIME_LIMIT = 1800.0
"""Longest time for one set of tables, in seconds."""


@dataclass(frozen=True)
class Tables:
    """Official tables of a comparison.

    Example:
        >>> Tables().made
        []
    """

    made: list[Path] = field(default_factory=list)
    not_made: list[str] = field(default_factory=list)
    """What is missing and why, one sentence each."""


def key_data_tables(a: Path, b: Path, folder: Path) -> Tables:
    """``SingleComparator``'s table of every tag, ``<tag>.xlsx``.

    Args:
        a: A dump folder.
        b: The other.
        folder: Receives the tables.
    """
    tags: set[str] = set()
    for dump in (a, b):
        for base, folders, files in os.walk(dump / layout.DATA, followlinks=False):
            link = next((name for name in [*folders, *files] if os.path.islink(os.path.join(base, name))), None)
            if link is not None:
                return Tables(
                    not_made=[
                        tell("keydata: {path} is a link, which msprobe would follow", path=shown(Path(base, link)))
                    ]
                )
            if any(name.endswith(".npy") for name in files):
                tags.update(Path(base).relative_to(dump / layout.DATA).parts[:1])
    if not tags:
        return Tables(not_made=[tell("keydata: no values were kept to compare")])
    problem = _in_own_process("keydata", a, b, folder)
    made: list[Path] = []
    missing: list[str] = []
    for tag in sorted(tags):
        table = folder / f"{tag}.xlsx"
        if not table.is_file():
            why = problem or tell("SingleComparator made no table of it")
            missing.append(tell("keydata/{table}: {why}", table=table.name, why=why))
        else:
            made.append(table.replace(folder / f"{tag} (tag).xlsx") if table.name == SUMMARY else table)
    return Tables(made, missing)


def layer_tables(c: Path, d: Path, folder: Path) -> Tables:
    """``compare_distributed``'s table of every layer window and rank, ``compare_result_<window>_rank{r}_<time>.xlsx``.

    Args:
        c: A dump folder.
        d: The other.
        folder: Receives the tables.
    """
    try:
        both = find_windows(c) and find_windows(d)
    except DumpError as error:
        return Tables(not_made=[tell("layers: {why}", why=str(error))])
    if not both:
        return Tables(not_made=[tell("layers: no layers were dumped in both runs")])
    problem = _in_own_process("layers", c, d, folder)
    made = sorted(folder.glob("compare_result_*.xlsx"))
    why = problem or tell("compare_distributed made no table")
    not_made: list[str] = [] if made and not problem else [tell("layers: {why}", why=why)]
    return Tables(made, not_made)


def _in_own_process(what: str, left: Path, right: Path, folder: Path) -> str | None:
    """Runs this module on two dumps. Returns why it failed, or None."""
    reason = msprobe_missing()
    if reason is not None:
        return reason
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "probe.report.tables", what, *(str(p.absolute()) for p in (left, right, folder))]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tempfile.gettempdir(),
            start_new_session=True,
        )
        try:
            status = process.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            return tell("msprobe took longer than {limit:g} s", limit=TIME_LIMIT)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # msprobe starts processes of its own
            process.communicate()
        output.seek(max(0, output.seek(0, os.SEEK_END) - 4000))
        lines = output.read().decode(errors="replace").strip().splitlines()
    return None if status == 0 else tell("msprobe failed ({why})", why=lines[-1] if lines else status)


def _end_with_whoever_started_this() -> None:
    """Ends this process and what it started when the pipe closes that its starter holds, also by a kill."""

    def wait() -> None:
        while os.read(0, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _make_key_data_tables(a: Path, b: Path, folder: Path) -> None:
    from msprobe.core import SingleComparator

    SingleComparator.compare(str(a), str(b), str(folder), num_processes=max(1, min(4, os.cpu_count() or 1)))


def _make_layer_tables(c: Path, d: Path, folder: Path) -> None:
    from msprobe.pytorch.compare.distributed_compare import compare_distributed

    others = {window.key: window for window in find_windows(d)}
    names = sorted({(w.stage, w.step, w.micro_step) for w in find_windows(c) if w.key in others})
    for stage, step, micro_step in names:
        suffix = f"_micro_step{micro_step}" if micro_step else ""
        with tempfile.TemporaryDirectory() as scratch:
            pair = []
            for name, dump, windows in (("c", c, find_windows(c)), ("d", d, list(others.values()))):
                here = [w for w in windows if (w.stage, w.step, w.micro_step) == (stage, step, micro_step)]
                source = here[0].folder.parent if not micro_step else here[0].folder.parent.parent
                if not source.is_relative_to(dump):
                    raise SystemExit(f"{dump}: is a single rank; msprobe compares folders of ranks")
                if micro_step:  # msprobe looks for rank folders: lay this window out as it expects
                    source = _gather(source, micro_step, Path(scratch) / name)
                pair.append(str(source))
            result = Path(scratch) / "result"
            result.mkdir()
            compare_distributed(*pair, str(result), xlsx=True)
            for file in result.glob("compare_result_*"):
                rest = file.name.removeprefix("compare_result_")
                place = "_".join(part for part in (stage.replace("/", "_"), f"step{step}{suffix}") if part)
                shutil.move(file, folder / f"compare_result_{place}_{rest}")


def _gather(step_folder: Path, micro_step: int, target: Path) -> Path:
    for window in step_folder.glob(f"rank*/micro_step{micro_step}"):
        shutil.copytree(window, target / window.parent.name, copy_function=shutil.copyfile)
    return target


if __name__ == "__main__":
    _end_with_whoever_started_this()
    make = {"keydata": _make_key_data_tables, "layers": _make_layer_tables}[sys.argv[1]]
    make(*(Path(argument) for argument in sys.argv[2:5]))
