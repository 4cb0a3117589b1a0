"""msprobe's official tables, made by real msprobe."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from probe.report import key_data_tables, layer_tables, tables

MakeDump = Callable[..., Path]

needs_msprobe = pytest.mark.skipif(
    importlib.util.find_spec("msprobe") is None, reason="msprobe's wheels are for Linux only"
)


@needs_msprobe
def test_key_data_tables_are_made_for_every_tag(make_dump: MakeDump, tmp_path: Path) -> None:
    a = make_dump("a", [("prompts", torch.arange(6)), ("loss", 1.0), ("rewards", torch.ones(2))])
    b = make_dump("b", [("prompts", torch.arange(6)), ("loss", 1.5)])
    found = key_data_tables(a, b, tmp_path / "check" / "keydata")
    assert [path.name for path in found.made] == ["loss.xlsx", "prompts.xlsx", "rewards.xlsx"]
    assert found.not_made == []
    assert pd.read_excel(tmp_path / "check" / "keydata" / "rewards.xlsx").empty  # it looks at common keys only
    assert "0.5" in pd.read_excel(tmp_path / "check" / "keydata" / "loss.xlsx").to_string()


@needs_msprobe
def test_layer_tables_are_made_for_every_window(layer_runs: Path, tmp_path: Path) -> None:
    one_step = shutil.ignore_patterns("step1")
    c, d = (shutil.copytree(layer_runs / name, tmp_path / name, ignore=one_step) for name in ("base", "both-ranks"))
    found = layer_tables(c, d, tmp_path / "layers")
    assert found.not_made == []
    names = sorted(path.name.removeprefix("compare_result_").rsplit("_", 1)[0] for path in found.made)
    assert names == [
        "actor_update_step0_micro_step1_rank0",
        "actor_update_step0_rank0",
        "reference_compute_log_prob_step0_rank0",
        "reference_compute_log_prob_step0_rank1",
    ]
    assert all(path.suffix == ".xlsx" and path.parent == tmp_path / "layers" for path in found.made)
    table = next(path for path in found.made if "reference_compute_log_prob_step0_rank0" in path.name)
    assert "Module.b.fc1.Linear.forward.0" in pd.read_excel(table).to_string()


def test_no_values_make_no_tables(make_dump: MakeDump, tmp_path: Path) -> None:
    dumps = [make_dump(name, [("loss", 1.0)], keep_values=False) for name in "ab"]
    found = key_data_tables(*dumps, tmp_path / "keydata")
    assert found.made == []
    assert found.not_made == ["keydata: no values were kept to compare"]
    assert not (tmp_path / "keydata").exists()


def test_no_layers_make_no_tables(make_dump: MakeDump, layer_runs: Path, tmp_path: Path) -> None:
    found = layer_tables(make_dump("a", []), layer_runs / "base", tmp_path / "layers")
    assert found.not_made == ["layers: no layers were dumped in both runs"]


@needs_msprobe
def test_a_failure_of_msprobe_is_said(make_dump: MakeDump, tmp_path: Path) -> None:
    a = make_dump("a", [("loss", 1.0)])
    b = make_dump("b", [], finish=False)
    found = key_data_tables(a, b, tmp_path / "keydata")
    assert found.made == []
    (sentence,) = found.not_made
    assert sentence.startswith("keydata/loss.xlsx: ")
    assert "\n" not in sentence


def test_without_msprobe_the_reason_is_said(
    make_dump: MakeDump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # as on another system than Linux
    dumps = [make_dump(name, [("loss", 1.0)]) for name in "ab"]
    found = key_data_tables(*dumps, tmp_path / "keydata")
    assert found.not_made == ["keydata/loss.xlsx: msprobe is not installed (its wheels are for Linux)"]


@needs_msprobe
def test_a_deadline_is_kept_and_said(make_dump: MakeDump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TIME_LIMIT", 0.1)
    dumps = [make_dump(name, [("loss", 1.0)]) for name in "ab"]
    found = key_data_tables(*dumps, tmp_path / "keydata")
    assert found.not_made == ["keydata/loss.xlsx: msprobe took longer than 0.1 s"]
