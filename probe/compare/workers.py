"""What the workers of a run say of themselves: is what was asked for in effect, and is it so in all of them?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from probe.keys import show_key
from probe.language import join, tell
from probe.store import layout

Environments = dict[int, dict[str, Any]]
"""The content of ``environment.json`` and of the other ranks' files, by rank."""

ASKED: dict[str, tuple[str, ...]] = {
    "deterministic_algorithms": ("deterministic_algorithms",),
    "num_threads": ("num_threads",),
    "seed": ("torch_seed",),
    "cublas_workspace_config": ("variables", "CUBLAS_WORKSPACE_CONFIG"),
    "hccl_deterministic": ("variables", "HCCL_DETERMINISTIC"),
    "lccl_deterministic": ("variables", "LCCL_DETERMINISTIC"),
    "atb_matmul_shuffle_k_enable": ("variables", "ATB_MATMUL_SHUFFLE_K_ENABLE"),
    "close_matmul_k_shift": ("variables", "CLOSE_MATMUL_K_SHIFT"),
    "python_hash_seed": ("variables", "PYTHONHASHSEED"),
}
"""Keys of a profile's ``determinism``, and which of what is in effect each sets."""

OF_A_SCRIPT = ("deterministic_algorithms", "seed")
"""Those that only the trainer's own code can put into effect."""

_MAY_DIFFER = (
    ("limits",),
    ("models",),
    ("devices",),
    ("determinism", "in_effect", "random_states"),
    ("determinism", "in_effect", "torch_seed"),
)
"""What one worker may have otherwise than another without a fault: its shard, its device, its own seed."""
_MOST_TOLD = 10
_SHOWN = 60


def read_environments(dump: Path) -> Environments:
    """What every worker of a run wrote; a file that is missing or damaged is left out.

    Args:
        dump: A dump folder.
    """
    found: Environments = {}
    ranks: list[int | None]
    try:
        ranks = [None, *layout.ranks_beside_the_first(dump)]
    except OSError:
        return found
    for rank in ranks:
        try:
            content = layout.read_json(dump / layout.of_rank(layout.ENVIRONMENT, rank))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            found[rank or 0] = content
    return found


def not_in_effect(workers: Environments, left_to_script: bool = False) -> list[str]:
    """What a profile asks for and a worker does not have: one sentence a setting, with the ranks.

    Args:
        workers: What they say.
        left_to_script: Leaves out what the trainer's own code would set later.
    """
    found: dict[str, list[int]] = {}
    for rank, said in sorted(workers.items()):
        determinism = said.get("determinism")
        if not isinstance(determinism, dict):
            continue
        asked, effect = determinism.get("requested"), determinism.get("in_effect")
        if not isinstance(asked, dict) or not isinstance(effect, dict):
            continue
        for sentence in _unmet(asked, effect, left_to_script):
            found.setdefault(sentence, []).append(rank)
    return _told(found, len(workers))


def unlike_workers(workers: Environments) -> list[str]:
    """In what the workers of one run differ from its first: one sentence a key, with the ranks."""
    if not workers:
        return []
    first = min(workers)
    reference = dict(_flat(workers[first]))
    found: dict[str, list[int]] = {}
    for rank, said in sorted(workers.items()):
        if rank == first:
            continue
        mine = dict(_flat(said))
        for key in sorted({*reference, *mine}):
            if reference.get(key) != mine.get(key):
                sentence = tell(
                    "{key} is {value}, that of rank {rank} {reference}",
                    key=show_key(key),
                    value=_shown(mine.get(key)),
                    rank=first,
                    reference=_shown(reference.get(key)),
                )
                found.setdefault(sentence, []).append(rank)
    return _told(found, 0)


def worker_notes(dump: Path, left_to_script: bool = False) -> list[str]:
    """Both, for the notes beside a verdict.

    Args:
        dump: A dump folder.
        left_to_script: See ``not_in_effect``.
    """
    workers = read_environments(dump)
    return [*not_in_effect(workers, left_to_script), *unlike_workers(workers)]


def _unmet(asked: dict[str, Any], effect: dict[str, Any], left_to_script: bool) -> Iterator[str]:
    for key, path in ASKED.items():
        wanted = asked.get(key)
        if wanted is None or (left_to_script and key in OF_A_SCRIPT):
            continue
        value: Any = effect
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        same = value is wanted if isinstance(wanted, bool) else str(value) == str(wanted)
        if not same and (wanted is not False):
            yield tell(
                "{name} is {value}, determinism.{key} asks for {wanted}",
                name=path[-1], value=_shown(value), key=key, wanted=_shown(wanted),
            )  # fmt: skip
    if asked.get("deterministic_algorithms") is True and effect.get("warn_only") is True:
        yield tell(
            "deterministic algorithms only warn (warn_only): an operation without a deterministic form still runs"
        )


def _flat(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if path in _MAY_DIFFER:
        return
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _flat(child, (*path, str(key)))
    else:
        yield path, value if isinstance(value, str | int | float | bool | None) else repr(value)


def _told(found: dict[str, list[int]], workers: int) -> list[str]:
    lines: list[str] = [
        join("", (_ranks(ranks, workers), sentence)) for sentence, ranks in list(found.items())[:_MOST_TOLD]
    ]
    more = len(found) - len(lines)
    return [*lines, tell("{more} more settings of the workers are like that", more=more)] if more > 0 else lines


def _ranks(ranks: list[int], workers: int) -> str:
    if workers == 1:
        return ""
    if len(ranks) == workers:
        return tell("all ranks: ")
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    named = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans[:8])
    named += ", …" if len(spans) > 8 else ""
    return tell("ranks {ranks}: ", ranks=named) if len(ranks) > 1 else tell("rank {ranks}: ", ranks=named)


def _shown(value: Any) -> str:
    if value is None:
        return tell("not set")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
