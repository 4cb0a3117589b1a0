"""Words that programs read (a verdict, a status), and what people read in their place."""

from __future__ import annotations

from types import MappingProxyType

from probe.language.text import Text, tell

_VERDICTS = MappingProxyType(
    {
        "identical": tell("identical"),
        "equivalent": tell("equivalent"),
        "divergent": tell("divergent"),
        "inconclusive": tell("inconclusive"),
    }
)
_STATUSES = MappingProxyType(
    {
        "same": tell("same"),
        "different": tell("different"),
        "missing": tell("missing"),
        "extra": tell("extra"),
        "unreadable": tell("unreadable"),
        "not_compared": tell("not_compared"),
        "not_observed": tell("not_observed"),
        "none": tell("none"),
    }
)


def verdict_word(verdict: str) -> str:
    """A verdict for people.

    Example:
        >>> verdict_word("divergent")
        'divergent'
    """
    return _VERDICTS.get(verdict, verdict)


def status_word(status: str) -> str:
    """A status of a record or an event for people.

    Example:
        >>> status_word("extra")
        'extra'
    """
    return _STATUSES.get(status, status)


def counted(number: int, status: str) -> Text:
    """How many there are with a status.

    Example:
        >>> counted(3, "not_compared")
        '3 not compared'
    """
    match status:
        case "same":
            return tell("{number} same", number=number)
        case "different":
            return tell("{number} different", number=number)
        case "missing":
            return tell("{number} missing", number=number)
        case "extra":
            return tell("{number} extra", number=number)
        case "unreadable":
            return tell("{number} unreadable", number=number)
        case _:
            return tell("{number} not compared", number=number)
