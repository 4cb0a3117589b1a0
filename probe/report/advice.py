"""What to do next, by verdict and cause."""

from __future__ import annotations

from typing import Any

from probe.language import Text, join, recall, tell


def advice(document: dict[str, Any]) -> Text:
    """What somebody who reads a verdict should do next, in a sentence or two.

    Args:
        document: The content of ``verdict.json``.
    """
    verdict = document["verdict"]
    if verdict in ("identical", "equivalent"):
        return tell("Nothing.")
    if verdict == "inconclusive":
        if document["configurations"]["different"]:
            return tell(
                "Make the two runs the same experiment, or name what is meant to differ in check.allow_different."
            )
        return tell("Read the error and the trainer's log, mend what failed, and check again.")
    first = recall(document["hints"][0]["text"]) if document["hints"] else tell("Read the report.")
    if document["layers"]["reproduced"] is False:
        return tell("It is intermittent: check again with more steps. {hint}", hint=first)
    return join("", [first])


def hint_line(document: dict[str, Any]) -> str | None:
    """The closest hint and its source in one line, for a terminal; None where nothing differs.

    Args:
        document: The content of ``verdict.json``.
    """
    if not document["hints"]:
        return None
    return tell("what to do: {advice} ({source})", advice=advice(document), source=document["hints"][0]["source"])
