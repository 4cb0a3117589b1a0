"""What to do next, by verdict and cause."""

from __future__ import annotations

from typing import Any


def advice(document: dict[str, Any]) -> str:
    """What somebody who reads a verdict should do next, in a sentence or two.

    Args:
        document: The content of ``verdict.json``.
    """
    verdict = document["verdict"]
    if verdict in ("identical", "equivalent"):
        return "Nothing."
    if verdict == "inconclusive":
        if document["configurations"]["different"]:
            return "Make the two runs the same experiment, or name what is meant to differ in check.allow_different."
        return "Read the error and the trainer's log, mend what failed, and check again."
    first = document["hints"][0]["text"] if document["hints"] else "Read the report."
    if document["layers"]["reproduced"] is False:
        return f"It is intermittent: check again with more steps. {first}"
    return str(first)


def hint_line(document: dict[str, Any]) -> str | None:
    """The closest hint and its source in one line, for a terminal; None where nothing differs.

    Args:
        document: The content of ``verdict.json``.
    """
    if not document["hints"]:
        return None
    return f"what to do: {advice(document)} ({document['hints'][0]['source']})"
