"""The tree of modules that ran in a stage, with what differs in each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from probe.report.stage import SeenEvent, StageEvents

_OF_MODULES = frozenset({"forward_input", "forward_output", "grad_output", "grad_input"})
_OF_PARAMETERS = frozenset({"param_grad"})
_DIFFERING = ("different", "missing", "extra")
DEEPEST = 40
"""Deeper parts of a name are not taken apart."""


@dataclass(slots=True)
class Node:
    """A module.

    Example:
        >>> Node("actor.model.norm", 2).status
        'same'
    """

    name: str
    depth: int
    module: str | None = None
    """Class, where it is known."""
    events: int = 0
    differing: Counter[str] = field(default_factory=Counter)
    """Events that are not the same in both runs, by kind."""
    first: bool = False
    """Whether the first difference is in it."""
    leads: bool = False
    """Whether the first difference is in one of those below it."""
    children: dict[str, Node] = field(default_factory=dict, repr=False)

    @property
    def label(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2] if self.depth < DEEPEST else self.name

    @property
    def status(self) -> str:
        """``different`` where an event of its own is."""
        return "different" if self.differing else "same"


def tree_of(found: StageEvents) -> list[Node]:
    """The modules of a stage, each before those below it, in the order in which they ran; empty where none did.

    Args:
        found: What happened in the stage.
    """
    root = Node("", -1)
    for number, event in enumerate(found.events):
        name = _module_of(event)
        if name is None:
            continue
        node = _enter(root, name, number == found.first)
        node.events += 1
        node.module = event.module or node.module
        node.differing.update([event.kind] if event.status in _DIFFERING else [])
        node.first |= number == found.first
    return _flat(root)


def _module_of(event: SeenEvent) -> str | None:
    if event.kind in _OF_PARAMETERS:
        return event.name.rpartition(".")[0] or event.name
    return event.name if event.kind in _OF_MODULES else None


def _enter(root: Node, name: str, first: bool) -> Node:
    node, path = root, ""
    for depth, part in enumerate(name.split(".", DEEPEST)):
        path = f"{path}.{part}" if depth else part
        node = node.children.setdefault(part, Node(path, depth))
        node.leads |= first and path != name
    return node


def _flat(root: Node) -> list[Node]:
    nodes: list[Node] = []
    waiting = list(root.children.values())[::-1]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        waiting += list(node.children.values())[::-1]
    return nodes
