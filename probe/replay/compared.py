"""The operations of several replays, compared: which is the first whose inputs are the same and whose output is not?"""

from __future__ import annotations

from typing import Any

from probe.language import tell

Operation = tuple[str, bool, list[str], list[str]]
"""Name, whether it ran in a backward pass, digests of its inputs, digests of its outputs."""

DRAWN = "rng:"
"""What the digest of a random state begins with, among the inputs of an operation that draws."""
NOT_OBSERVED = "not observed"
"""Stands for what has no exact bytes."""
_UNINITIALISED = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "resize_")


def first_difference(runs: list[list[Operation]]) -> dict[str, Any] | None:
    """Compares the operations of several runs.

    Returns:
        ``operation``: the first whose inputs are the same and whose output is not, None where there is none, with its
        ``index`` and whether it ran ``backward``; ``instead``: the first that is not the same otherwise. None where
        nothing differs.
    """
    first, found = runs[0] if runs else [], None
    for other in runs[1:]:
        answer = _of_two(first, other)
        if answer is None:
            continue
        if found is None or (answer["operation"] is not None and found["operation"] is None):
            found = answer
    return found


def _of_two(one: list[Operation], two: list[Operation]) -> dict[str, Any] | None:
    garbage: dict[str, tuple[str, int]] = {}
    for index, (left, right) in enumerate(zip(one, two, strict=False)):
        name, backward, before, after = left
        place = {"index": index, "backward": backward}
        if name != right[0]:
            instead = tell("{one} in one run, {other} in another", one=name, other=right[0])
            return {"operation": None, "instead": instead, **place}
        if before != right[2]:
            known = [garbage[digest] for digest in [*before, *right[2]] if digest in garbage]
            if known:
                source, number = known[0]
                return {"operation": source, "instead": tell("{name} reads memory that nothing has written", name=name),
                        **place, "index": number}  # fmt: skip
            return {"operation": None, "instead": _gets(name, before, right[2]), **place}
        if after == right[3]:
            continue
        if NOT_OBSERVED in before:
            instead = tell("{name} gets inputs that cannot be observed", name=name)
            return {"operation": None, "instead": instead, **place}
        if name.removeprefix("aten::").split(".")[0] in _UNINITIALISED:
            garbage |= dict.fromkeys([*after, *right[3]], (name, index))
            continue
        return {"operation": name, "instead": None, **place}
    if len(one) != len(two):
        index = min(len(one), len(two))
        longer = max(one, two, key=len)
        instead = tell("{name} in one run only", name=longer[index][0])
        return {"operation": None, "instead": instead, "index": index, "backward": longer[index][1]}
    return None


def _gets(name: str, one: list[str], two: list[str]) -> str:
    """What of an operation's inputs is not the same."""
    changed = [left for left, right in zip(one, two, strict=False) if left != right]
    drawn = len(one) == len(two) and all(digest.startswith(DRAWN) for digest in changed)
    if drawn:
        return tell("{name} draws from another random state", name=name)
    return tell("{name} gets other inputs", name=name)
