"""What the contenders work on is what it is said to be."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from probe.bench.byte_contenders import ours, plain_reading
from probe.bench.byte_files import write_single_save_tree
from probe.bench.digests import write_digests
from probe.bench.locating import faulty_event, measure_locating, write_differing_traces
from probe.bench.recording import training
from probe.bench.sizes import BytesSize, DigestsSize, LocateSize, RecordingSize
from probe.compare import compare_traces
from probe.errors import InternalError
from probe.store.reader import read_dump
from probe.store.trace_reader import TraceReader
from probe.store.traces import read_traces

needs_msprobe = pytest.mark.skipif(
    importlib.util.find_spec("msprobe") is None, reason="msprobe's wheels are for Linux only"
)


@needs_msprobe
def test_the_files_lie_as_single_save_lays_them(tmp_path: Path, single_save_tree: Path):
    write_single_save_tree(tmp_path / "a", BytesSize(files=25, file_bytes=40))
    (real,) = (single_save_tree / "data/prompts/step0").rglob("*.json")
    made = tmp_path / "a" / real.relative_to(single_save_tree)
    assert json.loads(made.read_text())["data"].keys() == json.loads(real.read_text())["data"].keys()
    assert np.load(made.with_suffix(".npy")).dtype == np.load(real.with_suffix(".npy")).dtype == np.float32


def test_the_files_have_the_size_and_differ_from_each_other(tmp_path: Path):
    write_single_save_tree(tmp_path / "a", BytesSize(files=25, file_bytes=40))
    files = list((tmp_path / "a").rglob("*.npy"))
    assert len(files) == 25
    assert {np.load(file).nbytes for file in files} == {40}
    assert len({file.read_bytes() for file in files}) == 25
    dump = read_dump(tmp_path / "a")
    assert dump.problems == []
    assert sum(map(len, dump.records.values())) == 25


def test_a_contender_that_is_wrong_does_not_count(tmp_path: Path):
    for name in "ab":
        write_single_save_tree(tmp_path / name, BytesSize(files=3, file_bytes=40))
    assert ours(tmp_path / "a", tmp_path / "b") > 0
    assert plain_reading(tmp_path / "a", tmp_path / "b") > 0
    file = next((tmp_path / "b").rglob("*.npy"))
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    for contender in (ours, plain_reading):
        with pytest.raises(InternalError):
            contender(tmp_path / "a", tmp_path / "b")


def test_the_digests_are_spread_over_ranks_steps_and_tags(tmp_path: Path):
    write_digests(tmp_path / "a", DigestsSize(ranks=3, records=50, steps=4))
    dump = read_dump(tmp_path / "a")
    assert (dump.complete, dump.problems, dump.steps_finished) == (True, [], 4)
    assert {rank: len(records) for rank, records in dump.records.items()} == {0: 50, 1: 50, 2: 50}
    steps = Counter(record.step for record in dump.records[0])
    assert sorted(steps.values()) == [12, 12, 13, 13]
    assert len({record.tag for record in dump.records[0]}) == 12
    assert len({record.digest for records in dump.records.values() for record in records}) == 150
    assert not list((tmp_path / "a").rglob("*.npy"))


def test_the_traces_differ_from_the_middle_on_and_first_in_one_rank(tmp_path: Path):
    size = LocateSize(ranks=3, events=2000, steps=4)
    write_differing_traces(tmp_path / "a", tmp_path / "b", size)
    found = compare_traces(tmp_path / "a", tmp_path / "b")
    assert found.problems == []
    assert {rank: (trace.first_index, trace.counts["different"]) for rank, trace in found.ranks.items()} == {
        0: (1500, 500),
        1: (1000, 1000),
        2: (1500, 500),
    }
    assert faulty_event(size) == (1, 1000)
    with TraceReader(read_traces(tmp_path / "a").ranks[0]) as reader:
        lines = reader.chunk().splitlines(keepends=True)
        events = [reader.parse(line, number) for number, line in enumerate(lines)]
        assert reader.finish() is None
    assert [event.line() for event in events] == lines
    assert len({(event.step, event.name, event.kind, event.call) for event in events}) == 2000


@pytest.mark.slow
def test_two_million_events_in_each_of_four_ranks(tmp_path: Path):
    """At the reference size: the right event, in bounded memory."""
    measured = measure_locating(replace(LocateSize(), rounds=1), tmp_path)
    assert measured["trace_memory_mb"] < 1000


def test_the_reference_workload_is_a_qwen2_of_four_layers_and_thirty_two_responses():
    config = training(RecordingSize())
    assert config.model.config["num_hidden_layers"] == 4
    assert config.model.config["hidden_size"] == 512
    assert config.megatron_training.global_batch_size * config.rl_config.n_samples_per_prompt == 32


SINGLE_SAVE = """
import sys
from pathlib import Path
import torch
from probe.bench.single_save import SingleSaveProbe

for name in ("first", "second"):
    probe = SingleSaveProbe(Path(sys.argv[1]) / name)
    with probe.stage("actor_update"):
        probe.save({"loss": torch.tensor(0.5)}, micro_step=7)
        probe.save({"loss": torch.tensor(0.25)})
        probe.save({"responses": {"tokens": torch.ones(2), "log_probs": torch.zeros(2)}}, mask=torch.ones(2))
    probe.step()
    probe.close()
print(probe.active)
"""


@needs_msprobe
def test_single_save_writes_what_mindspeed_rl_would_have_it_write(tmp_path: Path, run_python):
    assert run_python(SINGLE_SAVE, tmp_path).splitlines()[-1] == "False"
    data = tmp_path / "first" / "data"
    files = {path.relative_to(data).as_posix() for path in data.rglob("*.npy")}
    in_a_step = {
        "micro_step0/loss.npy",
        "micro_step1/loss.npy",
        "micro_step0/responses.tokens.npy",
        "micro_step0/responses.log_probs.npy",
    }
    tag = {name: name.split("/")[1].split(".")[0] for name in in_a_step}
    assert files == {f"{tag[name]}/step{step}/rank0/{name}" for name in in_a_step for step in (0, 1)}
    assert not (tmp_path / "second").exists()  # a singleton: the first folder stays
