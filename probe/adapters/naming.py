"""What a script calls its modules and generators: found in the variables and attributes of whoever calls a module."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch

from probe.collect.ranks import unwrapped

_MOST_FRAMES = 40
_MOST_IN_A_CONTAINER = 64
_SAYS_NOTHING = ("self", "cls", "module", "mod", "m", "func", "fn", "layer", "_")
"""Variables that hold any module: where another holds it too, that one names it."""
_COMPILED = "OptimizedModule"
"""What ``torch.compile`` makes of a module: another way to run it, and not a model that it is a part of."""
_KEEPS_LOCALS = {"locals", "vars", "exec", "eval", "dir", "breakpoint"}
_OPTIMIZED = 0x0001
"""Flag of code whose variables are no dictionary."""
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


class Names:
    """The models of a script by role: a variable, an attribute, or else a class."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[torch.nn.Module], str, bool]] = {}
        self._roots: dict[str, weakref.ref[torch.nn.Module]] = {}
        self._generators: dict[str, Any] = {}
        self._loose = torch.nn.Module()

    def role_of(self, module: torch.nn.Module, frame: FrameType | None) -> tuple[str, bool, torch.nn.Module | None]:
        """The role of a module that is called and not by another one.

        Args:
            module: The module.
            frame: The caller.

        Returns:
            The role; whether a variable or an attribute names it; and the model to attach, None when it is attached.
        """
        plain = unwrapped(module)
        known = self._known.get(id(plain))
        if known is not None and known[0]() is plain:
            return known[1], known[2], None
        for role, reference in self._roots.items():
            root = reference()
            if root is not None and _holds(root, plain) and type(root).__name__ != _COMPILED:
                self._known[id(plain)] = (weakref.ref(plain), role, True)
                return role, True, None
        root, name = _found(module, plain, frame)
        role = self._free(name or type(unwrapped(root)).__name__, unwrapped(root))
        self._known[id(plain)] = (weakref.ref(plain), role, name is not None)
        self._roots[role] = weakref.ref(unwrapped(root))
        return role, name is not None, root

    @property
    def roles(self) -> list[str]:
        """The roles of all models that were named."""
        return [*self._roots, "loose"]

    def new_generators(self, frame: FrameType | None) -> Iterator[tuple[str, Any]]:
        """Generators in the variables of the callers that were not seen before, with their names."""
        for _, name, value in _variables(frame):
            for path, generator in _generators_in(name, value):
                if any(generator is one for one in self._generators.values()):
                    continue
                role = path
                number = 1
                while role in self._generators:
                    number += 1
                    role = f"{path}_{number}"
                self._generators[role] = generator
                yield role, generator

    def loose(self, optimizers: list[torch.optim.Optimizer]) -> torch.nn.Module | None:
        """A model of the tensors that optimizers update and that no known model holds, in the optimizers' order.

        Returns:
            None where there are no new ones.
        """
        roots = [root for reference in self._roots.values() if (root := reference()) is not None]
        held = {id(one) for root in (*roots, self._loose) for one in (*root.parameters(), *root.buffers())}
        count = len(list(self._loose.parameters())) + len(list(self._loose.buffers()))
        before = count
        for optimizer in optimizers:
            for tensor in (one for group in optimizer.param_groups for one in group["params"]):
                if id(tensor) in held:
                    continue
                held.add(id(tensor))
                if isinstance(tensor, torch.nn.Parameter):
                    self._loose.register_parameter(f"p{count}", tensor)
                else:
                    self._loose.register_buffer(f"p{count}", tensor)
                count += 1
        return self._loose if count > before else None

    def _free(self, name: str, root: torch.nn.Module) -> str:
        """A role that no other model has. What holds no weights is as good as another of its class and name."""
        number, role = 1, name
        while (reference := self._roots.get(role)) is not None:
            other = reference()
            if other is None or (type(other) is type(root) and is_empty(other) and is_empty(root)):
                break
            number += 1
            role = f"{name}_{number}"
        return role


def is_empty(module: torch.nn.Module) -> bool:
    """Whether a module has neither parameters nor buffers, like a loss."""
    return next(module.parameters(), None) is None and next(module.buffers(), None) is None


def _holds(root: torch.nn.Module, module: torch.nn.Module) -> bool:
    return any(one is module for one in root.modules())


def _found(
    module: torch.nn.Module, plain: torch.nn.Module, frame: FrameType | None
) -> tuple[torch.nn.Module, str | None]:
    """The model that a module belongs to, and what the script calls it; None where no variable holds it."""
    root: torch.nn.Module = module
    inner, named, place = plain, None, None
    for here, name, value in _variables(frame):
        if isinstance(value, torch.nn.Module):
            if value is module or unwrapped(value) is inner:
                found: str | None = name
            elif _holds(value, inner) and type(value).__name__ != _COMPILED:
                root, inner, named, place = value, unwrapped(value), None, None
                found = name
            else:
                continue
        else:
            found = _in(value, name, module, inner)
        if found is not None and found not in _SAYS_NOTHING and here is not place:
            # the script's own name for it rather than one of a function that it is handed to
            named, place = found, here
    return root, named


def _in(value: Any, name: str, module: torch.nn.Module, inner: torch.nn.Module) -> str | None:
    """The attribute or the entry of a container that holds a module."""
    if isinstance(value, (list, tuple)) and len(value) <= _MOST_IN_A_CONTAINER:
        entries: Iterator[tuple[Any, Any]] = iter(enumerate(value))
    elif type(value) is dict and len(value) <= _MOST_IN_A_CONTAINER:
        entries = iter(list(value.items()))
    elif name == "self" and not isinstance(value, torch.nn.Module):
        entries = iter(list(getattr(value, "__dict__", {}).items()))
    else:
        return None
    for key, held in entries:
        if held is module or (isinstance(held, torch.nn.Module) and unwrapped(held) is inner):
            return _identifier(str(key) if name == "self" else f"{name}_{key}")
    return None


def _identifier(text: str) -> str:
    made = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "_") else "_" for letter in text)
    made = made.strip("_")[:60] or "model"
    return made if not made[0].isdigit() else f"model_{made}"


def _variables(frame: FrameType | None) -> Iterator[tuple[FrameType, str, Any]]:
    """The variables of a frame and of its callers, the nearest first; not those of torch's code, or of ours."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith(("torch.", "importlib", __name__.partition(".")[0])):
            for name, value in _values(frame).items():
                if not name.startswith("__") and not _is_a_namespace(value):
                    yield frame, name, value
        frame = frame.f_back


def _is_a_namespace(value: Any) -> bool:
    """Whether it is the variables of a module: of whoever runs the script, as ``python -m`` and notebooks do."""
    return type(value) is dict and "__builtins__" in value


def _values(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame, without leaving behind the copy that Python before 3.13 keeps of them in it."""
    held: Mapping[str, Any] = frame.f_locals
    found = dict(held)
    code: CodeType = frame.f_code
    if sys.version_info < (3, 13) and code.co_flags & _OPTIMIZED and _KEEPS_LOCALS.isdisjoint(code.co_names):
        frame.f_locals.clear()  # else its tensors would live until the function ends
    return found


def _generators_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, _GENERATORS) and not isinstance(value, random.SystemRandom):
        yield _identifier(name), value
    elif isinstance(value, torch.utils.data.DataLoader):
        for path, holder in (("", value), (".sampler", getattr(value, "sampler", None))):
            generator = getattr(holder, "generator", None)
            if isinstance(generator, torch.Generator):
                yield f"{_identifier(name)}{path}", generator
