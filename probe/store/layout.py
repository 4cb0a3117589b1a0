"""Where everything lies in a dump folder.

::

    msprobe_dump/
      data/<tag>/step{n}/rank{r}/micro_step{m}/<tag>.npy  <tag>.json  <tag>.1.npy …   key data, as msprobe names it
      <stage>/step{n}/rank{r}/dump.json …                 the first layer window of a stage in a step, msprobe's path
      <stage>/step{n}/rank{r}/micro_step{m}/dump.json …   later windows of the same stage and step
      configurations.json                                 training configuration
      index/rank{r}.jsonl                                 every record in order, with its digest: what is compared
      trace/rank{r}.jsonl                                 every event in execution order
      capture/                                            a module's call, to be run again alone: see ``capture.py``
      manifest.json                                       format, digest algorithm, steps finished, complete or not
      environment.json                                    versions, devices, determinism asked for and in effect

Where several processes record one run, each has a ``manifest.rank{r}.json`` in place of ``manifest.json``, and the
first process of every further host an ``environment.rank{r}.json``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from probe.errors import DumpError, RecordError
from probe.types import STAGES

FORMAT = 1
"""Version of the dump folder's own files."""

DUMP = "msprobe_dump"
"""The dump folder's own name, in a run's folder."""
INDEX = "index"
TRACE = "trace"
DATA = "data"
CAPTURE = "capture"
MANIFEST = "manifest.json"
"""Of a run of one process."""
ENVIRONMENT = "environment.json"
CONFIGURATIONS = "configurations.json"
RESERVE = ".reserve"
"""Keeps room for the manifest while the run lasts; given free when the disk is full."""
WINDOW = "window.json"
"""Written into a layer window when it closes; a window without it was cut off."""

_OPEN = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_LONGEST_JSON = 1 << 30
_FOLDER_NAME = re.compile(r"(?![ .])[^/\\\x00-\x1f:*?\"<>|\ud800-\udfff]{1,150}(?<![ .])")
_LONGEST_NAME = 200
"""Bytes of UTF-8: file systems take 255, and the files' names are longer than the tag."""
_RANK_MANIFEST = re.compile(r"manifest\.rank(0|[1-9]\d{0,8})\.json")
_RANK_ENVIRONMENT = re.compile(r"environment\.rank([1-9]\d{0,8})\.json")
_OF_SEVERAL = re.compile(r"\.?manifest\.rank.*|\.?environment\..*|\.?configurations\.json.*|\.reserve\..*|\.window\..*")
"""What processes that record into one folder leave at its top, beside the folders."""


def check_tag(tag: object) -> str:
    """Returns a tag that can name a folder.

    Raises:
        RecordError: It cannot.
    """
    if isinstance(tag, str) and _FOLDER_NAME.fullmatch(tag) and (tag.isascii() or len(tag.encode()) <= _LONGEST_NAME):
        return tag
    raise RecordError(f"tag {tag!r} is not a valid folder name")


def record_folder(tag: str, step: int, rank: int, micro_step: int) -> str:
    """The folder of a record, relative to the dump folder."""
    return f"{DATA}/{tag}/step{step}/rank{rank}/micro_step{micro_step}"


def record_stem(tag: str, number: int) -> str:
    """File name without ending: ``<tag>``, then ``<tag>.1``, ``<tag>.2``: msprobe's comparator reads the number."""
    return tag if number == 0 else f"{tag}.{number}"


def open_plain(path: Path | str) -> BinaryIO:
    """Opens a file of a dump that may come from anywhere: neither a link nor anything that could block.

    Raises:
        OSError: It is no plain file, or cannot be opened.
        ValueError: The path holds a zero byte.
    """
    if os.path.islink(path):
        raise OSError(errno.ELOOP, "a link is not followed", str(path))
    descriptor = os.open(path, _OPEN)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a file", str(path))
    return os.fdopen(descriptor, "rb")


@contextmanager
def reading(path: Path) -> Iterator[BinaryIO]:
    """Opens such a file; whatever goes wrong until it is closed is said of it.

    Raises:
        DumpError: It is no plain file, or cannot be read.
    """
    try:
        with open_plain(path) as file:
            yield file
    except OSError as error:
        raise DumpError(f"{path}: cannot be read ({error.strerror})") from error


