"""Which language people read: what was asked for, else a variable of the environment, else the locale."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, cast, get_args

from probe.errors import UsageError

Language = Literal["en", "zh"]
LANGUAGES: tuple[str, ...] = get_args(Language)
VARIABLE = "FIRSTDIFF_LANG"
"""Variable of the environment that says which, for commands and workers."""
_LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
"""Variables of the locale; the first that is set counts, as for gettext."""
_LANGUAGE: ContextVar[Language] = ContextVar("firstdiff_language", default="en")


def chosen_language(
    asked: str | None = None, environment: Mapping[str, str] | None = None, source: str = "--lang"
) -> Language:
    """The language to speak.

    Args:
        asked: What was asked for; None or empty where nothing was.
        environment: Variables of the environment; None for this process's.
        source: Where it was asked for, for an error.

    Raises:
        UsageError: There is no such language.

    Example:
        >>> chosen_language(None, {"LC_ALL": "", "LANG": "zh_CN.UTF-8"})
        'zh'
    """
    environment = os.environ if environment is None else environment
    for place, code in ((source, asked), (VARIABLE, environment.get(VARIABLE))):
        if code:
            if code not in LANGUAGES:
                raise UsageError(f"{place}: must be {' or '.join(LANGUAGES)}, not {code!r:.40}")
            return cast("Language", code)
    locale = next((value for name in _LOCALE if (value := environment.get(name))), "")
    return "zh" if locale.lower().startswith("zh") else "en"


@contextmanager
def speaking(spoken: Language) -> Iterator[None]:
    """Has ``said`` speak a language within it.

    Args:
        spoken: The language.
    """
    before = _LANGUAGE.set(spoken)
    try:
        yield
    finally:
        _LANGUAGE.reset(before)


def language() -> Language:
    """The language that is spoken here: English, unless ``speaking`` said otherwise."""
    return _LANGUAGE.get()
