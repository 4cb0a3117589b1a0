"""What a comparison says of dumps that were unpacked for it, in the names of the dumps that people know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from probe.errors import DumpError
from probe.language import Text
from probe.report.verdict import CheckResult
from probe.store.scan import shown


class DumpNames:
    """Puts the names of dumps in place of the folders that they were unpacked to.

    Args:
        names: By the folder that is read, the dump's own.

    Example:
        >>> DumpNames({Path("/tmp/x/dump"): Path("a/dump")}).text("/tmp/x/dump/data: a link is not followed")
        'a/dump/data: a link is not followed'
    """

    def __init__(self, names: Mapping[Path, Path]) -> None:
        self._names = {form(read): form(dump) for read, dump in names.items() if read != dump for form in (str, shown)}

    def text(self, text: str) -> str:
        """A sentence in the dumps' own names."""
        if isinstance(text, Text):
            return text.changed(self.text)
        for read, dump in self._names.items():
            text = text.replace(read, dump)
        return text

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """What is raised in it says the dumps' own names."""
        try:
            yield
        except DumpError as error:
            raise DumpError(self.text(str(error))) from error

    def put_into(self, result: CheckResult) -> None:
        """Changes every sentence of a result."""
        if not self._names:
            return
        lists = [result.notes, *(tables.not_made for tables in result.tables)]
        if (key_data := result.key_data) is not None:
            lists.append(key_data.problems)
            key_data.entries = [
                entry if entry.problem is None else replace(entry, problem=self.text(entry.problem))
                for entry in key_data.entries
            ]
        if result.layers is not None:
            lists.append(result.layers.problems)
        if result.configurations is not None:
            lists += [result.configurations.not_compared, result.configurations.notes]
        for sentences in lists:
            sentences[:] = [self.text(sentence) for sentence in sentences]
        result.error = None if result.error is None else self.text(result.error)
