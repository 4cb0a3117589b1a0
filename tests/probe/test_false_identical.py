"""What a hostile user got called ``identical`` and must not be, through ``Probe`` and ``compare_dumps``."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probe import Probe
from probe.comparison import compare_dumps
from probe.errors import RecordError, UsageError
from probe.types import RunSpec

Train = Callable[[Probe], None]


def three_steps(probe: Probe) -> None:
    for step in range(3):
        probe.save({"x": float(step), "y": np.arange(4) + step})
        probe.step()


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    def run(name: str, train: Train = three_steps) -> Path:
        probe = Probe(RunSpec(run=name, dump_path=str(tmp_path / name)))
        train(probe)
        probe.close()
        return tmp_path / name

    return run


def _verdict(a: Path, b: Path) -> Any:
    return compare_dumps(a, b, None)["verdict"]


def test_the_same_twice_is_identical(record: Callable[..., Path]) -> None:
    assert _verdict(record("a"), record("b")) == "identical"


def test_steps_without_records_count(record: Callable[..., Path]) -> None:
    def longer(probe: Probe) -> None:
        three_steps(probe)
        probe.step()

    document = compare_dumps(record("a"), record("b", longer), None)
    assert document["verdict"] == "divergent"
    assert (document["cause"]["kind"], document["first"]["step"]) == ("calls", 3)


def test_a_last_step_that_was_not_ended_counts(record: Callable[..., Path]) -> None:
    def cut(probe: Probe) -> None:
        probe.save({"x": 1.0})
        probe.step()
        probe.save({"x": 2.0})

    def whole(probe: Probe) -> None:
        cut(probe)
        probe.step()

    assert _verdict(record("a", whole), record("b", cut)) == "divergent"


def test_another_stage_counts(record: Callable[..., Path]) -> None:
    def inside(stage: str) -> Train:
        def train(probe: Probe) -> None:
            with probe.stage(stage):
                probe.save({"x": 1.0})
            probe.step()

        return train

    document = compare_dumps(record("a", inside("actor_update")), record("b", inside("critic_update")), None)
    assert document["verdict"] == "divergent"
    assert document["cause"]["kind"] == "calls"


def _delete_values(dump: Path) -> None:
    shutil.rmtree(dump / "data")


def _truncate(dump: Path) -> None:
    file = next((dump / "data/y").rglob("*.npy"))
    file.write_bytes(file.read_bytes()[:-1])


def _add_unlisted(dump: Path) -> None:
    shutil.copy(next((dump / "data/y").rglob("y.npy")), dump / "data/y/step0/rank0/micro_step0/y.7.npy")


def _cut_index(dump: Path) -> None:
    index = dump / "index/rank0.jsonl"
    index.write_bytes(b"".join(index.read_bytes().splitlines(keepends=True)[:2]))


def _negative_steps(dump: Path) -> None:
    manifest = json.loads((dump / "manifest.json").read_text())
    (dump / "manifest.json").write_text(json.dumps({**manifest, "steps_finished": -4}))


@pytest.mark.parametrize("both", [False, True], ids=["one", "both"])
@pytest.mark.parametrize("damage", [_delete_values, _truncate, _add_unlisted, _cut_index])
def test_a_damaged_dump_is_inconclusive(
    record: Callable[..., Path], damage: Callable[[Path], None], both: bool
) -> None:
    a, b = record("a"), record("b")
    damage(b)
    if both:
        damage(a)
    document = compare_dumps(a, b, None)
    assert document["verdict"] == "inconclusive"
    assert document["not_compared"]


def test_a_manifest_that_makes_no_sense_is_refused(record: Callable[..., Path]) -> None:
    a, b = record("a"), record("b")
    _negative_steps(b)
    with pytest.raises(Exception, match="damaged"):
        compare_dumps(a, b, None)


def test_a_folder_compared_with_itself_is_said(record: Callable[..., Path]) -> None:
    a = record("a")
    assert compare_dumps(a, a, None)["notes"] == ["both dumps are the same folder"]


def test_results_are_never_written_into_what_is_compared(record: Callable[..., Path]) -> None:
    a, b = record("a"), record("b")
    with pytest.raises(UsageError, match="inside a dump"):
        compare_dumps(a, b, a / "sub")
    assert not (a / "sub").exists()


@pytest.mark.parametrize("place", [{"rank": "/../../x"}, {"micro_step": "/../../x"}, {"rank": -1}, {"micro_step": 0.5}])
def test_no_place_leads_out_of_the_dump(record: Callable[..., Path], tmp_path: Path, place: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match="whole number"):
        record("a", lambda probe: probe.save({"x": 1.0}, **place))
    assert {path.name for path in tmp_path.iterdir()} == {"a"}


@pytest.mark.parametrize(
    "value",
    [
        np.ma.masked_array([1.0, 2.0], [True, False]),
        np.longdouble(1),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    ],
    ids=["masked array", "long double", "nested tensor"],
)
def test_what_has_no_exact_bytes_is_refused(record: Callable[..., Path], value: Any) -> None:
    with pytest.raises(RecordError, match="cannot be recorded"):
        record("a", lambda probe: probe.save({"x": value}))


@pytest.mark.parametrize("data", [[1, 2], None, 3.0])
def test_saving_no_dict_is_one_sentence(record: Callable[..., Path], data: Any) -> None:
    with pytest.raises(RecordError, match="save takes a dict"):
        record("a", lambda probe: probe.save(data))


@pytest.mark.parametrize("tag", ["中" * 150, "x" * 201, "a\ud800b"])
def test_tags_that_no_file_system_takes_are_refused(record: Callable[..., Path], tag: str) -> None:
    with pytest.raises(RecordError, match="not a valid folder name"):
        record("a", lambda probe: probe.save({tag: 1.0}))
