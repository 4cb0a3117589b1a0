"""Checkpoints as people have them: safetensors (one file, or shards with an index), ``torch.save``, and DCP folders.

Whatever the format, a checkpoint is tensors by name, in an order. Files beside the model's own are taken in under their
name, as ``optimizer.pt:state.0.exp_avg``; what is no file of tensors is listed, and not looked at.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.errors import DumpError
from probe.language import join, tell
from probe.store import dcp, layout, torch_files
from probe.store.safetensors_files import SUFFIX, looks_like_safetensors, read_safetensors
from probe.store.scan import shown, walk
from probe.store.tensors import Stored, natural_order

_INDEX = ".index.json"
_MODEL_FILES = (
    *("model.safetensors", "diffusion_pytorch_model.safetensors", "adapter_model.safetensors"),
    *("pytorch_model.bin", "adapter_model.bin", "consolidated.safetensors", "consolidated.00.pth"),
)
_SUFFIXES = (SUFFIX, *torch_files.SUFFIXES)
_OF_TENSORS = (SUFFIX, ".pt", ".pth")
"""Endings that nothing else has."""
_BY_NAME = tell("by name, numbers by value: safetensors files keep no other order")


@dataclass
class Checkpoint:
    """What a checkpoint holds.

    Example:
        >>> Checkpoint(Path("model.safetensors"), "safetensors").tensors
        {}
    """

    path: Path
    format: str
    """For people: ``safetensors``, ``torch.save``, ``DCP``, or several of them."""
    tensors: dict[str, Stored] = field(default_factory=dict)
    """By name, in the model's order as far as the files know it."""
    order: str = _BY_NAME
    """What that order is."""
    ordered: bool = False
    """Whether the files keep the order of the model."""
    problems: list[str] = field(default_factory=list)
    """What could not be read, one sentence each."""
    notes: list[str] = field(default_factory=list)


def is_checkpoint(path: Path) -> bool:
    """Whether a file or a folder looks like a checkpoint."""
    if path.is_file():
        known = path.name.endswith((SUFFIX, _INDEX))
        return known or torch_files.looks_like_torch(path) or looks_like_safetensors(path)
    return path.is_dir() and bool(_files(path)[0] or _dcp_folders(path))


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads the names and forms of everything in a checkpoint; values are read when they are compared.

    Args:
        path: A file or a folder.

    Raises:
        DumpError: It is none, or the model's own files cannot be read.
    """
    if path.is_file():
        if path.name.endswith(_INDEX):
            return _indexed(path.parent, path.name)
        return _of_file(path)
    folders = _dcp_folders(path)
    tensor_files, others = _files(path, frozenset(folders))
    if folders:
        found = Checkpoint(path, "")
        for folder in folders:
            prefix = "" if len(folders) == 1 else f"{folder.relative_to(path).as_posix()}:"
            _take(found, _of_dcp(folder), prefix)
        _take_files(found, tensor_files)
    else:
        found = _of_files(path, tensor_files)
    if others:
        named = join(", ", others[:3])
        named += tell(" and {more} more", more=len(others) - 3) if len(others) > 3 else ""
        found.notes.append(
            tell(
                "{path}: only tensors and values in checkpoint files were compared, not {named}",
                path=shown(path),
                named=named,
            )
        )
    return found


def _of_file(path: Path) -> Checkpoint:
    if path.name.endswith(SUFFIX) or looks_like_safetensors(path):
        tensors, ordered = read_safetensors(path)
        names = list(tensors) if ordered else natural_order(tensors)
        order = tell("by their place in the file") if ordered else _BY_NAME
        return Checkpoint(path, "safetensors", {name: tensors[name] for name in names}, order, ordered)
    found, problems = torch_files.read_torch(path)
    return Checkpoint(path, "torch.save", found, tell("as in the state dict"), True, problems)


def _of_dcp(folder: Path) -> Checkpoint:
    found, problems = dcp.read_dcp(folder)
    return Checkpoint(folder, "DCP", found, tell("as in the checkpoint's metadata"), True, problems)


def _of_files(path: Path, files: list[str]) -> Checkpoint:
    """A folder of tensor files: the model's own first, the others under their names."""
    index = next(
        (name for name in (f"model{SUFFIX}{_INDEX}", f"pytorch_model.bin{_INDEX}") if (path / name).exists()), None
    )
    index = index or next((name for name in sorted(os.listdir(path)) if name.endswith(_INDEX)), None)
    if index is not None:
        found, own = _indexed(path, index), _shards(path, index)[1]
    else:
        main = next((name for name in _MODEL_FILES if name in files), files[0] if len(files) == 1 else None)
        found = _of_file(path / main) if main else Checkpoint(path, "")
        found.path, own = path, {main or ""}
    _take_files(found, [name for name in files if name not in own])
    if not found.tensors and found.notes:
        found.problems += found.notes
    return found


