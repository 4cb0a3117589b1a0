"""Work beside the training: in order, in bounded memory, never lost silently; alone and as ``Probe`` uses it.

No test waits for time to pass: a thread that is to be seen waiting says so itself, by ``Watched``.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe import Probe
from probe.errors import DumpError, RecordError
from probe.store import background as module
from probe.store import writer
from probe.store.background import JOB_BYTES, Background
from probe.store.reader import read_dump, read_values
from probe.store.writer import DumpWriter
from probe.types import Record, RunSpec

PATIENCE = 60.0
"""Longest wait for what must happen, in seconds: a failure, never a measurement."""


class Watched(threading.Condition):
    """A condition that notes which threads have waited on it."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: set[str] = set()
        self.seen = threading.Event()
        self.awaited = ""

    def wait(self, timeout: float | None = None) -> bool:
        name = threading.current_thread().name
        self.waited.add(name)
        if name == self.awaited:
            self.seen.set()
        return super().wait(timeout)


class Sized:
    """Data of a job, counted while it is alive."""

    live = 0
    most = 0
    lock = threading.Lock()

    def __init__(self, size: int) -> None:
        self.size = size
        with Sized.lock:
            Sized.live += size
            Sized.most = max(Sized.most, Sized.live)

    def __del__(self) -> None:
        with Sized.lock:
            Sized.live -= self.size


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Background, Watched]]:
    """A Background whose waiting threads can be seen."""

    def make(limit: int = 1000, awaited: str = "producer") -> tuple[Background, Watched]:
        real, condition = threading.Condition, Watched()
        condition.awaited = awaited
        with monkeypatch.context() as patch:  # events have conditions too, each with a lock of its own
            patch.setattr(module.threading, "Condition", lambda *lock: real(*lock) if lock else condition)
            return Background(limit), condition

    return make


def thread(name: str, *jobs: Callable[[], object]) -> threading.Thread:
    started = threading.Thread(target=lambda: [job() for job in jobs], name=name, daemon=True)
    started.start()
    return started


def joined(*threads: threading.Thread) -> bool:
    for each in threads:
        each.join(PATIENCE)
    return not any(each.is_alive() for each in threads)


class TestOrder:
    def test_jobs_run_one_after_another_in_their_order_in_another_thread(self) -> None:
        seen: list[int] = []
        running: list[int] = []
        threads: set[int] = set()

        def job(number: int) -> None:
            running.append(number)
            assert running == [number]
            threads.add(threading.get_ident())
            seen.append(number)
            running.clear()

        background = Background(limit=10 * JOB_BYTES)
        for number in range(500):
            background.submit(partial(job, number), number % 7 * 100)
        background.finish()
        assert seen == list(range(500))
        assert len(threads) == 1
        assert threading.get_ident() not in threads

    def test_each_of_several_threads_keeps_its_order(self) -> None:
        seen: list[tuple[int, int]] = []
        background = Background(limit=5 * JOB_BYTES)

        def produce(who: int) -> None:
            for number in range(200):
                background.submit(partial(seen.append, (who, number)), 10)

        assert joined(*(thread(f"p{who}", partial(produce, who)) for who in range(4)))
        background.finish()
        for who in range(4):
            assert [number for owner, number in seen if owner == who] == list(range(200))

    def test_nothing_to_do_ends_at_once(self) -> None:
        background = Background()
        background.finish()
        background.finish()
        assert not background._thread.is_alive()


