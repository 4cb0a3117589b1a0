"""Where everything lies in a dump folder.

::

    msprobe_dump/
      data/<tag>/step{n}/rank{r}/micro_step{m}/<tag>.npy  <tag>.json  <tag>.1.npy …   key data, as msprobe names it
      <stage>/step{n}/rank{r}/dump.json …                 the first layer window of a stage in a step, msprobe's path
      <stage>/step{n}/rank{r}/micro_step{m}/dump.json …   later windows of the same stage and step
      configurations.json                                 training configuration
      index/rank{r}.jsonl                                 every record in order, with its digest: what is compared
      manifest.json                                       format, digest algorithm, steps finished, complete or not
      environment.json                                    versions, devices, determinism asked for and in effect
"""

from __future__ import annotations

import re
from pathlib import Path

from probe.errors import DumpError, RecordError

FORMAT = 1
"""Version of the dump folder's own files."""

INDEX = "index"
DATA = "data"
MANIFEST = "manifest.json"
ENVIRONMENT = "environment.json"
CONFIGURATIONS = "configurations.json"
WINDOW = "window.json"
"""Written into a layer window when it closes; a window without it was cut off."""

_FOLDER_NAME = re.compile(r"[^/\\\x00-\x1f:*?\"<>|]{1,150}")


def check_tag(tag: object) -> str:
    """Returns a tag that can name a folder.

    Raises:
        RecordError: It cannot.
    """
    good = isinstance(tag, str) and _FOLDER_NAME.fullmatch(tag) and tag.strip(" .") == tag
    if not good or len(str(tag).encode(errors="replace")) > 200 or any("\ud800" <= c <= "\udfff" for c in str(tag)):
        raise RecordError(f"tag {tag!r} is not a valid folder name")
    return str(tag)


def record_folder(tag: str, step: int, rank: int, micro_step: int) -> str:
    """The folder of a record, relative to the dump folder."""
    return f"{DATA}/{tag}/step{step}/rank{rank}/micro_step{micro_step}"


def record_stem(tag: str, number: int) -> str:
    """File name without ending: ``<tag>``, then ``<tag>.1``, ``<tag>.2``: msprobe's comparator reads the number."""
    return tag if number == 0 else f"{tag}.{number}"


def claim(folder: Path) -> None:
    """Makes a dump folder for one run alone.

    Raises:
        DumpError: It holds files already, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = any(folder.iterdir())
    except OSError as error:
        raise DumpError(f"{folder}: the dump folder cannot be made ({error.strerror})") from error
    if occupied:
        raise DumpError(f"{folder}: the dump folder is not empty; give every run its own dump_path")
