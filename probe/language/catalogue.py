"""The catalogue: ``zh-CN.json``, each English template with its Chinese.

Text that comes from a file (a verdict, a trace, the index of checks) is English that no longer knows its template:
``recall`` finds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any

from probe.language.choice import Language, language
from probe.language.text import Text, join, tell

CATALOGUE = "zh-CN.json"
_LEAST, _LEAST_IN_FRONT = 6, 3
"""Fewest letters of its own that a template needs to be recognised; the second where it begins with them."""
_DEEPEST = 6
_LONGEST = 5_000
"""Longer text is not looked at."""


@lru_cache(maxsize=1)
def catalogue() -> MappingProxyType[str, str]:
    """Every English template with its Chinese."""
    return MappingProxyType(json.loads(Path(__file__).with_name(CATALOGUE).read_text(encoding="utf-8")))


def say(text: str, spoken: Language) -> str:
    """A text in a language. What is no ``Text`` stays as it is: it is a name, a value or code.

    Args:
        text: The text.
        spoken: The language.

    Example:
        >>> say(tell("all the same"), "en")
        'all the same'
    """
    if not isinstance(text, Text):
        return text
    if spoken == "en":
        return str.__str__(text)  # without its template
    known = catalogue()
    return text.said_by(lambda template: known.get(template, template))


def said(text: str) -> str:
    """A text in the language that is spoken here."""
    return say(text, language())


def recall(text: str) -> str:
    """Text from a file as ``Text``, where its template is known; else as it is.

    Example:
        >>> recall("all the same").template
        'all the same'
    """
    return _recalled(text, 0) or text


def _recalled(text: str, depth: int) -> Text | None:
    if isinstance(text, Text):
        return text
    if text in catalogue():
        return Text(text)
    if depth > _DEEPEST or len(text) > _LONGEST:
        return None
    for template, pattern in _patterns():
        if (match := pattern.fullmatch(text)) is not None:
            inner = {name: _recalled(value, depth + 1) or _AsItIs(value) for name, value in match.groupdict().items()}
            return tell(template, **inner)
    parts = text.split("; ")
    if len(parts) > 1:
        known = [_recalled(part, depth + 1) for part in parts]
        if any(known):
            return join("; ", (one or part for one, part in zip(known, parts, strict=True)))
    return None


class _AsItIs(str):
    """A value that was formatted before."""

    __slots__ = ()

    def __format__(self, spec: str) -> str:
        return str(self)


@lru_cache(maxsize=1)
def _patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Templates that can be recognised, with a pattern for what each makes.

    Those that begin with text of their own come first, and of them those with most of it.
    """
    found = []
    for template in catalogue():
        pieces = list(_pieces(template))
        own = "".join(text for kind, text in pieces if kind == "text")
        letters = sum(c.isalpha() for c in own)
        inside = bool(pieces) and pieces[0][0] == "value"
        if letters >= (_LEAST if inside else _LEAST_IN_FRONT) and any(kind == "value" for kind, _ in pieces):
            found.append((inside, -letters, -len(own), template, re.compile("".join(_patterns_of(pieces)), re.DOTALL)))
    return tuple((template, pattern) for *_, template, pattern in sorted(found, key=lambda one: one[:3]))


def _pieces(template: str) -> Iterator[tuple[str, str]]:
    for text, field, *_ in Formatter().parse(template):
        if text:
            yield "text", text
        if field is not None:
            yield "value", field


def _patterns_of(pieces: list[tuple[str, str]]) -> Iterator[str]:
    seen: set[str] = set()
    for kind, text in pieces:
        if kind == "text":
            yield re.escape(text)
        else:
            yield f"(?P={text})" if text in seen else f"(?P<{text}>.+?)"
            seen.add(text)


def fields_of(template: str) -> dict[str, Any]:
    """The names of a template's values, each with how it is formatted."""
    return {field: f"{conversion or ''}:{spec}" for _, field, spec, conversion in Formatter().parse(template) if field}