class TestBackPressure:
    def test_whoever_would_hold_too_much_waits_until_enough_has_been_written(self, watched: Any) -> None:
        background, condition = watched(limit=3000)
        gates = [threading.Event() for _ in range(3)]
        log: list[str] = []

        def job(number: int) -> None:
            assert gates[number].wait(PATIENCE)
            log.append(f"job {number} ended")

        background.submit(partial(job, 0), 1000 - JOB_BYTES)
        background.submit(partial(job, 1), 1500 - JOB_BYTES)
        producer = thread(
            "producer",
            lambda: background.submit(partial(job, 2), 2000 - JOB_BYTES),
            lambda: log.append("submitted"),
        )
        assert condition.seen.wait(PATIENCE), "it did not wait"
        assert log == []
        condition.seen.clear()
        gates[0].set()  # 1500 held then: not enough
        assert condition.seen.wait(PATIENCE), "it did not wait on"
        assert log == ["job 0 ended"]
        gates[2].set()
        gates[1].set()
        assert joined(producer)
        background.finish()
        assert log.index("submitted") > log.index("job 1 ended") == 1
        assert set(log) == {"job 0 ended", "job 1 ended", "job 2 ended", "submitted"}

    def test_what_fits_does_not_wait(self, watched: Any) -> None:
        background, condition = watched(limit=3000, awaited="MainThread")
        gate = threading.Event()
        background.submit(lambda: gate.wait(PATIENCE), 1000 - JOB_BYTES)
        background.submit(lambda: None, 2000 - JOB_BYTES)
        gate.set()
        background.finish()
        assert "MainThread" not in condition.waited

    def test_one_job_alone_may_hold_more_but_only_alone(self, watched: Any) -> None:
        background, condition = watched(limit=1000)
        log: list[str] = []
        gate = threading.Event()

        def oversize() -> None:
            assert gate.wait(PATIENCE)
            log.append("oversize")

        background.submit(oversize, 10**12)
        producer = thread(
            "producer", lambda: background.submit(lambda: log.append("small"), 0), lambda: log.append("submitted")
        )
        assert condition.seen.wait(PATIENCE), "it did not wait"
        assert log == []
        gate.set()
        assert joined(producer)
        background.submit(lambda: log.append("oversize again"), 10**12)
        background.finish()
        assert (log[0], log[-1], sorted(log[1:3])) == ("oversize", "oversize again", ["small", "submitted"])

    def test_many_small_jobs_are_bounded_too(self, watched: Any) -> None:
        background, condition = watched(limit=10 * JOB_BYTES)
        gate = threading.Event()
        submitted: list[int] = []

        def produce() -> None:
            for number in range(100):
                background.submit(lambda: gate.wait(PATIENCE), 0)
                submitted.append(number)

        producer = thread("producer", produce)
        assert condition.seen.wait(PATIENCE), "it did not wait"
        assert len(submitted) == 10
        gate.set()
        assert joined(producer)
        background.finish()

    def test_the_bytes_held_never_exceed_the_limit(self, watched: Any) -> None:
        """Counted by the life of the data itself; each producer has one piece of its own in hand."""
        limit, largest, producers = 100_000, 40_000, 3
        background, condition = watched(limit)
        gate = threading.Event()
        gc.collect()
        Sized.live = Sized.most = 0
        most_held: list[int] = []

        def job(data: Sized) -> None:
            assert gate.wait(PATIENCE)
            with background._changed:
                waiting = sum(size for _, size in background._jobs)
                assert background._held == waiting + data.size + JOB_BYTES
                most_held.append(background._held)

        def produce(seed: int) -> None:
            sizes = random.Random(seed)
            for _ in range(300):
                data = Sized(sizes.randrange(largest))
                background.submit(partial(job, data), data.size)
                del data

        started = [thread("producer", partial(produce, seed)) for seed in range(producers)]
        assert condition.seen.wait(PATIENCE)  # it is full
        gate.set()
        assert joined(*started)
        background.finish()
        assert len(most_held) == producers * 300
        assert limit - largest - JOB_BYTES < max(most_held) <= limit
        assert Sized.most <= limit + producers * largest
        assert Sized.live == 0

    def test_a_job_s_data_dies_before_the_next_job_runs(self) -> None:
        background = Background()
        data = Sized(1)
        reference = weakref.ref(data)
        alive: list[bool] = []
        gate = threading.Event()
        background.submit(partial(lambda _: gate.wait(PATIENCE), data), 1)
        background.submit(lambda: alive.append(reference() is not None), 0)
        del data
        assert reference() is not None
        gate.set()
        background.finish()
        assert alive == [False]


