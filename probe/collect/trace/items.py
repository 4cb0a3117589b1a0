"""What a module was called with and what it returned, as leaves with their paths.

Containers (dicts, lists, tuples, deques, dataclasses, transformers' ``ModelOutput``) are opened, numbers and strings
are leaves, also in sets, and the names of enumeration members, dtypes and devices; of any other object, such as a
key-value cache, the tensors are.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from enum import Enum
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from probe.collect.values import in_order
from probe.errors import RecordError

Leaf = tuple[str, Any]
"""Path and value."""

_DEEPEST = 100
"""Levels of containers."""
_DEEPEST_OBJECT = 6
"""Levels of attributes."""
_SCALARS = (bool, int, float, complex, str, bytes, np.ndarray, np.generic)
_NAMED = (Enum, torch.dtype, torch.device)
"""What its name stands for."""
_CLOSED = (torch.nn.Module, type, FunctionType, MethodType, ModuleType, torch.Generator, *_NAMED)
"""What is never opened: models carry themselves around."""


class Leaves:
    """Collects leaves.

    Args:
        opened: Ids of objects that enclosing calls of modules got too: they were recorded there, and are not again.

    Example:
        >>> leaves = Leaves(set())
        >>> leaves.add("args", (1, {"mask": True}))
        >>> leaves.found
        [('args.0', 1), ('args.1.mask', True)]
    """

    def __init__(self, opened: set[int]) -> None:
        self.found: list[Leaf] = []
        """The leaves, in order."""
        self.objects: list[Any] = []
        """Objects that are neither leaves nor containers, opened here for the first time."""
        self._opened = opened
        self._seen: set[int] = set()

    def add(self, path: str, value: Any, depth: int = 0) -> None:
        """Collects the leaves of a value.

        Raises:
            RecordError: It is nested too deeply, or in itself.
        """
        if isinstance(value, torch.Tensor):
            self.found.append((path, value))
        elif value is None:
            return
        elif isinstance(value, _SCALARS):
            self.found.append((path, value))
        elif isinstance(value, _NAMED):
            self.found.append((path, str(value)))
        else:
            if depth > _DEEPEST:
                raise RecordError(f"{path[:80]} is nested too deeply, or in itself")
            self._open(path, value, depth + 1)

    def _open(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, dict | Mapping):
            for key, child in in_order(value):
                self.add(f"{path}.{key}", child, depth)
        elif isinstance(value, tuple | list | deque):
            for index, child in enumerate(value):
                self.add(f"{path}.{index}", child, depth)
        elif isinstance(value, set | frozenset):  # whose order is that of hashes, and of addresses for tensors
            plain = sorted((one for one in value if isinstance(one, _SCALARS)), key=repr)
            for index, child in enumerate(plain):
                self.add(f"{path}.{index}", child, depth)
        elif isinstance(value, _CLOSED):
            return
        elif dataclasses.is_dataclass(value):
            for one in dataclasses.fields(value):
                self.add(f"{path}.{one.name}", getattr(value, one.name, None), depth)
        elif id(value) not in self._opened:
            self._open_object(path, value, 0)
            self.objects.append(value)

    def _open_object(self, path: str, value: Any, depth: int) -> None:
        """The tensors in an object's attributes, and in those of the objects there."""
        if isinstance(value, torch.Tensor | np.ndarray):
            self.found.append((path, value))
            return
        if depth > _DEEPEST_OBJECT or value is None or isinstance(value, (*_SCALARS, *_CLOSED)):
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        for name, child in _children(value):
            self._open_object(f"{path}.{name}", child, depth + 1)


def _children(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return in_order(value)
    if isinstance(value, tuple | list | deque):
        return [(str(index), child) for index, child in enumerate(value)]
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    found = [(name, getattr(value, name)) for name in slots if isinstance(name, str) and hasattr(value, name)]
    return [*found, *getattr(value, "__dict__", {}).items()]
