"""Gradients: what arrives at a module's outputs, what the module passes on to its inputs, what parameters collect.

Only hooks on tensors and on nodes of the autograd graph: module backward hooks, and aliases of the inputs, change the
order in which gradients are summed. What a module passes on to an input that others use too is read at the nodes inside
the module whose edges lead to where the input came from; each edge's part is an event.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge

from probe.collect.trace.capture import Capture
from probe.collect.trace.events import Recorder
from probe.collect.trace.internals import (
    NO_SEQUENCE,
    changed_in_place,
    next_sequence_number,
    sequence_number,
    version,
    view_base,
)
from probe.collect.trace.items import Leaf
from probe.collect.trace.reduction import Reductions
from probe.collect.trace.registry import Registry
from probe.language import tell

_MOST_NODES = 100_000
"""Nodes that are looked at for one call."""

Leaving = tuple[Node, int, Node, int]
"""An edge that leads out of a module: node and position of the edge in it, target and its output's number."""


@dataclass
class Edges:
    """Where a call's inputs come from in the autograd graph, and what the calls inside it did.

    Example:
        >>> Edges(first=7).inputs
        {}
    """

    first: int
    """Number of the first node that is made inside."""
    inputs: dict[tuple[int, int], str] = field(default_factory=dict)
    """Path of an input by its edge: id of the node, number of its output."""
    held: list[Node] = field(default_factory=list)
    """Those nodes, so that no others get their ids."""
    late: list[tuple[str, torch.Tensor, int]] = field(default_factory=list)
    """Inputs whose node must not be asked for yet, with their versions."""
    targets: set[int] = field(default_factory=set)
    """Ids of leaves' nodes that are inputs here or of an enclosing call."""
    children: dict[int, list[Leaving]] = field(default_factory=dict)
    """For an output node of a call inside: the edges that lead out of that call."""


class Gradients:
    """Watches gradients.

    Args:
        recorder: Takes the events.
        registry: Says what parameters are called.
        stop: Takes errors.
        capture: Captures the gradients of one call; None captures none.
    """

    def __init__(
        self,
        recorder: Recorder,
        registry: Registry,
        stop: Callable[[Exception], None],
        capture: Capture | None = None,
    ) -> None:
        self.on = True
        self.reductions = Reductions(recorder, registry, stop)
        self._capture = capture
        self._recorder = recorder
        self._registry = registry
        self._stop = stop
        self._parameters: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}

    # ---- parameters ----

    def watch_parameters(self) -> None:
        """Watches what the parameters of the registry collect."""
        for named in list(self._registry.parameters.values()):
            if named.parameter.requires_grad and not torch.nn.parameter.is_lazy(named.parameter):
                self.watch_parameter(named.parameter)

    def watch_parameter(self, parameter: torch.Tensor, name: str | None = None) -> None:
        """Watches one parameter.

        Args:
            parameter: A leaf.
            name: What it is called; None where the registry says so.
        """
        known = self._parameters.get(id(parameter))
        if known is not None and known[0]() is parameter:
            return

        def collected(leaf: torch.Tensor) -> None:
            called = name or self._called(leaf)
            if self.on and called is not None:
                # FSDP2 calls this for a shard too, once its gradient is reduced
                reduced = tell("reduced") if self._registry.sharded and hasattr(leaf, "to_local") else None
                self._emit("param_grad", called, None, [("", leaf.grad)], note=reduced)
                self.reductions.collected(called.partition(".")[0])

        handle = parameter.register_post_accumulate_grad_hook(collected)
        self._parameters[id(parameter)] = (weakref.ref(parameter), handle)

    def _called(self, leaf: torch.Tensor) -> str | None:
        named = self._registry.parameter(leaf)
        return None if named is None else ".".join(named.in_stage(self._recorder.place.stage))

    def restore(self) -> None:
        """Takes the hooks on parameters away. Those on graphs go with the graphs, and record no more."""
        self.on = self.reductions.on = False
        for reference, handle in self._parameters.values():
            if reference() is not None:
                handle.remove()
        self._parameters.clear()

    # ---- modules ----

    def enter(self, found: list[Leaf], outer: list[Edges | None]) -> Edges | None:
        """Notes where the inputs of a call come from; None while no graph is made.

        Args:
            found: The inputs.
            outer: The same of the enclosing calls.
        """
        if not torch.is_grad_enabled():
            return None
        edges = Edges(next_sequence_number())
        if outer and outer[-1] is not None:
            edges.targets = outer[-1].targets
        for path, tensor in found:
            if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad:
                continue
            if changed_in_place(view_base(tensor)):
                edges.late.append((path, tensor, version(tensor)))
            else:
                _add_edge(edges, path, tensor)
        return edges

    def leave(self, name: str, call: int, edges: Edges | None, found: list[Leaf], outer: Edges | None) -> None:
        """Watches the gradients of a call's outputs, and of the edges to its inputs.

        Args:
            name: The module's name.
            call: The call's number.
            edges: What ``enter`` gave.
            found: The outputs.
            outer: What ``enter`` gave of the enclosing call.
        """
        if edges is None:
            return
        ends: list[Node] = []
        for path, tensor in found:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf:
                ends += self._watch_output(name, call, edges, path, tensor)
        for path, tensor, before in edges.late:
            if version(tensor) == before:
                _add_edge(edges, path, tensor)
            else:
                note = tell("{path}: a view that was changed in place", path=path)
                self._recorder.emit("not_observed", name, call, [], note=note)
        ends = [node for node in ends if edges.first <= sequence_number(node) < NO_SEQUENCE]
        if not ends or not (edges.inputs or outer is not None):
            return
        sources, leaving = _walk(edges, ends)
        for node, paths in sources.values():
            self._watch_source(name, call, node, paths)
        if outer is not None:
            for node in ends:
                outer.children[id(node)] = leaving
            outer.held += ends  # until the enclosing call ends

    def _watch_output(self, name: str, call: int, edges: Edges, path: str, tensor: torch.Tensor) -> list[Node]:
        """Watches the gradient that arrives at an output. Returns the node from which the module's graph starts."""
        arrived = [False]
        base = view_base(tensor)
        unasked = changed_in_place(base)

        def hook(gradient: torch.Tensor) -> None:
            arrived[0] = True
            self._emit("grad_output", name, call, [(path, gradient)])

        if not unasked:
            tensor.register_hook(hook)
        start = None if base is None else base.grad_fn
        if base is None or start is None:
            return [] if tensor.grad_fn is None else [tensor.grad_fn]
        # an operation in place on the view drops the hook above without a word: then the base's node tells
        whole = base.numel() == tensor.numel() and sequence_number(start) >= edges.first
        number = base.output_nr

        def base_hook(_: Any, gradients: tuple[torch.Tensor | None, ...]) -> None:
            if arrived[0] or not self.on:
                return
            if whole:
                self._emit("grad_output", name, call, [(path, gradients[number])])
            else:
                note = tell(
                    "{path}: its gradient, since it is a view of what was changed in place, or had none", path=path
                )
                self._recorder.emit("not_observed", name, call, [], note=note)

        start.register_hook(base_hook)
        if unasked or tensor.grad_fn is None:
            return [start]
        return [tensor.grad_fn]

    def _watch_source(self, name: str, call: int, node: Node, paths: list[tuple[int, str]]) -> None:
        def hook(gradients: tuple[torch.Tensor | None, ...], _: Any) -> None:
            self._emit("grad_input", name, call, [(path, gradients[index]) for index, path in paths])

        node.register_hook(hook)

    def _emit(self, kind: str, name: str, call: int | None, leaves: list[Leaf], **more: Any) -> None:
        if not self.on:
            return
        try:
            items = self._recorder.items(name, [leaf for leaf in leaves if leaf[1] is not None])
            self._recorder.emit(kind, name, call, items, **more)
            if self._capture is not None:
                self._capture.gradient(self._recorder.place, kind, name, call, leaves)
        except Exception as error:  # noqa: BLE001  (the probe says what becomes of it)
            self._stop(error)


