"""What differs of an event: its items, and how they are named to people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from probe.compare.trace_found import EventDifference
from probe.language import tell
from probe.store.trace_events import Item


def changed_items(difference: EventDifference) -> list[tuple[str, Item | None, Item | None]]:
    """The items that are not the same: path, and what each run has there."""
    one, two = difference.a, difference.b
    left, right = (_by_path(event.items if event else ()) for event in (one, two))
    return [(key[0], left.get(key), right.get(key)) for key in {**left, **right} if left.get(key) != right.get(key)]


def _by_path(items: Sequence[Item]) -> dict[tuple[str, int], Item]:
    """Items by path, and by number where a path comes twice."""
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], Item] = {}
    for item in items:
        found[item[0], seen[item[0]]] = item
        seen[item[0]] += 1
    return found


def form_of(difference: EventDifference) -> str:
    """Which item differs where there are several, and how its form does."""
    changed = changed_items(difference)
    if not changed:
        return ""
    path, one, two = changed[0]
    if not path and len(changed) == 1 and one and two and one[1:3] == two[1:3]:
        return ""  # the whole of what was saved
    path = path or tell("the whole")
    more = and_more(len(changed))
    if one is None or two is None:
        return tell(" ({path}{more} only in {run})", path=path, more=more, run="a" if two is None else "b")
    if one[1:3] != two[1:3]:
        forms = [f"{item[1]}{list(item[2])}" for item in (one, two)]
        return tell(" ({path}{more}: {a} against {b})", path=path, more=more, a=forms[0], b=forms[1])
    return tell(" ({path}{more})", path=path, more=more)


def and_more(count: int) -> str:
    """How many there are beside the one that is named."""
    return tell(" and {more} more", more=count - 1) if count > 1 else ""


def parameter_of(difference: EventDifference) -> str:
    """The full name of the first parameter that differs."""
    role, changed = difference.event.role, changed_items(difference)
    if not changed:
        return difference.event.label
    path = changed[0][0]
    return path if path == role or path.startswith(f"{role}.") else f"{role}.{path}"


def one_only(difference: EventDifference) -> str:
    """Says where only one run has the first item that differs."""
    path, one, two = next(iter(changed_items(difference)), ("", None, None))
    if (one and two) or not path:
        return ""
    return tell(" ({path} only in {run})", path=path, run="a" if two is None else "b")
