"""The final states of flow runs: a verdict's name, in the colour of its type.

============  =========  =====================================================================================
name          type       why
============  =========  =====================================================================================
Identical     COMPLETED  the check did what it is for, and all is well
Equivalent    COMPLETED  the same
Divergent     FAILED     somebody has to look: it is red, counts as failed on every page, and alerts as such
Inconclusive  FAILED     there is no answer, which is no good news; CRASHED would be retried, and is not what happened
Refused       FAILED     a parameter is wrong; nothing was run
============  =========  =====================================================================================

A completed state returns the content of ``verdict.json``. A failed one may carry nothing but an exception: ``Found``
carries that content, so whoever calls the flow with ``return_state=True`` reads it by ``document_of``. People read it
in the run's artifacts and in the check's folder.
"""

from __future__ import annotations

from typing import Any, cast

from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from probe.errors import FirstdiffError, InconclusiveError
from probe.language import said, tell
from probe.report import last_line

REFUSED = "Refused"
BY_SEVERITY = ("divergent", "inconclusive", "equivalent", "identical")
"""Of several verdicts, the first in this order is that of all."""
_LONGEST = 500


class Found(Exception):
    """A check ended in a failed state, and found this.

    Args:
        document: The content of ``verdict.json``.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        super().__init__(last_line(document, None))


def state_of(document: dict[str, Any]) -> State[Any]:
    """The final state of a check or a comparison.

    Args:
        document: The content of ``verdict.json``.
    """
    return verdict_state(document["verdict"], last_line(document, None), document, Found(document))


def verdict_state(verdict: str, sentence: str, result: Any, failure: Exception) -> State[Any]:
    """The final state that a verdict has.

    Args:
        verdict: The verdict.
        sentence: What the page shows beside it, in the language that is spoken here.
        result: What a completed state returns.
        failure: What a failed state raises.
    """
    name = verdict.capitalize()
    if verdict in ("identical", "equivalent"):
        return Completed(name=name, message=_short(sentence), data=result)
    return Failed(name=name, message=_short(sentence), data=failure)


def state_of_error(error: FirstdiffError | OSError, place: str = "") -> State[Any]:
    """The final state of a flow that could not do what it was asked for.

    Args:
        error: What went wrong: it is one sentence for a person.
        place: What could not be written, for an error of the operating system.
    """
    if isinstance(error, OSError):
        where = f"{place}: " * bool(place)
        why = f"{where}{error.strerror or error}"
        error = InconclusiveError(tell("{why}; no verdict could be written", why=why))
    name = "Inconclusive" if isinstance(error, InconclusiveError) else REFUSED
    return Failed(name=name, message=_short(said(str(error))), data=error)


def document_of(state: State[Any]) -> dict[str, Any]:
    """What a flow found, from its final state.

    Raises:
        FirstdiffError: It could not do what it was asked for.
    """
    result = state.result(raise_on_failure=False)
    if isinstance(result, Found):
        return result.document
    if isinstance(result, BaseException):
        raise result
    return cast("dict[str, Any]", result)


def _short(sentence: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in " ".join(sentence.split()))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
