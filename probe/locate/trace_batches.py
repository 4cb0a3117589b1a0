"""Whether two runs gave a model the same rows in other portions or the same batches in another order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from probe.compare.trace_found import RankTrace
from probe.errors import DumpError
from probe.language import join, tell
from probe.store.trace_events import KIND, NO_EVENT, STEP, Item, TraceEvent, parse_event, step_of
from probe.store.trace_reader import TraceFile

_MOST_PORTIONS = 100_000
_SHOWN = 8
_TOKENS = ("args.0", "kwargs.input_ids", "kwargs.inputs_embeds")


@dataclass(frozen=True, slots=True)
class Portions:
    """Sizes, along one axis, of what the same stage got by and by in each run.

    Example:
        >>> Portions((8,), (2, 6)).text
        '8 at a time in a, 2, 6 in b'
    """

    a: tuple[int, ...]
    b: tuple[int, ...]

    @property
    def text(self) -> str:
        """For an explanation."""
        return tell("{a} at a time in a, {b} in b", a=_listed(self.a), b=_listed(self.b))


def portions_of(found: RankTrace) -> Portions | None:
    """How the first difference is one of portions alone: other sizes that come to the same in the stage; None if not.

    Raises:
        DumpError: A trace cannot be read any more, or holds what is no event.
    """
    difference = found.first
    if difference is None or difference.a is None or difference.b is None or not found.file or not found.other:
        return None
    event = difference.event
    if event.kind != "data" and not (event.kind == "forward_input" and event.is_root):
        return None
    place = other_axis(difference.a.items, difference.b.items)
    if place is None:
        return None
    one = _sizes(found.file, found.offset, event, *place)
    two = _sizes(found.other, found.other_offset, event, *place)
    return Portions(one, two) if sum(one) == sum(two) and one != two else None


def other_axis(one: tuple[Item, ...], two: tuple[Item, ...]) -> tuple[str, int] | None:
    """Path of the first item that has another size along one axis alone, and that axis; None where there is none."""
    sizes = {item[0]: item for item in two}
    for path, dtype, shape, _ in one:
        other = sizes.get(path)
        if other is None or other[1] != dtype or len(other[2]) != len(shape):
            continue
        axes = [axis for axis, (x, y) in enumerate(zip(shape, other[2], strict=True)) if x != y]
        if len(axes) == 1:
            return path, axes[0]
    return None


def is_reordered(found: RankTrace) -> bool:
    """Whether a stage's model is given the same in both runs, call for call, in another order.

    Raises:
        DumpError: A trace cannot be read any more, or holds what is no event.
    """
    difference = found.first
    if difference is None or difference.a is None or difference.b is None or not found.file or not found.other:
        return False
    one = [event.items for event in _alike(found.file, found.offset, difference.event)]
    two = [event.items for event in _alike(found.other, found.other_offset, difference.event)]
    return one != two and Counter(one) == Counter(two)


def _sizes(file: TraceFile, offset: int, event: TraceEvent, path: str, axis: int) -> tuple[int, ...]:
    """Sizes of the same item in all events of the same kind, name and stage, from a place to the end of the step."""
    alike = _alike(file, offset, event)
    return tuple(item[2][axis] for other in alike for item in other.items if item[0] == path and len(item[2]) > axis)


def _alike(file: TraceFile, offset: int, event: TraceEvent) -> list[TraceEvent]:
    """The events of the same kind, name and stage, from a place to the end of the step."""
    kind = b'%s%s"' % (KIND, event.kind.encode())
    found: list[TraceEvent] = []
    try:
        for line in file.lines_from(offset):
            if step_of(line[line.rfind(STEP) :]) != event.step or len(found) > _MOST_PORTIONS:
                break
            if kind not in line:
                continue
            other = parse_event(line)
            if (other.name, other.stage, other.recomputed) == (event.name, event.stage, event.recomputed):
                found.append(other)
    except NO_EVENT as error:
        raise DumpError(f"{file.path}: a line is damaged ({error})") from error
    return found


def _listed(sizes: tuple[int, ...]) -> str:
    listed = join(", ", map(str, sizes[:_SHOWN]))
    return listed + tell(" and {more} more", more=len(sizes) - _SHOWN) if len(sizes) > _SHOWN else listed


def got_instead(changed: Sequence[tuple[str, Item | None, Item | None]], form: str) -> str:
    """What a model that generates got after equal outputs, and where it may come from.

    Args:
        changed: The items that are not the same.
        form: Which, in words.
    """
    tokens = any(
        path in _TOKENS or any(one and one[1].startswith(("int", "uint")) for one in both) for path, *both in changed
    )
    if changed and not tokens:
        return tell(
            "the same tokens with something else{form}: a cache or a mask that was changed between the calls, or code"
            " between them",
            form=form,
        )
    return tell("another token: the generation's seed, or code between them")
