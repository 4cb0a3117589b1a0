"""Moving what a host recorded on its own disk into the run's dump folder, which all hosts share."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

from probe.errors import DumpError
from probe.store import layout

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS, errno.EACCES)


def gather(source: Path, target: Path) -> None:
    """Moves every file of a dump into another folder, the manifests last; no file there is ever replaced.

    A run whose gathering was cut off has no manifest of this host's ranks: it is never taken for a whole one.

    Args:
        source: What this host recorded; nothing happens where it recorded nothing.
        target: The run's dump folder.

    Raises:
        DumpError: A file is there already, or cannot be moved.
    """
    if not source.is_dir():
        return
    last = set(layout.manifests(source).values())
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and not path.is_symlink()]
    kept = [path for path in files if not any(part.startswith(".") for part in path.relative_to(source).parts)]
    try:
        for path in [*(path for path in kept if path not in last), *sorted(last)]:
            goal = target / path.relative_to(source)
            goal.parent.mkdir(parents=True, exist_ok=True)
            if path.name == "dump.json":
                _correct_path(path, source, target)
            _move(path, goal)
    except FileExistsError as error:
        raise DumpError(f"{error.filename}: two hosts recorded this file; {path} stays where it is") from error
    except (OSError, ValueError) as error:
        raise DumpError(f"{path}: cannot be moved to {goal} ({error})") from error


def _move(path: Path, goal: Path) -> None:
    """Moves a file as a whole, across file systems too.

    Raises:
        FileExistsError: The goal exists.
    """
    temporary = goal.with_name(f".{goal.name}.{os.uname().nodename}-{os.getpid()}.partial")
    try:
        shutil.copyfile(path, temporary)
        try:
            os.link(temporary, goal)  # never replaces a file
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise FileExistsError(error.errno, error.strerror, str(goal)) from error
            if os.path.lexists(goal):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(goal)) from error
            os.rename(temporary, goal)
    finally:
        temporary.unlink(missing_ok=True)
    path.unlink()


def _correct_path(file: Path, source: Path, target: Path) -> None:
    """Msprobe's dump says where its tensors lie: in the folder that it is moved to."""
    dump = json.loads(file.read_text(encoding="utf-8"))
    folder = dump.get("dump_data_dir")
    if isinstance(folder, str) and folder.startswith(str(source)):
        dump["dump_data_dir"] = str(target) + folder[len(str(source)) :]
        file.write_text(json.dumps(dump, indent=1), encoding="utf-8")
