"""Parts of a benchmark that run in a process of their own: started fresh, measured inside, ended with their group."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probe.errors import DumpError, InconclusiveError, TrainerError
from probe.launch import run_process

TIME_LIMIT = 1800.0
"""Longest run of one child, in seconds."""
SPARE = 1.2
"""Free room that is asked for, as a multiple of what a benchmark writes."""

_ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder, removed at the end however that comes about."""
    with tempfile.TemporaryDirectory(prefix="firstdiff-bench-") as folder:
        yield Path(folder)


def require_room(disk_bytes: int) -> None:
    """Makes sure that the temporary folder's disk has room.

    Args:
        disk_bytes: What will be written, in bytes.

    Raises:
        DumpError: It has not.
    """
    folder = tempfile.gettempdir()
    free, wanted = shutil.disk_usage(folder).free, int(disk_bytes * SPARE)
    if free < wanted:
        raise DumpError(
            f"{folder}: {free / 1e6:.0f} MB are free, the benchmarks need {wanted / 1e6:.0f} MB for a while;"
            " free some, or set TMPDIR to a folder that has them"
        )


def run_child(module: str, arguments: list[str], scratch: Path, variables: dict[str, str] | None = None) -> Any:
    """Runs ``python -m MODULE ARGUMENTS RESULT`` and returns the JSON document that it leaves in the file RESULT.

    Args:
        module: Full name of the module.
        arguments: What it takes before the result's path.
        scratch: Receives the result, the child's output and its temporary files.
        variables: Environment variables beside those of this process.

    Raises:
        InconclusiveError: The child failed, ran out of time, or left no result.
    """
    result = scratch / "result.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", module, *arguments, str(result)]
    environment = {**os.environ, **(variables or {}), "PYTHONPATH": str(_ROOT), "TMPDIR": str(scratch)}
    try:
        run_process(
            command,
            cwd=scratch,
            env=environment,
            log_file=scratch / "child.log",
            on_line=lambda line: None,
            time_limit=TIME_LIMIT,
        )
        return json.loads(result.read_bytes())
    except TrainerError as error:
        how = "ran out of time" if error.exit_code_of_child is None else f"failed ({error.exit_code_of_child})"
        last = error.log_tail.strip().rpartition("\n")[2]
        raise InconclusiveError(f"the benchmark's process {module} {how}: {last or 'it printed nothing'}") from error
    except (OSError, ValueError) as error:
        raise InconclusiveError(f"the benchmark's process {module} left no result ({error})") from error
