"""Comparing key data in several processes of this machine, which end when this one does."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import wait

from probe.compare.entries import KeyDataComparison
from probe.compare.keydata import compare_key_data, compare_part
from probe.compare.parts import Part, Share, merge_parts, split
from probe.compare.place import Place, place_for
from probe.store.reader import Dump

log = logging.getLogger("firstdiff")


def compare_on_this_machine(a: Dump, b: Dump, last_step: int | None = None) -> KeyDataComparison:
    """Compares every entry that either dump has, in several processes where the environment says so.

    Args:
        a: One run.
        b: The other.
        last_step: Entries of later steps are left out; None takes all.
    """
    place = place_for(a, b)
    if place.kind == "here":
        return compare_key_data(a, b, last_step)
    place = Place("processes", workers=place.workers)

    def submitted(shares: list[Share]) -> Iterator[bytes | None]:
        spawn = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(place.processes, len(shares)), spawn, end_with_parent)
        with pool, killed_on_error():
            futures: list[Future[bytes]] = [pool.submit(compare_bytes, share.to_bytes()) for share in shares]
            for future in futures:
                yield result_of(future.result)

    return compare_in_parts(a, b, last_step, place.parts, submitted)


def compare_in_parts(
    a: Dump, b: Dump, last_step: int | None, parts: int, elsewhere: Callable[[list[Share]], Iterator[bytes | None]]
) -> KeyDataComparison:
    """Compares every entry that either dump has, in parts that others compare.

    What cannot be had from them is compared here: no comparison is lost by that.

    Args:
        a: One run.
        b: The other.
        last_step: Entries of later steps are left out; None takes all.
        parts: In how many.
        elsewhere: Gives the result of each share in order, None for what was lost.
    """
    shares = split(a, b, last_step, parts)
    return merge_parts(a, b, last_step, parts_of(shares, partial(elsewhere, shares)))


def compare_bytes(share: bytes) -> bytes:
    """Compares a share that came from another process, for that process."""
    return compare_part(Share.from_bytes(share)).to_bytes()


def parts_of(shares: list[Share], elsewhere: Callable[[], Iterator[bytes | None]]) -> list[Part]:
    """The parts of all shares.

    Args:
        shares: What is compared.
        elsewhere: Gives the result of each share in order, None for what was lost: that is compared here.
    """
    found: list[bytes | None] = []
    try:
        for result in elsewhere():
            found.append(result)
    except Exception as error:  # noqa: BLE001  (a cluster may raise anything; whatever is a defect shows here, too)
        _say(error)
    found += [None] * (len(shares) - len(found))
    return [
        compare_part(share) if result is None else Part.from_bytes(result)
        for share, result in zip(shares, found, strict=True)
    ]


def result_of(get: Callable[[], bytes]) -> bytes | None:
    """A result, or None, with a warning, where getting it raises anything but a timeout."""
    try:
        return get()
    except TimeoutError:
        raise
    except Exception as error:  # noqa: BLE001  (the same)
        _say(error)
        return None


def end_with_parent() -> None:
    """Has this process, one of several that compare, end as soon as the one that started it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for that one
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="firstdiff-parent", daemon=True).start()


@contextmanager
def killed_on_error() -> Iterator[None]:
    """Kills the processes that were started meanwhile, where this ends by an error, Ctrl-C or a signal."""
    before = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for child in set(multiprocessing.active_children()) - before:
            child.kill()
        raise


def _say(error: Exception) -> None:
    words = " ".join(f"{type(error).__name__}: {error}".split())
    log.warning("some ranks are compared in this process, since another could not: %s", words[:300])