def _add_edge(edges: Edges, path: str, tensor: torch.Tensor) -> None:
    edge = get_gradient_edge(tensor)
    edges.inputs.setdefault((id(edge.node), edge.output_nr), path)
    edges.held.append(edge.node)
    base = view_base(tensor)
    if base is not None and base.grad_fn is not None and base.numel() == tensor.numel():
        # an operation in place on the view leads to its base
        edges.inputs.setdefault((id(base.grad_fn), base.output_nr), path)
        edges.held.append(base.grad_fn)
    if sequence_number(edge.node) >= NO_SEQUENCE:
        edges.targets = {*edges.targets, id(edge.node)}


def _walk(edges: Edges, ends: list[Node]) -> tuple[dict[int, tuple[Node, list[tuple[int, str]]]], list[Leaving]]:
    """Follows a call's graph from its outputs to its inputs; graphs of calls inside it are jumped over.

    Returns:
        Nodes with an edge to an input, with the edges' positions and the inputs' paths; and all edges that lead out.
    """
    sources: dict[int, tuple[Node, list[tuple[int, str]]]] = {}
    leaving: list[Leaving] = []
    waiting, seen = list(ends), {id(node) for node in ends}
    held: list[Node] = []  # nodes keep their ids while they are held
    taken: set[tuple[int, int]] = set()
    while waiting and len(held) < _MOST_NODES:
        node = waiting.pop()
        held.append(node)
        jump = edges.children.get(id(node))
        if jump is None:
            targets: Any = node.next_functions
            jump = [(node, index, target, number) for index, (target, number) in enumerate(targets) if target]
        for edge in jump:
            source, index, target, number = edge
            if (id(source), index) in taken:
                continue
            taken.add((id(source), index))
            path = edges.inputs.get((id(target), number))
            order = sequence_number(target)
            if path is not None:
                sources.setdefault(id(source), (source, []))[1].append((index, path))
                leaving.append(edge)
            elif order >= NO_SEQUENCE:
                if id(target) in edges.targets:
                    leaving.append(edge)
            elif order < edges.first:
                leaving.append(edge)
            elif id(target) not in seen:
                seen.add(id(target))
                waiting.append(target)
    return sources, leaving
