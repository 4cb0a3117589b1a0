"""A dump without its values: every record keeps its digest, so that the dump is compared as before."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from probe.errors import DumpError
from probe.language import join, tell
from probe.store import layout
from probe.store.digest import ALGORITHM, hasher
from probe.store.index import index_line, parse_lines
from probe.store.manifests import read_manifest
from probe.store.packing import REDUCED as FILE
from probe.store.scan import walk
from probe.store.writer import write_json
from probe.types import STAGES

_VALUES = tell("its values")
FORMAT = 1


def reduce(dump: Path) -> None:
    """Removes the values of key data and the layer dumps from a dump folder; the digests of all records stay.

    It changes the folder file by file: work on a copy, and let the whole copy take the dump's place.

    Raises:
        DumpError: The dump is no whole one of ours, or its digests are of an algorithm that is not here.
    """
    manifest = read_manifest(dump)
    if manifest is None or not manifest.complete:
        raise DumpError(f"{dump}: is no whole dump; its values stay")
    if manifest.digest != ALGORITHM:
        raise DumpError(f"{dump}: its digests are {manifest.digest}, here they are {ALGORITHM}; its values stay")
    digests = {rank: _without_values(dump / layout.INDEX / f"rank{rank}.jsonl") for rank in manifest.ranks}
    removed, size = _remove_values(dump / layout.DATA)
    stages = [stage for stage in STAGES if (dump / stage).exists()]
    for stage in stages:
        shutil.rmtree(dump / stage)
    if (dump / layout.CAPTURE).exists():
        shutil.rmtree(dump / layout.CAPTURE)
    for path in layout.manifests(dump).values():
        raw = layout.read_json(path)
        own = {rank: digests[int(rank)] for rank in raw["index_digests"]}
        write_json(path, {**raw, "index_digests": own, "values": 0, "value_bytes": 0})
    write_json(dump / FILE, {"format": FORMAT, "values": removed, "value_bytes": size, "layers": stages})


def is_reduced(dump: Path) -> bool:
    """Whether the values of a dump folder that is not packed were removed."""
    return (dump / FILE).is_file()


def reductions(*dumps: Path) -> list[str]:
    """What was removed from dumps, one sentence each."""
    said: list[str] = []
    for dump in dumps:
        try:
            found = layout.read_json(dump / FILE, 1 << 20)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            said.append(tell("{path}: cannot be read ({why})", path=dump / FILE, why=str(error)))
            continue
        layers = found.get("layers") if isinstance(found, dict) else None
        also = isinstance(layers, list) and layers
        what = tell("its values, and the layers of {stages},", stages=join(", ", map(str, also))) if also else _VALUES
        note = tell("{dump}: {what} were removed after the verdict (check.keep); its digests were compared",
                    dump=dump, what=what)  # fmt: skip
        said.append(note)
    return said


def _without_values(path: Path) -> str:
    """Writes an index whose records name no files in place of one; returns its digest."""
    taken = hasher()
    temporary = path.with_name(f".{path.name}.partial")
    try:
        with layout.open_plain(path) as index, temporary.open("wb") as file:
            for line in index:
                (record,) = parse_lines([line], path)
                plain = index_line(replace(record, file=None))
                taken.update(plain)
                file.write(plain)
        os.replace(temporary, path)
    except OSError as error:
        raise DumpError(f"{path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return taken.hexdigest()


def _remove_values(data: Path) -> tuple[int, int]:
    """Removes value files; returns how many there were and their size."""
    count, size = 0, 0
    for _, entries in walk(data):
        for entry in entries or ():
            if entry.name.endswith(".npy") and entry.is_file(follow_symlinks=False):
                count, size = count + 1, size + entry.stat(follow_symlinks=False).st_size
                os.unlink(entry.path)
    return count, size
