"""What stands in a class in the place of its ``forward`` while modules are watched."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from torch._C._dynamo import eval_frame as frames


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

    def __get__(self, instance: object | None, owner: type | None = None) -> Any:
        """The method of an instance, the function of the class."""
        watching: Any = self._watching
        return self.own if instance is None else watching.__get__(instance, owner)


def _leave_alone(code: CodeType) -> None:
    """Keeps torch.compile from compiling a function by itself.

    It would make of the method returned a look-up of ``forward`` in the instance: this function again, without end.
    """
    if hasattr(frames, "skip_code"):  # in older torch
        frames.skip_code(code)
        return
    action = frames._FrameAction  # noqa: SLF001  (torch has no public name for it)
    strategy = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)  # noqa: SLF001
    frames.set_code_exec_strategy(code, strategy)


_leave_alone(Watched.__get__.__code__)
