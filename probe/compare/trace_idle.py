"""Random states that differ though nothing drew from them: of a generator that nobody seeded, and nobody used."""

from __future__ import annotations

from probe.errors import DumpError
from probe.store.trace_events import KIND, NO_EVENT, Item, parse_event
from probe.store.trace_reader import TraceFile, TraceReader

_RNG = KIND + b'rng"'


def idle_generators(one: TraceFile, two: TraceFile, last_step: int | None) -> dict[str, int]:
    """Generators whose state never changes in either run, and is not the same in both.

    Args:
        one: The trace of ``a``.
        two: That of ``b``.
        last_step: Later steps are left out; None takes all.

    Returns:
        Name to the position in ``a`` at which the state was last recorded: up to there nothing drew from it.

    Raises:
        DumpError: A trace cannot be read, or holds what is no event.
    """
    left, right = _constant(one, last_step), _constant(two, last_step)
    return {name: last for name, (items, last) in left.items() if name in right and items != right[name][0]}


def _constant(file: TraceFile, last_step: int | None) -> dict[str, tuple[tuple[Item, ...], int]]:
    """State and last position of the generators whose state is always the same."""
    found: dict[str, tuple[tuple[Item, ...], int]] = {}
    changed: set[str] = set()
    with TraceReader(file, last_step) as reader:
        while text := reader.chunk():
            for line in text.splitlines() if _RNG in text else ():
                if _RNG not in line:
                    continue
                try:
                    event = parse_event(line)
                except NO_EVENT as error:
                    raise DumpError(f"{file.path}: a line is damaged ({error})") from error
                if event.label in found and found[event.label][0] != event.items:
                    changed.add(event.label)
                found[event.label] = (event.items, event.index)
            reader.take_bytes(len(text))
    return {name: state for name, state in found.items() if name not in changed}