def read_json(path: Path, longest: int = _LONGEST_JSON) -> Any:
    """The content of a JSON file of a dump.

    Args:
        path: The file.
        longest: Most bytes that it may have.

    Raises:
        OSError: It is no plain file, or cannot be read.
        ValueError: It is not JSON, nested too deeply, or larger than any that is written.
    """
    with open_plain(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > longest:
            raise ValueError(f"it has {size} bytes")
        try:
            return json.loads(file.read())
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error


def of_rank(name: str, rank: int | None) -> str:
    """The name of one process's own file.

    Args:
        name: The file's name in a run of one process.
        rank: The process's rank, where the run has several; None where it is the only one.

    Example:
        >>> of_rank("manifest.json", 1)
        'manifest.rank1.json'
    """
    if rank is None:
        return name
    stem, dot, ending = name.rpartition(".")
    return f"{stem}.rank{rank}.{ending}" if dot and stem else f"{name}.rank{rank}"


def manifests(folder: Path) -> dict[int | None, Path]:
    """The manifests at the top of a dump folder by rank; None is that of a run of one process.

    Raises:
        OSError: The folder cannot be listed.
    """
    found: dict[int | None, Path] = {}
    for name in os.listdir(folder):
        for rank in rank_of_manifest(name):
            found[rank] = folder / name
    return found


def further_environments(folder: Path) -> list[str]:
    """The names of the environments of processes beside the first, at the top of a dump folder, by rank.

    Raises:
        OSError: The folder cannot be listed.
    """
    return [of_rank(ENVIRONMENT, rank) for rank in ranks_beside_the_first(folder)]


def ranks_beside_the_first(folder: Path) -> list[int]:
    """The ranks that left an environment of their own at the top of a dump folder.

    Raises:
        OSError: The folder cannot be listed.
    """
    return sorted(int(match.group(1)) for name in os.listdir(folder) if (match := _RANK_ENVIRONMENT.fullmatch(name)))


def says_what_was_run(name: str) -> bool:
    """Whether a file at the top of a dump folder is its configuration, or the environment of one of its processes.

    Example:
        >>> says_what_was_run("environment.rank8.json"), says_what_was_run("manifest.json")
        (True, False)
    """
    return name in (CONFIGURATIONS, ENVIRONMENT) or _RANK_ENVIRONMENT.fullmatch(name) is not None


def rank_of_manifest(name: str) -> tuple[int | None, ...]:
    """The rank whose manifest a file at the top of a dump folder is, if it is one.

    Example:
        >>> rank_of_manifest("manifest.rank1.json"), rank_of_manifest("manifest.json"), rank_of_manifest("data")
        ((1,), (None,), ())
    """
    if name == MANIFEST:
        return (None,)
    match = _RANK_MANIFEST.fullmatch(name)
    return (int(match.group(1)),) if match else ()


def claim_for_rank(folder: Path, rank: int) -> None:
    """Makes a dump folder, or takes one that other processes of the same run have made, for one rank.

    The rank's manifest is created exclusively: no second process can claim the same rank.

    Raises:
        DumpError: Another run has used the folder, or it cannot be made.
    """
    path = folder / of_rank(MANIFEST, rank)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        foreign = sorted(name for name in os.listdir(folder) if not _may_be_of_several(name))
        if foreign:
            raise DumpError(f"{folder / foreign[0]}: is of another run; give every run its own dump_path")
        path.open("xb").close()
    except FileExistsError as error:
        raise DumpError(
            f"{path}: another process has recorded rank {rank}; give every run its own dump_path"
        ) from error
    except OSError as error:
        raise DumpError(f"{folder}: the dump folder cannot be made ({error.strerror})") from error


def _may_be_of_several(name: str) -> bool:
    return name in (INDEX, TRACE, DATA, CAPTURE, *STAGES) or _OF_SEVERAL.fullmatch(name) is not None


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
    try:
        if not occupied:
            (folder / INDEX).mkdir()  # of two processes at the same moment, one has the folder
    except FileExistsError:
        occupied = True
    except OSError as error:
        raise DumpError(f"{folder}: cannot be written to ({error.strerror})") from error
    if occupied:
        raise DumpError(f"{folder}: the dump folder is not empty; give every run its own dump_path")
