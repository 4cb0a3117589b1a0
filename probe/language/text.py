"""Text that is English, and keeps its template and values so that it can be said in another language."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any


class Text(str):
    """A sentence, or a part of one.

    Args:
        template: Its English, with ``{name}`` for each value. Without values it is taken as it is.
        values: The values. Those that are ``Text`` themselves are said in the other language, too; all others are
            names, numbers or code, and stay as they are.

    Example:
        >>> Text("step {step} of {stage}", step=2, stage="actor_update")
        'step 2 of actor_update'
    """

    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, /, **values: Any) -> Text:
        """Formats the English."""
        values = {name: os.fspath(one) if isinstance(one, os.PathLike) else one for name, one in values.items()}
        self = super().__new__(cls, template.format(**values) if values else template)
        self.template = template
        self.values = values
        return self

    def __str__(self) -> str:
        """Itself: an error that is made of a sentence gives the sentence again."""
        return self

    def __add__(self, other: str) -> Text:
        """Both in a row."""
        return join("", (self, other))

    def __radd__(self, other: str) -> Text:
        """Both in a row."""
        return join("", (other, self))

    def __reduce__(self) -> tuple[Any, ...]:
        """For copies, and for other processes."""
        return _made, (type(self), self.template, self.values)

    def said_by(self, translate: Callable[[str], str]) -> str:
        """What it is in another language.

        Args:
            translate: Gives the template in that language.
        """
        template = translate(self.template)
        if not self.values:
            return template
        return template.format(
            **{name: one.said_by(translate) if isinstance(one, Text) else one for name, one in self.values.items()}
        )

    def changed(self, change: Callable[[str], str]) -> Text:
        """The same sentence with another text in place of each value that is a text.

        Args:
            change: Gives the other text.
        """
        values = {
            name: one.changed(change) if isinstance(one, Text) else change(one) if isinstance(one, str) else one
            for name, one in self.values.items()
        }
        return _made(type(self), self.template, values)


class Joined(Text):
    """Several texts in a row, with the same between them.

    Example:
        >>> Joined(", ", **{"0": "a", "1": "b"})
        'a, b'
    """

    def __new__(cls, template: str, /, **values: Any) -> Joined:
        """Puts the parts together."""
        self = str.__new__(cls, template.join(values.values()))
        self.template = template
        self.values = values
        return self

    def said_by(self, translate: Callable[[str], str]) -> str:
        """See ``Text``."""
        between = translate(self.template) if self.template else ""
        return between.join(one.said_by(translate) if isinstance(one, Text) else one for one in self.values.values())


def tell(template: str, /, **values: Any) -> Text:
    """A sentence, or a part of one; every template is in the catalogue.

    Args:
        template: Its English, with ``{name}`` for each value. Without values it is taken as it is.
        values: The values.

    Example:
        >>> tell("run {run}", run="a")
        'run a'
    """
    return Text(template, **values)


def join(between: str, parts: Iterable[str]) -> Text:
    """Several texts in a row.

    Args:
        between: What stands between them.
        parts: The texts.

    Example:
        >>> join("; ", [tell("one"), "two"])
        'one; two'
    """
    return Joined(between, **{str(number): part for number, part in enumerate(parts)})


def _made(kind: type[Text], template: str, values: dict[str, Any]) -> Text:
    return kind(template, **values)
