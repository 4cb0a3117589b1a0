"""What stands in a class, or on a module, in the place of ``forward`` while modules are watched."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from probe.collect.trace.internals import run_as_it_is

_OWN = "_firstdiff_own"
"""Attribute of a function that stands for another: that one."""


class Watched:
    """Instances get the function that watches, who asks the class gets the one that was there.

    So the class is as it was for code that looks at it: transformers' layers checkpoint only where the ``forward`` of
    their class is their own.

    Args:
        own: What the class shows.
        watching: What its instances are called with.

    Example:
        >>> class Module:
        ...     forward = Watched(len, lambda module: 3)
        >>> Module.forward is len, Module().forward()
        (True, 3)
    """

    def __init__(self, own: Any, watching: Callable[..., Any]) -> None:
        self.own = own
        self._watching = watching

    @run_as_it_is
    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """The method of an instance, the function of the class."""
        watching: Any = self._watching
        return self.own if instance is None else watching.__get__(instance, owner)


def watched_method(own: MethodType, forward: Callable[..., Any]) -> MethodType:
    """What stands on a module for a bound ``forward`` of its own: a copy of the module gets one of the copy.

    Args:
        own: What is there.
        forward: Observes the calls.
    """
    forward.__dict__[_OWN] = own.__func__
    return MethodType(forward, own.__self__)


def original(value: Any) -> Any:
    """What ``watched_method`` stands for; anything else as it is."""
    function = getattr(value, "__func__", None)
    own = getattr(function, "__dict__", {}).get(_OWN)
    return value if own is None else MethodType(own, value.__self__)
