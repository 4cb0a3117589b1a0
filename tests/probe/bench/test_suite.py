"""The command as a whole. No test asserts a time."""

from __future__ import annotations

import importlib.util
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import pytest

from probe.bench.sizes import REFERENCE, BytesSize, DigestsSize, Sizes
from probe.bench.suite import NAMES, NUMBERS, run_benchmarks, summary
from probe.errors import DumpError, InconclusiveError, UsageError

HAS_MSPROBE = importlib.util.find_spec("msprobe") is not None
OFFICIAL = ("single", "l0", "mix", "dump")
"""What keys that need msprobe begin with."""
RATIOS = {
    "recording": ["key_data_over_off", "single_save_over_off"],
    "bytes": ["times_as_fast_as_single_comparator", "times_as_fast_as_plain_reading"],
    "digests": ["records_per_second", "peak_memory_mb"],
    "device-digest": ["reference_over_xxh3", "torch_on_host_over_xxh3"],
    "trace": [
        "trace_over_off_64",
        "trace_over_key_data_generation",
        "trace_over_off_generation",
        "mix_md5_over_off_64",
        "dump_extra_over_trace_extra_64",
    ],
    "locate": ["seconds", "trace_memory_mb"],
    "overhead": ["outside_trainer_seconds", "first_outside_trainer_seconds"],
}


@pytest.fixture(scope="module")
def measured(tiny_bench):
    """All benchmarks, tiny."""
    return tiny_bench("--json")


def test_all_benchmarks_give_one_strict_document_and_leave_nothing_behind(measured):
    assert measured.status == 0, measured.stderr
    assert list(measured.document) == ["format", "environment", "benchmarks", "targets"]
    assert list(measured.document["benchmarks"]) == list(NAMES)
    assert measured.left_over == []
    assert "Traceback" not in measured.stderr


def test_every_ratio_is_a_positive_number(measured):
    for name, keys in RATIOS.items():
        for key in keys:
            value = measured.document["benchmarks"][name][key]
            assert (value > 0) if HAS_MSPROBE or not key.startswith(OFFICIAL) else (value is None), key


def test_every_contender_has_its_seconds_of_every_round(measured, tiny):
    dumps = {f"64/mix_md5{off}" for off in ("", "/off")}
    official = {"recording": {"single_save"}, "bytes": {"single_comparator"}, "trace": dumps}
    own = {
        "recording": {"off", "key_data"},
        "bytes": {"ours", "plain_reading"},
        "digests": {"ours"},
        "trace": {
            *("64/trace", "64/trace/off"),
            *(f"generation/generation{without}" for without in ("", "/off", "/key_data")),
        },
        "locate": {"ours"},
        "overhead": {"check", "trainers"},
        "device-digest": {"xxh3", "reference", "torch_on_host"},
    }
    if measured.document["benchmarks"]["device-digest"]["device"]:
        own["device-digest"] |= {"copying", "on_device"}
    for name, benchmark in measured.document["benchmarks"].items():
        assert set(benchmark["contenders"]) == own[name] | (official.get(name, set()) if HAS_MSPROBE else set())
        for contender in benchmark["contenders"].values():
            assert len(contender["seconds"]) == asdict(tiny)[name.replace("-", "_")]["rounds"]
            assert min(contender["seconds"]) <= contender["median_seconds"] <= max(contender["seconds"])


def test_the_document_says_what_was_run_and_where(measured, tiny):
    document = measured.document
    assert document["environment"]["versions"]["torch"]
    assert document["environment"]["platform"]["processors"]
    assert document["environment"]["load_average_before"] >= 0
    assert {name.replace("-", "_"): document["benchmarks"][name]["size"] for name in NAMES} == json.loads(
        json.dumps(asdict(tiny))
    )
    assert document["benchmarks"]["recording"]["device"] in ("cpu", "cuda", "npu")


