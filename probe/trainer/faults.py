"""Planted faults: real nondeterminism in one module, for demonstrations and tests.

A fault wraps a module's forward in a subclass put in the module's place, so that parameter names stay as they are. No
other part of the trainer knows of it.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable
from typing import Any

import torch

from probe.config import Fault
from probe.errors import ConfigError
from probe.trainer.progress import Progress

PARTS = 16
"""Partial results whose order of summation is drawn."""

_entropy = random.SystemRandom()


def plant(faults: list[Fault], models: dict[str, torch.nn.Module], progress: Progress, rank: int = 0) -> None:
    """Puts faults into modules.

    Args:
        faults: What to plant, and where.
        models: The trainer's models by role.
        progress: Tells a fault which step and stage is running.
        rank: This process.

    Raises:
        ConfigError: A model has no such module.
    """
    for index, fault in enumerate(faults):
        if fault.role not in models:
            raise ConfigError("", f"faults.{index}.role", f"this training has no {fault.role}")
        try:
            module = models[fault.role].get_submodule(fault.module)
        except AttributeError as error:
            names = [name for name, _ in models[fault.role].named_modules()]
            close = difflib.get_close_matches(fault.module, names, n=3, cutoff=0.7)
            problem = f"the {fault.role} has no module {fault.module!r}"
            problem += f"; did you mean {' or '.join(close)}?" if close else ""
            raise ConfigError("", f"faults.{index}.module", problem) from error
        if module is models[fault.role]:
            raise ConfigError("", f"faults.{index}.module", "names no module inside the model")
        if fault.rank is None or fault.rank == rank:
            _wrap(module, fault, progress)


def _wrap(module: torch.nn.Module, fault: Fault, progress: Progress) -> None:
    original = type(module)

    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        steps_agree = fault.step is None or fault.step == progress.step
        stages_agree = fault.stage is None or fault.stage == progress.stage
        run: Callable[..., Any] = original.forward
        if not (steps_agree and stages_agree):
            return run(self, *args, **kwargs)
        if fault.kind == "gradient_order":
            named = {key: _reordering_gradient(value) for key, value in kwargs.items()}
            return run(self, *map(_reordering_gradient, args), **named)
        if isinstance(self, torch.nn.Linear) and self.in_features > 1:
            return _split_k_linear(self, args[0] if args else kwargs["input"])
        return _resum(run(self, *args, **kwargs))

    module.__class__ = type(f"SumOrder{original.__name__}", (original,), {"forward": forward})


def _reordering_gradient(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.requires_grad:
        return value
    return _ReorderedGradient.apply(value)  # type: ignore[no-untyped-call]


class _ReorderedGradient(torch.autograd.Function):
    """Passes its input on, and a gradient whose parts were added in an order drawn from entropy."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor) -> torch.Tensor:
        del ctx
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        del ctx
        result: torch.Tensor = _resum(gradients[0])
        return result


def _shuffled(count: int) -> list[int]:
    order = list(range(count))
    _entropy.shuffle(order)
    return order


def _split_k_linear(linear: torch.nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    """A matrix product whose partial products over K are added in an order drawn from entropy.

    What a split-K kernel with atomic additions does.
    """
    size = -(-linear.in_features // PARTS)
    pieces = list(zip(inputs.split(size, dim=-1), linear.weight.split(size, dim=1), strict=True))
    order = _shuffled(len(pieces))
    total = torch.nn.functional.linear(*pieces[order[0]])
    for index in order[1:]:
        total = total + torch.nn.functional.linear(*pieces[index])
    return total if linear.bias is None else total + linear.bias


def _resum(output: Any) -> Any:
    """The first floating tensor of an output, replaced by the sum of weighted parts of itself in an entropic order.

    Under autocast the sum is taken in autocast's precision, as the operations around it are.
    """
    if isinstance(output, tuple):
        return (_resum(output[0]), *output[1:])
    if isinstance(output, dict):  # transformers' ModelOutput
        first = next(iter(output))
        output[first] = _resum(output[first])
        return output
    kind = output.device.type
    precision = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else output.dtype
    parts = [(output * (2 * (index + 1) / (PARTS * (PARTS + 1)))).to(precision) for index in range(PARTS)]
    order = _shuffled(PARTS)
    total = parts[order[0]]
    for index in order[1:]:
        total = total + parts[index]
    return total.to(output.dtype)
