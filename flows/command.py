"""``firstdiff check -- COMMAND``: the profile of a command, for as long as its check lasts."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from probe.config import mapping_yaml

_LAUNCHERS = ("python", "python3", "torchrun", "accelerate", "launch", "uv", "run", "env")


@contextmanager
def profile_of_command(command: list[str]) -> Iterator[Path]:
    """A profile of ``kind: script`` that starts a command in the current folder.

    Args:
        command: Program and arguments.

    Yields:
        Its file, named after the script.
    """
    trainer = {"kind": "script", "command": command, "cwd": str(Path.cwd())}
    with tempfile.TemporaryDirectory(prefix="firstdiff-") as folder:
        file = Path(folder, f"{name_of(command)}.yaml")
        file.write_text(mapping_yaml({"trainer": trainer}), encoding="utf-8")
        yield file


def name_of(command: list[str]) -> str:
    """What a check of a command is called.

    Example:
        >>> name_of(["torchrun", "--nproc-per-node", "2", "examples/train.py", "--steps", "6"])
        'train'
        >>> name_of(["python", "-m", "my.trainer"])
        'my-trainer'
    """
    script = next((part for part in command if part.endswith(".py")), None)
    module = next((after for before, after in zip(command, command[1:], strict=False) if before == "-m"), None)
    other = next((part for part in command if PurePath(part).name not in _LAUNCHERS), command[0])
    name = PurePath(script).stem if script else module or PurePath(other).name
    return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")[:60] or "script"
