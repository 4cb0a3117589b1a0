"""Where key data of many ranks is compared: in this process, or in several, here or on a cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from probe.compare.parts import Share, whole_share
from probe.errors import UsageError
from probe.store.index import RankIndex, lines_with_values
from probe.store.reader import Dump

VARIABLE = "FIRSTDIFF_COMPARE_ON"
"""Variable of the environment that says where."""
MOST_PARTS = 200
"""Most parts of a comparison: each costs tens of milliseconds in Prefect."""
PARTS_OF_A_WORKER = 4
"""Parts for each process, so that none waits long for the others at the end."""
WORTH_IT = 500_000
"""Records to look at one by one from which on ``auto`` takes processes. An estimate, for processors that are free: one
process takes 20 seconds for them or more (40 µs a record that differs), and starting several and reading their results
costs about five. On two busy ones processes were never faster, also with three times as many."""
MOST_PROCESSES = 16

Kind = Literal["here", "processes", "dask", "ray"]
_SCHEMES: dict[str, Kind] = {"tcp": "dask", "tls": "dask", "ray": "ray"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where to compare.

    Example:
        >>> Place.parse("tcp://scheduler:8786")
        Place(kind='dask', address='tcp://scheduler:8786', workers=None)
    """

    kind: Kind
    address: str | None = None
    """Of a cluster that runs already; None where one is started on this machine."""
    workers: int | None = None
    """Processes on this machine; None for as many as it has processors."""

    @staticmethod
    def parse(text: str) -> Place | None:
        """A place from the environment's word for it; None for ``auto``.

        Raises:
            UsageError: It is none.
        """
        word, colon, rest = text.strip().partition(":")
        if word == "auto" and not colon:
            return None
        if word in _SCHEMES and rest.startswith("//") and len(rest) > 2:
            return Place(_SCHEMES[word], text.strip())
        if word == "processes" and rest.isdecimal() and int(rest) > 0:
            return Place("processes", workers=int(rest))
        if word in ("here", "processes", "dask", "ray") and not colon:
            return Place(word)  # type: ignore[arg-type]
        raise UsageError(
            f"{VARIABLE}: must be auto, here, processes, processes:NUMBER, dask, ray, or a cluster's address as"
            f" tcp://HOST:PORT (Dask) or ray://HOST:PORT, not {text!r:.80}"
        )

    @property
    def processes(self) -> int:
        """How many processes are started on this machine."""
        return self.workers or min(_processors(), MOST_PROCESSES)

    @property
    def parts(self) -> int:
        """Into how many parts a comparison is split."""
        return MOST_PARTS if self.address else min(MOST_PARTS, PARTS_OF_A_WORKER * self.processes)


def chosen_place() -> Place | None:
    """Where the environment says that key data is compared, here where it says nothing; None where we choose.

    Raises:
        UsageError: It says something else.
    """
    return Place.parse(os.environ.get(VARIABLE) or "here")


def place_for(a: Dump, b: Dump) -> Place:
    """Where two dumps are compared: where the environment says; where it says ``auto``, many records in processes.

    One rank is compared here in any case.

    Raises:
        UsageError: What the environment says is no place.
    """
    chosen = chosen_place()
    if len({*a.ranks, *b.ranks}) < 2:
        return Place("here")
    if chosen is not None:
        return chosen
    own = Place("processes")
    return own if own.processes > 1 and _records_to_look_at(whole_share(a, b, None)) >= WORTH_IT else Place("here")


def _records_to_look_at(share: Share) -> float:
    """About how many records of either run are looked at one by one: all but digests in indexes that are equal."""
    by_digest = share.a.digest_algorithm == share.b.digest_algorithm
    with_values = _part_with_values(share)
    found = 0.0
    for rank in share.ranks:
        one, two = share.a.ranks.get(rank), share.b.ranks.get(rank)
        equal = by_digest and one is not None and two is not None and one.seal is not None and one.seal == two.seal
        most = max(_records(source) for source in (one, two) if source is not None)
        found += most * with_values if equal else most
    return found


def _records(source: object) -> int:
    if isinstance(source, RankIndex):
        return source.records
    return sum(map(len, getattr(source, "places", {}).values()))


def _part_with_values(share: Share) -> float:
    """Which part of the records names a file of values, judged by the beginning of one index."""
    source = share.a.ranks.get(share.leader)
    if not isinstance(source, RankIndex):
        return 1.0
    with_values, lines = 0, 0
    for chunk in islice(source.chunks(), 1):
        with_values, lines = len(lines_with_values(chunk)), chunk.count(b"\n")
    return with_values / max(1, lines)


def _processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