class TestErrors:
    def test_one_shows_at_the_next_submit_and_at_finish_and_ends_everything(self) -> None:
        background = Background()
        ran: list[str] = []
        broke = threading.Event()

        def fail() -> None:
            broke.wait(PATIENCE)
            raise OSError(28, "No space left on device")

        background.submit(lambda: ran.append("before"), 0)
        background.submit(fail, 0)
        background.submit(lambda: ran.append("after"), 0)
        broke.set()
        background._thread.join(PATIENCE)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                background.submit(lambda: ran.append("later"), 0)
            with pytest.raises(OSError, match="No space left"):
                background.finish()
        assert ran == ["before"]

    def test_one_wakes_whoever_waits_for_room(self, watched: Any) -> None:
        background, condition = watched(limit=10)
        broke = threading.Event()
        caught: list[str] = []

        def fail() -> None:
            broke.wait(PATIENCE)
            raise KeyError("mine")

        def produce() -> None:
            try:
                background.submit(lambda: caught.append("ran"), 100)
            except KeyError as error:
                caught.append(str(error))

        background.submit(fail, 100)
        producer = thread("producer", produce)
        assert condition.seen.wait(PATIENCE)
        broke.set()
        assert joined(producer)
        assert caught == ["'mine'"]

    def test_jobs_that_are_dropped_give_their_data_free(self) -> None:
        background = Background()
        broke = threading.Event()
        data = Sized(1)
        reference = weakref.ref(data)

        def fail() -> None:
            broke.wait(PATIENCE)
            raise ValueError

        background.submit(fail, 0)
        background.submit(partial(str, data), 1)
        del data
        broke.set()
        with pytest.raises(ValueError):
            background.finish()
        gc.collect()
        assert reference() is None

    def test_an_interrupt_in_a_job_is_not_lost(self) -> None:
        background = Background()

        def leave() -> None:
            raise SystemExit(3)

        background.submit(leave, 0)
        with pytest.raises(SystemExit):
            background.finish()

    def test_nothing_is_taken_after_the_end(self) -> None:
        """It would never run."""
        background = Background()
        background.finish()
        with pytest.raises(RuntimeError, match="ended"):
            background.submit(lambda: None, 0)

    def test_who_waits_for_room_at_the_end_is_told(self, watched: Any) -> None:
        background, condition = watched(limit=10)
        gate = threading.Event()
        log: list[str] = []

        def produce() -> None:
            try:
                background.submit(lambda: log.append("ran"), 100)
            except RuntimeError:
                log.append("told")

        background.submit(lambda: gate.wait(PATIENCE), 100)
        producer = thread("producer", produce)
        assert condition.seen.wait(PATIENCE)
        finisher = thread("finisher", background.finish)
        with background._changed:
            assert background._changed.wait_for(lambda: background._ending, PATIENCE)
        gate.set()
        assert joined(producer, finisher)
        assert log == ["told"]


class TestFinish:
    def test_waits_for_every_job(self) -> None:
        background = Background()
        gate = threading.Event()
        log: list[object] = []
        background.submit(lambda: gate.wait(PATIENCE), 0)
        for number in range(200):
            background.submit(partial(log.append, number), 0)
        finisher = thread("finisher", background.finish, lambda: log.append("finished"))
        with background._changed:
            assert background._changed.wait_for(lambda: background._ending, PATIENCE)
        assert log == []
        gate.set()
        assert joined(finisher)
        assert log == [*range(200), "finished"]


# ---- as Probe uses it ----


class Blocked:
    """A disk that stands still until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.reached = threading.Event()
        self.error: Exception | None = None
        real = DumpWriter.add

        def add(writer: DumpWriter, *arguments: Any, **named: Any) -> None:
            self.reached.set()
            assert self.gate.wait(PATIENCE)
            if self.error is not None:
                raise self.error
            real(writer, *arguments, **named)

        monkeypatch.setattr(DumpWriter, "add", add)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Blocked]:
    blocked = Blocked(monkeypatch)
    yield blocked
    blocked.gate.set()


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Callable[..., Probe]]:
    """Opens a recording below tmp_path; whatever its background then says at the end is a test's own business."""
    opened: list[Probe] = []

    def make(**spec: Any) -> Probe:
        opened.append(Probe(RunSpec(run="a", dump_path=str(tmp_path / f"dump{len(opened)}"), **spec)))
        return opened[-1]

    yield make
    for each in opened:
        each.close(failed=True)


