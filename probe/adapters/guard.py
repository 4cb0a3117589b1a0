"""What an adapter does about an error while it tells the probe something."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from probe.errors import FirstdiffError


def guarded(
    call: Callable[..., Any], args: tuple[Any, ...], stop: Callable[[], None], give_up: Callable[[Exception], None]
) -> Any:
    """What cannot be understood ends the observation, and not the script; what cannot be written is the probe's.

    Args:
        call: Tells the probe.
        args: Its arguments.
        stop: Ends the observation.
        give_up: Is told what could not be understood.

    Returns:
        What the call returns; None where it gave up.

    Raises:
        FirstdiffError: The probe's own.
        OSError: The same.
    """
    try:
        return call(*args)
    except (FirstdiffError, OSError):
        stop()
        raise
    except Exception as error:  # noqa: BLE001  (whatever a script's objects raise; it is told)
        stop()
        give_up(error)
        return None