def _take_files(found: Checkpoint, files: list[str]) -> None:
    """Takes in files beside the model's own: one that is no file of tensors is said, a damaged one is a problem."""
    for name in files:
        try:
            _take(found, _of_file(found.path / name), f"{name}:")
        except torch_files.RefusedError as error:
            found.notes.append(tell("not compared: {why}", why=str(error)))
        except DumpError as error:
            foreign = not name.endswith(_OF_TENSORS) and not torch_files.looks_like_torch(found.path / name)
            (found.notes if foreign else found.problems).append(tell("not compared: {why}", why=str(error)))


def _take(found: Checkpoint, other: Checkpoint, prefix: str) -> None:
    """Takes in what another file holds, behind what there is."""
    if not found.tensors:
        found.order, found.ordered = other.order, other.ordered
    found.tensors.update({prefix + name: value for name, value in other.tensors.items()})
    found.problems += other.problems
    formats = [part for part in found.format.split(" and ") if part]
    found.format = " and ".join(dict.fromkeys([*formats, other.format]))


def _indexed(folder: Path, index: str) -> Checkpoint:
    """Shards that an index puts together."""
    weight_map, shards = _shards(folder, index)
    found = Checkpoint(folder, "", order=_BY_NAME)
    read: dict[str, Checkpoint] = {}
    for shard in sorted(shards):
        try:
            read[shard] = _of_file(folder / shard)
        except DumpError as error:
            found.problems.append(str(error))
            continue
        found.problems += read[shard].problems
        found.format = read[shard].format
        unlisted = [name for name in read[shard].tensors if weight_map.get(name) != shard]
        if unlisted:
            found.problems.append(
                tell(
                    "{path}: holds {name!r}, which {index} does not name there",
                    path=shown(folder / shard),
                    name=unlisted[0],
                    index=index,
                )
            )
    found.ordered = bool(read) and all(shard.ordered for shard in read.values())
    in_order = [name for shard in read.values() for name in shard.tensors]
    if found.ordered:
        found.order = tell("by their place in the shards")
    for name in in_order if found.ordered else natural_order(weight_map):
        if weight_map.get(name) in read and name in read[weight_map[name]].tensors:
            found.tensors[name] = read[weight_map[name]].tensors[name]
    missing = [name for name, shard in weight_map.items() if shard in read and name not in read[shard].tensors]
    if missing:
        found.problems.append(
            tell(
                "{path}: names {name!r}, which its shard does not hold",
                path=shown(folder / index),
                name=missing[0],
            )
        )
    return found


def _shards(folder: Path, index: str) -> tuple[dict[str, str], set[str]]:
    """Which tensor lies in which file, as an index says.

    Raises:
        DumpError: The index is damaged, or names a file outside the folder.
    """
    path = folder / index
    try:
        content: Any = layout.read_json(path)
        weight_map = content["weight_map"]
        if not all(isinstance(name, str) and isinstance(shard, str) for name, shard in weight_map.items()):
            raise ValueError("a name is no text")
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"no weight_map in it: {error}"
        raise DumpError(f"{path}: is no index of shards ({' '.join(str(reason).split())[:200]})") from error
    for shard in weight_map.values():
        if os.path.isabs(shard) or os.path.basename(shard) != shard or shard in ("", ".", ".."):
            raise DumpError(f"{path}: names {shard!r}, which lies outside the folder")
        if not shard.endswith(_SUFFIXES):
            raise DumpError(f"{path}: names {shard!r}, which is no file of tensors")
    return weight_map, set(weight_map.values())


def _dcp_folders(path: Path) -> list[Path]:
    """The folders in it that ``torch.distributed.checkpoint`` wrote."""
    return [Path(base) for base, entries in walk(path) if any(entry.name == dcp.METADATA for entry in entries or ())]


def _files(path: Path, without: frozenset[Path] = frozenset()) -> tuple[list[str], list[str]]:
    """The files of tensors in a folder, and the others, relative to it, in order.

    Raises:
        DumpError: Something in it is a link, or cannot be read.
    """
    tensors: list[str] = []
    others: list[str] = []
    for base, entries in walk(path):
        if entries is None:
            raise DumpError(f"{shown(Path(base))}: cannot be read, or is a link, which is not followed")
        for entry in entries:
            name = shown(Path(entry.path).relative_to(path))
            if entry.is_symlink():
                raise DumpError(f"{shown(Path(entry.path))}: a link is not followed; name the file itself")
            if entry.is_dir(follow_symlinks=False) or name.endswith(_INDEX):
                continue
            if Path(base) in without:
                if not entry.name.endswith(".distcp") and entry.name != dcp.METADATA:
                    (tensors if entry.name.endswith(_SUFFIXES) else others).append(name)
                continue
            (tensors if entry.name.endswith(_SUFFIXES) else others).append(name)
    return natural_order(tensors), sorted(others)