def records(probe: Probe) -> list[Record]:
    return read_dump(probe._folder).records.get(0, [])


def manifest(probe: Probe) -> Any:
    return json.loads((probe._folder / "manifest.json").read_text())


def test_a_step_does_not_wait_for_the_disk_and_the_end_does(disk: Blocked, probe: Any) -> None:
    recording = probe()
    model = torch.nn.Linear(4, 4)
    recording.attach(actor=model)
    for step in range(20):
        recording.save({"x": torch.full((10,), float(step))})
        recording.step()
    assert disk.reached.wait(PATIENCE)
    assert manifest(recording)["records"] == {}  # all twenty steps ended, and nothing is on the disk
    assert not (recording._folder / "index/rank0.jsonl").exists()
    background = recording._background

    def go_on() -> None:
        with background._changed:
            assert background._changed.wait_for(lambda: background._ending, PATIENCE)
        disk.gate.set()

    opener = thread("opener", go_on)
    recording.close()
    assert joined(opener)
    dump = read_dump(recording._folder)
    assert (dump.complete, dump.steps_finished, dump.problems) == (True, 20, [])
    assert len(dump.records[0]) == 20 * 3


@pytest.mark.parametrize("key_data", ["full", "digests"])
def test_what_is_changed_while_it_waits_is_recorded_as_it_was(disk: Blocked, probe: Any, key_data: str) -> None:
    def save_and_spoil(recording: Probe, spoil: bool) -> None:
        tensor, array = torch.arange(6.0).reshape(2, 3), np.arange(6).reshape(2, 3)
        mask, weight = torch.tensor([[1, 1, 0], [0, 1, 1]]), torch.nn.Linear(2, 2)
        with torch.no_grad():
            weight.weight.fill_(1)
            weight.bias.fill_(2)
        recording.attach(actor=weight)
        recording.save({"blocks": 0})
        recording.save({"tensor": tensor, "view": tensor.t(), "array": array, "mask": mask}, mask=mask)
        recording.step()
        if spoil:
            with torch.no_grad():
                for each in (tensor, mask, weight.weight, weight.bias):
                    each.fill_(7)
            array.fill(7)

    spoiled, plain = probe(key_data=key_data), probe(key_data=key_data)
    save_and_spoil(spoiled, True)
    save_and_spoil(plain, False)
    disk.gate.set()
    spoiled.close()
    plain.close()
    assert records(spoiled) == records(plain)
    assert len(records(plain)) == 7
    assert all(record.masked for record in records(plain) if record.tag in ("tensor", "array", "mask"))


def test_a_mask_that_is_a_numpy_array_may_change_too(disk: Blocked, probe: Any) -> None:
    recording = probe()
    mask = np.array([True, False])
    recording.save({"blocks": 0})
    recording.save({"x": torch.ones(2)}, mask=mask)
    recording.save({"x": torch.ones(2)}, mask=np.array([True, False]))
    mask[:] = False
    disk.gate.set()
    recording.close()
    _, one, other = records(recording)
    assert one.masked == other.masked


