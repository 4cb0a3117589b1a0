"""Names of what is attached: modules and parameters, by role. Renewed at each stage, since models change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from probe.collect.trace.internals import is_sharded
from probe.types import roles_of_stage


@dataclass
class NamedModule:
    """A module and its names.

    Example:
        >>> NamedModule(torch.nn.Linear(1, 1), {"actor": "actor.head"}).in_stage("actor_update")
        ('actor', 'actor.head')
    """

    module: torch.nn.Module
    names: dict[str, str]
    """``role.dotted.module`` by role: two roles may share a module."""
    sharded: bool = False
    """Whether it sees whole weights only while it runs."""

    def in_stage(self, stage: str | None) -> tuple[str, str]:
        """Role and name: of the role that the stage runs, else of the first that was attached."""
        return chosen(self.names, stage)


@dataclass
class NamedParameter:
    """A parameter and its names.

    Example:
        >>> weight = torch.nn.Parameter(torch.zeros(1))
        >>> NamedParameter(weight, {"actor": "head.weight"}).in_stage(None)
        ('actor', 'head.weight')
    """

    parameter: torch.nn.Parameter
    names: dict[str, str]
    """Dotted name in the model, by role."""

    def in_stage(self, stage: str | None) -> tuple[str, str]:
        """Role and name: of the role that the stage runs, else of the first that was attached."""
        return chosen(self.names, stage)


def chosen(names: dict[str, str], stage: str | None) -> tuple[str, str]:
    """Role and name by which something goes in a stage."""
    if stage is not None and len(names) > 1:
        for role in roles_of_stage(stage):
            if role in names:
                return role, names[role]
    return next(iter(names.items()))


@dataclass
class Registry:
    """All modules and parameters of the attached models.

    Example:
        >>> registry = Registry()
        >>> registry.renew({"actor": torch.nn.Sequential(torch.nn.Linear(1, 1))})
        >>> [named.names["actor"] for named in registry.modules.values()]
        ['actor', 'actor.0']
    """

    modules: dict[int, NamedModule] = field(default_factory=dict)
    """By id; the module is held, so that no other gets its id."""
    parameters: dict[int, NamedParameter] = field(default_factory=dict)
    """By id, as above."""
    sharded: bool = False
    """Whether any module sees whole weights only while it runs."""

    def renew(self, models: Mapping[str, torch.nn.Module]) -> None:
        """Reads the names anew.

        Args:
            models: Role to model.
        """
        modules: dict[int, NamedModule] = {}
        parameters: dict[int, NamedParameter] = {}
        for role, model in models.items():
            for name, module in model.named_modules():
                full = f"{role}.{name}" if name else role
                named = modules.setdefault(id(module), NamedModule(module, {}, is_sharded(module)))
                named.names.setdefault(role, full)
            for name, parameter in model.named_parameters():
                parameters.setdefault(id(parameter), NamedParameter(parameter, {})).names.setdefault(role, name)
        self.modules, self.parameters = modules, parameters
        self.sharded = any(named.sharded for named in modules.values())

    def module(self, module: torch.nn.Module) -> NamedModule | None:
        """What a module is called; None when it is not attached."""
        named = self.modules.get(id(module))
        return named if named is not None and named.module is module else None

    def parameter(self, parameter: object) -> NamedParameter | None:
        """What a parameter is called; None when it is not attached."""
        named = self.parameters.get(id(parameter))
        return named if named is not None and named.parameter is parameter else None


def gathered_parameters(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    """The parameters that a sharded module gathers: its own, and those of modules in it that do not by themselves.

    Returns:
        Dotted names in the module, and the parameters as they are now.
    """
    found: list[tuple[str, torch.nn.Parameter]] = []
    waiting: list[tuple[str, torch.nn.Module]] = [("", module)]
    while waiting:
        prefix, module = waiting.pop(0)
        found += [(f"{prefix}{name}", one) for name, one in module.named_parameters(recurse=False)]
        inner = [(f"{prefix}{name}.", child) for name, child in module.named_children() if not is_sharded(child)]
        waiting = [*inner, *waiting]
    return found
