"""Processes that compare: the answer is that of one process, also when they die; where they are worth it."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.bench.digests import write_digests
from probe.bench.sizes import DigestsSize
from probe.compare import Place, compare_key_data, compare_on_this_machine, place, place_for
from probe.compare.processes import parts_of
from probe.errors import UsageError
from probe.store.reader import Dump, read_dump

MakeDump = Callable[..., Path]
SAVES = [("loss", step + rank, {"step": step, "rank": rank}) for step in range(2) for rank in range(5)]
OTHER = [("loss", value + (value % 3 == 0), where) for _, value, where in SAVES]


@pytest.fixture
def dumps(make_dump: MakeDump) -> list[Dump]:
    return [read_dump(make_dump(name, saves)) for name, saves in (("a", SAVES), ("b", OTHER))]


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRSTDIFF_COMPARE_ON", "processes:2")


@pytest.mark.usefixtures("processes")
def test_find_what_one_process_finds(dumps: list[Dump]) -> None:
    found, here = compare_on_this_machine(*dumps), compare_key_data(*dumps)
    assert here.verdict == "divergent"
    assert (found.entries, found.counts, found.cells) == (here.entries, here.counts, here.cells)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("processes")
def test_that_are_killed_lose_nothing(dumps: list[Dump], caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def kill() -> None:
        while not ended.is_set():
            for child in multiprocessing.active_children():
                child.kill()
            time.sleep(0.01)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        found = compare_on_this_machine(*dumps)
    finally:
        ended.set()
        thread.join()
    assert found.entries == compare_key_data(*dumps).entries
    assert "compared in this process" in caplog.text


def test_a_share_is_compared_once_whatever_happens_elsewhere(dumps: list[Dump]) -> None:
    from probe.compare import compare_part, split

    shares = split(*dumps, None, 5)

    def some():  # type: ignore[no-untyped-def]
        yield compare_part(shares[0]).to_bytes()
        yield None
        raise TimeoutError

    assert [part.ranks for part in parts_of(shares, some)] == [(rank,) for rank in range(5)]


@pytest.mark.parametrize(
    ("word", "kind", "address", "workers"),
    [
        ("here", "here", None, None),
        ("processes", "processes", None, None),
        ("processes:3", "processes", None, 3),
        ("dask", "dask", None, None),
        ("tls://10.0.0.1:8786", "dask", "tls://10.0.0.1:8786", None),
        ("ray", "ray", None, None),
        ("ray://head:10001", "ray", "ray://head:10001", None),
    ],
)
def test_a_place_is_a_word_or_an_address(word: str, kind: str, address: str | None, workers: int | None) -> None:
    found = Place.parse(word)
    assert found is not None
    assert (found.kind, found.address, found.workers) == (kind, address, workers)


@pytest.mark.parametrize(
    "word", ["there", "processes:0", "processes:many", "dask:2", "tcp:", "tcp://", "http://x", ":"]
)
def test_what_is_no_place_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="FIRSTDIFF_COMPARE_ON"):
        Place.parse(word)


def test_parts_are_few() -> None:
    for word in ("processes:1000", "dask", "tcp://x:1"):
        found = Place.parse(word)
        assert found is not None and found.parts <= 200


class TestWhatIsWorthIt:
    """With ``auto``, only what takes long in one process is split."""

    @pytest.fixture(autouse=True)
    def two_processors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(place, "_processors", lambda: 2)
        monkeypatch.setattr(place, "WORTH_IT", 1000)
        monkeypatch.setenv("FIRSTDIFF_COMPARE_ON", "auto")

    def test_equal_digests_are_not(self, tmp_path: Path) -> None:
        write_digests(tmp_path / "a", DigestsSize(ranks=4, records=1000))
        dump = read_dump(tmp_path / "a")
        assert place_for(dump, dump).kind == "here"

    def test_differing_digests_are(self, tmp_path: Path) -> None:
        for name, records in (("a", 300), ("b", 299)):
            write_digests(tmp_path / name, DigestsSize(ranks=4, records=records))
        a, b = (read_dump(tmp_path / name) for name in "ab")
        assert place_for(a, b).kind == "processes"

    def test_nothing_is_unless_somebody_asks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, records in (("a", 300), ("b", 299)):
            write_digests(tmp_path / name, DigestsSize(ranks=4, records=records))
        monkeypatch.delenv("FIRSTDIFF_COMPARE_ON")
        assert place_for(*(read_dump(tmp_path / name) for name in "ab")).kind == "here"

    def test_one_rank_never_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, records in (("a", 3000), ("b", 2999)):
            write_digests(tmp_path / name, DigestsSize(ranks=1, records=records))
        monkeypatch.setenv("FIRSTDIFF_COMPARE_ON", "processes")
        assert place_for(*(read_dump(tmp_path / name) for name in "ab")).kind == "here"

    @pytest.mark.parametrize("changed", [False, True])
    def test_few_records_are_not(self, make_dump: MakeDump, changed: bool) -> None:
        a, b = (read_dump(make_dump(name, saves)) for name, saves in (("a", SAVES), ("b", OTHER if changed else SAVES)))
        assert place_for(a, b).kind == "here"