def test_targets_are_judged_by_what_was_measured(measured):
    targets = measured.document["targets"]
    benchmarks = measured.document["benchmarks"]
    assert set(targets) == {
        number.key for number in NUMBERS if number.target and number.key in benchmarks[number.benchmark]
    }
    assert {number.benchmark for number in NUMBERS if number.target} == {
        target["benchmark"] for target in targets.values()
    }
    for key, target in targets.items():
        value = measured.document["benchmarks"][target["benchmark"]][key]
        assert target["measured"] == value
        if value is not None:
            assert target["met"] is (value <= target["at_most"] if "at_most" in target else value >= target["at_least"])


def test_where_the_time_of_tracing_goes_is_said(measured):
    benchmark = measured.document["benchmarks"]["trace"]
    assert list(benchmark["where"]) == ["64", "generation"]
    for place in benchmark["where"].values():
        assert place["events"] > 50
        assert place["hashed_mb"] > 0
        assert place["hashing_seconds"] > 0


def test_people_read_one_line_a_number_and_a_last_one(tiny_bench):
    done = tiny_bench("digests")
    assert done.status == 0, done.stderr
    assert done.stdout == ""
    start, speed, memory, last = done.stderr.splitlines()
    assert start == "digests: measuring"
    assert "records a second compare by digest (target: at least 1,000,000" in speed
    assert "MB of memory (target: at most 300" in memory
    assert last.endswith("of 2 targets met")
    assert done.left_over == []


def test_what_msprobe_was_not_there_for_is_said():
    benchmarks = {"bytes": {"times_as_fast_as_single_comparator": None, "times_as_fast_as_plain_reading": 0.75}}
    targets = {"one": {"met": None}, "other": {"met": True}}
    assert summary({"benchmarks": benchmarks, "targets": targets}) == [
        "bytes compare ? times as fast as SingleComparator does (not measured: msprobe is not installed)",
        "bytes compare 0.75 times as fast as plain reading and comparing (target: at least 0.5)",
        "1 of 2 targets met",
    ]


def test_what_there_was_no_device_for_is_said():
    measured = {"reference_over_xxh3": 40.0, "torch_on_host_over_xxh3": 60.0, "on_device_over_copying": None}
    *_, device, last = summary({"benchmarks": {"device-digest": measured}, "targets": {}})
    assert device.endswith("(not measured: there is no device)")
    assert last == "0 of 0 targets met"


def test_an_unknown_name_is_refused_with_the_names_that_there_are(firstdiff):
    done = firstdiff("bench", "nope", "--json")
    assert done.status == 64
    assert "nope" in json.loads(done.stdout)["error"]
    there = "recording, bytes, digests, device-digest, trace, locate, overhead"
    assert done.last_line == f"firstdiff: nope: no such benchmark; there are {there}"
    with pytest.raises(UsageError, match="nope"):
        run_benchmarks("nope")


def test_a_disk_with_too_little_room_is_said_before_anything_starts(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(DumpError, match=r"MB are free, the benchmarks need \d+ MB .* TMPDIR"):
        run_benchmarks(None, Sizes(bytes=BytesSize(files=1, file_bytes=2 * free)))
    assert list(tmp_path.iterdir()) == []


def test_after_an_error_nothing_is_left_behind(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    nothing = Sizes(digests=DigestsSize(ranks=1, records=0, steps=1, rounds=1))
    with pytest.raises(
        InconclusiveError, match=r"probe.bench.digest_comparison failed \(1\): .*equal dumps of 0 records"
    ):
        run_benchmarks("digests", nothing)
    assert list(tmp_path.iterdir()) == []


def test_the_reference_sizes_are_those_of_the_targets():
    recording, files, digests = REFERENCE.recording, REFERENCE.bytes, REFERENCE.digests
    assert (recording.layers, recording.hidden, recording.prompts, recording.samples) == (4, 512, 8, 4)
    assert (files.files, files.file_bytes) == (600, 1_000_000)
    assert (digests.ranks, digests.records) == (8, 100_000)
    assert (REFERENCE.locate.ranks, REFERENCE.locate.events) == (4, 2_000_000)
    assert (REFERENCE.trace.widths, REFERENCE.trace.sequences * REFERENCE.trace.tokens) == ((64, 512, 1024), 2048)
    assert REFERENCE.device_digest.tensor_bytes == 64 << 20