def test_saving_more_than_may_be_held_waits_for_the_disk(
    disk: Blocked, probe: Any, watched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    background, condition = watched(limit=3 * (8000 + JOB_BYTES))
    monkeypatch.setattr("probe.collect.probe.Background", lambda: background)
    recording = probe()
    saved: list[int] = []

    def produce() -> None:
        for number in range(8):
            recording.save({"x": torch.full((1000,), number, dtype=torch.int64)})
            saved.append(number)

    producer = thread("producer", produce)
    assert condition.seen.wait(PATIENCE), "it did not wait"
    assert saved == [0, 1, 2]
    disk.gate.set()
    assert joined(producer)
    recording.close()
    found = records(recording)
    assert [int(read_values(recording._folder, record)[0]) for record in found] == list(range(8))


def test_what_was_written_is_not_held_any_more(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alive: list[weakref.ref[Any]] = []
    dead: list[list[bool]] = []
    real = DumpWriter.add

    def add(writer: DumpWriter, tag: str, *arguments: Any) -> None:
        dead.append([reference() is None for reference in alive])
        alive.append(weakref.ref(arguments[5].stored))  # the values, a view of the snapshot's bytes
        real(writer, tag, *arguments)

    monkeypatch.setattr(DumpWriter, "add", add)
    recording = probe()
    for number in range(5):
        recording.save({"x": np.full(100, number)})
    recording.close()
    assert dead == [[True] * number for number in range(5)]


def test_what_the_writer_remembers_does_not_grow_with_the_steps(probe: Any) -> None:
    recording = probe(key_data="digests")
    recording.attach(actor=torch.nn.Linear(2, 2))
    writer = recording._writer
    sizes = []
    for _ in range(6):
        recording.save({"x": 1})
        recording.step()
        done = threading.Event()
        recording._background.submit(done.set, 0)
        assert done.wait(PATIENCE)
        sizes.append(len(writer._calls) + len(writer._numbers))
    recording.close()
    assert sizes[-1] == sizes[1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestForks:
    @pytest.mark.parametrize("action", ["save", "step"])
    def test_a_child_that_records_is_told_and_what_is_lost_leaves_a_trace(
        self, disk: Blocked, probe: Any, tmp_path: Path, action: str
    ) -> None:
        recording = probe()
        recording.save({"x": torch.ones(3)})
        assert disk.reached.wait(PATIENCE)  # the fork comes while the thread is at work
        told = tmp_path / "told"
        pid = os.fork()
        if pid == 0:  # pragma: no cover  (ends without a word to pytest)
            signal.alarm(int(PATIENCE))  # rather than a deadlock
            try:
                if action == "save":
                    recording.save({"y": torch.ones(3)})
                else:
                    recording.step()
                told.write_text("nothing")
            except BaseException as error:  # noqa: BLE001
                told.write_text(f"{type(error).__name__}: {error}")
                try:
                    recording.close()  # must not touch the parent's dump
                except BaseException as late:  # noqa: BLE001
                    told.write_text(f"close: {late}")
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert told.read_text() == (
            "RecordError: a forked process cannot record into its parent's dump; save in the parent"
        )
        disk.gate.set()
        recording.save({"z": torch.zeros(3)})
        recording.step()
        recording.close()
        dump = read_dump(recording._folder)
        assert [r.tag for r in dump.records[0]] == ["x", "z"]
        assert (dump.complete, len(dump.problems)) == (False, 1)  # what the child wanted to record is missing
        assert f"lost-in-a-fork-{pid}" in dump.problems[0]


def test_no_real_name_is_there_before_its_file_is_whole(probe: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen in the middle of every write of values."""
    recording = probe()
    middle: list[set[str]] = []
    real = writer.write_npy

    def write(file: Any, values: Any) -> None:
        real(file, values)
        file.flush()
        middle.append({path.name for path in (recording._folder / "data").rglob("*") if path.is_file()})

    monkeypatch.setattr("probe.store.writer.write_npy", write)
    recording.save({"x": torch.ones(3)})
    recording.save({"x": torch.ones(3)})
    recording.close()
    assert middle == [{".x.npy.partial"}, {"x.npy", "x.json", ".x.1.npy.partial"}]
    assert not list(recording._folder.rglob("*.partial"))


def test_other_threads_may_save_and_are_in_no_stage_of_this_one(probe: Any) -> None:
    recording = probe()

    def produce(who: int) -> None:
        for number in range(50):
            recording.save({f"t{who}": torch.full((4,), number)}, rank=who)

    with recording.stage("actor_update"):
        assert joined(*(thread(f"p{who}", partial(produce, who)) for who in range(3)))
    recording.step()
    recording.close()
    dump = read_dump(recording._folder)
    assert (dump.complete, dump.problems) == (True, [])
    for who in range(3):
        found = dump.records[who]
        assert [(record.tag, record.call, record.stage) for record in found] == [
            (f"t{who}", number, None) for number in range(50)
        ]
        assert [int(read_values(dump.folder, record)[0]) for record in found] == list(range(50))


class TestErrorsBesideTheTraining:
    def test_raise_tells_the_next_save_and_the_dump_is_not_whole(self, disk: Blocked, probe: Any) -> None:
        disk.error = OSError(28, "No space left on device")
        recording = probe()
        recording.save({"x": 1})
        disk.gate.set()
        recording._background._thread.join(PATIENCE)
        with pytest.raises(DumpError, match="recording stopped at step 0: .*No space left") as caught:
            recording.save({"y": 1})
        assert str(recording._folder) in str(caught.value)
        recording.save({"y": 1})  # told once; what follows is not recorded
        recording.step()
        recording.close()
        dump = read_dump(recording._folder)
        assert (dump.complete, dump.records) == (False, {})
        assert "No space left on device" in dump.problems[0]
        assert len(dump.problems) == 1

    def test_raise_tells_the_end_of_the_step(self, disk: Blocked, probe: Any) -> None:
        disk.error = RecordError("cannot be written")
        recording = probe()
        recording.save({"x": 1})
        disk.gate.set()
        recording._background._thread.join(PATIENCE)
        with pytest.raises(RecordError, match="cannot be written"):
            recording.step()

    def test_raise_tells_the_end_of_the_run(self, disk: Blocked, probe: Any) -> None:
        disk.error = OSError(5, "Input/output error")
        recording = probe()
        recording.save({"x": 1})
        recording.step()
        disk.gate.set()
        with pytest.raises(DumpError, match="Input/output error"):
            recording.close()
        dump = read_dump(recording._folder)
        assert (dump.complete, dump.steps_finished) == (False, 0)

    def test_a_trainer_that_failed_hears_only_of_its_own_error(self, disk: Blocked, probe: Any, capsys: Any) -> None:
        disk.error = OSError(5, "Input/output error")
        recording = probe()
        recording.save({"x": 1})
        disk.gate.set()
        recording.close(failed=True)
        dump = read_dump(recording._folder)
        assert not dump.complete and "Input/output error" in dump.problems[0]
        assert capsys.readouterr().err == "", "the trainer's error is the last word, also when the interpreter ends"

    def test_continue_trains_on_and_says_it_once(self, disk: Blocked, probe: Any, capsys: Any) -> None:
        disk.error = OSError(28, "No space left on device")
        recording = probe(on_error="continue")
        model = torch.nn.Linear(1, 1)
        recording.attach(actor=model)
        recording.save({"x": 1})
        disk.gate.set()
        recording._background._thread.join(PATIENCE)
        for _ in range(3):
            with recording.stage("actor_update"):
                recording.save({"y": 1})
            recording.step()
        recording.close()
        dump = read_dump(recording._folder)
        assert (dump.complete, dump.steps_finished) == (False, 0)
        assert "No space left on device" in dump.problems[0]
        assert capsys.readouterr().err.count("training goes on") == 1

    def test_continue_says_it_at_the_end_when_nothing_was_saved_since(
        self, disk: Blocked, probe: Any, capsys: Any
    ) -> None:
        disk.error = OSError(28, "No space left on device")
        recording = probe(on_error="continue")
        recording.save({"x": 1})
        disk.gate.set()
        recording.close()
        assert not read_dump(recording._folder).complete
        assert "No space left on device" in capsys.readouterr().err

    def test_an_error_at_the_call_does_not_lose_what_was_saved_before(self, disk: Blocked, probe: Any) -> None:
        recording = probe()
        for number in range(20):
            recording.save({"x": number})
        with pytest.raises(RecordError):
            recording.save({"y": object()})
        disk.gate.set()
        recording.close()
        dump = read_dump(recording._folder)
        assert [record.tag for record in dump.records[0]] == ["x"] * 20
        assert not dump.complete


def test_an_interrupt_while_the_end_waits_leaves_no_complete_dump(
    disk: Blocked, probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while ``close`` waits for the disk raises KeyboardInterrupt out of ``Thread.join``."""
    recording = probe(key_data="digests")
    recording.save({"x": 1})
    recording.step()
    background = recording._background

    def interrupted(timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch:
            patch.setattr(background._thread, "join", interrupted)
            with pytest.raises(KeyboardInterrupt):
                recording.close()
        assert not manifest(recording)["complete"]
    finally:
        disk.error = RuntimeError("the thread is to end")
        disk.gate.set()
        background._thread.join(PATIENCE)
