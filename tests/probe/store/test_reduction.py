"""Dumps without their values: compared by digests, with the same verdict."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from probe.comparison import compare_dumps
from probe.errors import DumpError
from probe.store.reader import read_dump
from probe.store.reduction import is_reduced, reduce

MakeDump = Callable[..., Path]


def _saves(loss: float) -> list[tuple[Any, ...]]:
    return [
        ("prompts", torch.arange(6).reshape(2, 3)),
        ("loss", torch.full((4,), loss), {"step": 1, "stage": "actor_update", "mask": torch.tensor([1, 1, 0, 1])}),
        ("weights", {"w": torch.ones(2) * loss}, {"step": 1}),
    ]


def test_only_values_and_layers_go(make_dump: MakeDump) -> None:
    dump = make_dump("a", _saves(0.5))
    (dump / "actor_update/step1/rank0").mkdir(parents=True)
    (dump / "actor_update/step1/rank0/dump.json").write_text("{}")
    before = read_dump(dump).records[0]
    reduce(dump)

    after = read_dump(dump)
    assert after.complete and after.problems == [] and is_reduced(dump)
    assert not list(dump.rglob("*.npy")) and not (dump / "actor_update").exists()
    assert [(r.key, r.digest, r.masked, r.file) for r in after.records[0]] == [
        (r.key, r.digest, r.masked, None) for r in before
    ]
    assert next((dump / "data/loss").rglob("*.json")).is_file(), "statistics stay"
    said = json.loads((dump / "reduced.json").read_text())
    assert (said["values"], said["layers"]) == (2, ["actor_update"])


@pytest.mark.parametrize("which", ["one", "both"])
@pytest.mark.parametrize(("loss", "verdict"), [(0.5, "identical"), (0.25, "divergent")])
def test_the_verdict_is_the_same(make_dump: MakeDump, which: str, loss: float, verdict: str) -> None:
    a, b = make_dump("a", _saves(0.5)), make_dump("b", _saves(loss))
    before = compare_dumps(a, b, None)
    reduce(a)
    if which == "both":
        reduce(b)
    after = compare_dumps(a, b, None)

    assert (before["verdict"], after["verdict"]) == (verdict, verdict)
    for key in ("compared", "different", "missing", "extra", "unreadable", "not_compared", "first"):
        assert after["key_data"][key] == before["key_data"][key], key
    assert any("check.keep" in note and str(a) in note for note in after["notes"])


def test_it_equals_a_recording_of_digests_only(make_dump: MakeDump) -> None:
    a, b = make_dump("a", _saves(0.5)), make_dump("b", _saves(0.5), keep_values=False)
    reduce(a)
    assert (a / "index/rank0.jsonl").read_bytes() == (b / "index/rank0.jsonl").read_bytes()
    assert json.loads((a / "manifest.json").read_text()) == {
        **json.loads((b / "manifest.json").read_text()),
        "run": "a",
    }


def test_what_is_no_whole_dump_keeps_its_values(make_dump: MakeDump, single_save_tree: Path) -> None:
    broken = make_dump("a", _saves(0.5), complete=False)
    for dump in (broken, single_save_tree):
        with pytest.raises(DumpError, match="its values stay"):
            reduce(dump)
        assert list(dump.rglob("*.npy"))
