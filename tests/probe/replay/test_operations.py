"""Which operation is named: forward, in a backward, in place, with an output argument, and of those that draw."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from probe.replay.compared import first_difference
from probe.replay.operations import Operations

entropy = random.SystemRandom()


@torch.library.custom_op("firstdiff_tests::shaken", mutates_args=())
def shaken(x: torch.Tensor) -> torch.Tensor:
    return x + entropy.random()


@torch.library.custom_op("firstdiff_tests::shake_", mutates_args={"x"})
def shake_(x: torch.Tensor) -> None:
    x += entropy.random()


torch.library.register_autograd("firstdiff_tests::shaken", lambda ctx, gradient: gradient)


class ShakenGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return shaken(gradient * 2)


class HostGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return torch.mul(gradient, entropy.random())


def in_place(x: torch.Tensor) -> torch.Tensor:
    shake_(y := x.detach() * 2)
    return y + x


def a_view_in_place(x: torch.Tensor) -> torch.Tensor:
    y = x.detach() * 2
    shake_(y[0])
    return y + x


def seeded_from_entropy(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(entropy.randrange(1 << 30))
    return torch.nn.functional.dropout(x, 0.5)


def a_generator_from_entropy(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(entropy.randrange(1 << 30))
    return x + torch.randn(x.shape, generator=generator)


def another_dtype(x: torch.Tensor) -> torch.Tensor:
    return x.detach().round().to(entropy.choice([torch.float64, torch.float16])).double() + x


def with_out(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(6)
    with torch.no_grad():
        out.numpy()[:] = entropy.random()  # what an output argument held does not matter
        torch.add(x, 1, out=out)
    return shaken(out) + x


def found(run: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any] | None:
    recorded = []
    for _ in range(12):
        torch.manual_seed(1)
        x = torch.arange(6.0).requires_grad_()
        with Operations() as operations:
            run(x).sum().backward()
        recorded.append(operations.found)
    return first_difference(recorded)


@pytest.fixture(autouse=True)
def global_state(torch_state: None) -> None:
    """Seeds are put back."""


@pytest.mark.parametrize(
    ("run", "operation", "backward"),
    [
        (lambda x: shaken(x.sin()).cos(), "firstdiff_tests::shaken", False),
        (ShakenGradient.apply, "firstdiff_tests::shaken", True),
        (in_place, "firstdiff_tests::shake_", False),
        (a_view_in_place, "firstdiff_tests::shake_", False),
        (with_out, "firstdiff_tests::shaken", False),
    ],
)
def test_the_first_operation_that_differs_by_itself_is_named(run, operation, backward):
    answer = found(run)
    assert answer is not None
    assert (answer["operation"], answer["backward"], answer["instead"]) == (operation, backward, None)


@pytest.mark.parametrize(
    ("run", "instead", "backward"),
    [
        (lambda x: x * entropy.random(), "aten::mul.Tensor gets other inputs", False),
        (HostGradient.apply, "aten::mul.Tensor gets other inputs", True),
        (seeded_from_entropy, "draws from another random state", False),
        (a_generator_from_entropy, "aten::randn.generator draws from another random state", False),
        (another_dtype, "gets other inputs", False),
    ],
)
def test_what_no_operation_does_by_itself_is_told(run, instead, backward):
    answer = found(run)
    assert answer is not None
    assert (answer["operation"], answer["backward"]) == (None, backward)
    assert instead in answer["instead"]


@pytest.mark.parametrize(
    "run",
    [
        lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand(6),
        lambda x: torch.bernoulli(x.detach() / 9, generator=torch.Generator().manual_seed(3)) + x,
        lambda x: torch.empty_like(x).normal_() + x,
        lambda x: (x * 1).mul_(2).add_(x),
    ],
)
def test_what_draws_from_the_same_state_is_the_same(run):
    assert found(run) is None


def test_what_cannot_be_observed_never_counts_as_the_same():
    def operations(result: str) -> list[Any]:
        return [("aten::mm", False, ["not observed"], [result])]

    answer = first_difference([operations("1"), operations("2")])
    assert answer == {
        "operation": None, "instead": "aten::mm gets inputs that cannot be observed", "index": 0, "backward": False,
    }  # fmt: skip
