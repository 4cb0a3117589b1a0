"""What optimizers do to attached parameters: gradients before and after clipping, the norm, the state, the weights.

Steps are seen by the hooks that torch has for all optimizers, clipping by standing in for the function that every call
of ``torch.nn.utils.clip_grad_norm_`` ends in.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import torch
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from probe.collect.trace.events import Recorder
from probe.collect.trace.items import Leaf, Leaves
from probe.collect.trace.registry import NamedParameter, Registry
from probe.language import tell

_CLIP = "_clip_grads_with_norm_"


class Optimizers:
    """Watches the steps of all optimizers.

    Args:
        recorder: Takes the events.
        registry: Says which parameters are attached, and what they are called.
        reduced: Models whose reduced gradients are events already.
        stop: Takes errors.
    """

    def __init__(
        self, recorder: Recorder, registry: Registry, reduced: Container[str], stop: Callable[[Exception], None]
    ) -> None:
        self._recorder = recorder
        self._registry = registry
        self._reduced = reduced
        self._stop = stop
        self._clipped: set[str] = set()
        self._on = True
        self._hooks = [
            register_optimizer_step_pre_hook(lambda optimizer, *_: self._safely(self._before, optimizer)),
            register_optimizer_step_post_hook(lambda optimizer, *_: self._safely(self._after, optimizer)),
        ]
        self._clip = getattr(clip_grad, _CLIP, None)
        self._stand_in = self._watched(self._clip) if self._clip is not None else None
        if self._stand_in is not None:
            setattr(clip_grad, _CLIP, self._stand_in)

    def restore(self) -> None:
        """Takes the hooks away."""
        self._on = False
        for hook in self._hooks:
            hook.remove()
        if self._stand_in is not None and getattr(clip_grad, _CLIP) is self._stand_in:
            setattr(clip_grad, _CLIP, self._clip)

    def _watched(self, clip: Any) -> Any:
        def clip_grads(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._on:
                return clip(parameters, max_norm, total_norm, *args, **kwargs)
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            self._safely(self._before_clipping, parameters, total_norm)
            result = clip(parameters, max_norm, total_norm, *args, **kwargs)
            self._safely(self._after_clipping, parameters)
            return result

        return clip_grads

    def _safely(self, record: Callable[..., None], *args: Any) -> None:
        if not self._on:
            return
        try:
            record(*args)
        except Exception as error:  # noqa: BLE001  (the probe says what becomes of it)
            self._stop(error)

    def _before_clipping(self, parameters: list[torch.Tensor], norm: Any) -> None:
        for role, named in self._by_role(parameters).items():
            self._gradients(role, named, "gradients")
            self._emit(role, "grad_norm", [("", norm)])

    def _after_clipping(self, parameters: list[torch.Tensor]) -> None:
        for role, named in self._by_role(parameters).items():
            self._clipped.add(role)
            self._emit(role, "clipped", [(path, one.parameter.grad) for path, one in named])

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        for role, named in self._by_role(_parameters(optimizer)).items():
            if role in self._clipped:  # what was done to them since would show
                self._clipped.discard(role)
                self._emit(role, "clipped", [(path, one.parameter.grad) for path, one in named])
            else:
                self._gradients(role, named, "gradients")

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        for role, named in self._by_role(_parameters(optimizer)).items():
            leaves = Leaves(set())
            for index, group in enumerate(optimizer.param_groups):
                leaves.add(f"groups.{index}", {key: value for key, value in group.items() if key != "params"})
            for path, one in named:
                state = optimizer.state.get(one.parameter)
                if state:
                    leaves.add(path, state)
            self._emit(role, "state", leaves.found)
            self._emit(role, "weights", [(path, one.parameter) for path, one in named])

    def _gradients(self, role: str, named: list[tuple[str, NamedParameter]], what: str) -> None:
        """The gradients as the update finds them; where no other event has them reduced, one by one too."""
        items = self._items(role, [(path, one.parameter.grad) for path, one in named])
        shards = {path for path, one in named if self._registry.sharded and hasattr(one.parameter, "to_local")}
        if role not in self._reduced and _of_several_ranks():
            for path, dtype, shape, digest in items:  # nothing runs in between: hashed once
                if path in shards:
                    continue
                self._recorder.emit(
                    "param_grad", f"{role}.{path}", None, [["", dtype, shape, digest]], note=tell("reduced")
                )
        self._recorder.emit("optimizer", f"{role}:{what}", None, items)

    def _emit(self, role: str, what: str, leaves: list[Leaf]) -> None:
        self._recorder.emit("optimizer", f"{role}:{what}", None, self._items(role, leaves))

    def _items(self, role: str, leaves: list[Leaf]) -> list[Any]:
        return self._recorder.items(role, [leaf for leaf in leaves if leaf[1] is not None])

    def _by_role(self, parameters: list[torch.Tensor]) -> dict[str, list[tuple[str, NamedParameter]]]:
        found: dict[str, list[tuple[str, NamedParameter]]] = {}
        stage = self._recorder.place.stage
        for parameter in parameters:
            named = self._registry.parameter(parameter)
            if named is not None:
                role, path = named.in_stage(stage)
                found.setdefault(role, []).append((path, named))
        for group in found.values():  # who hands over a set has them in any order, which changes none of them
            group.sort(key=lambda one: one[0])
        return found


def _of_several_ranks() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]
