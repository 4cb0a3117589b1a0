"""Checks of data parallel training in two processes: DDP and FSDP2, with a fault on rank 1 alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.store.reader import read_dump

SCRIPT = Path(__file__).with_name("two_ranks.py")


@pytest.fixture
def check_ranks(check, tmp_path):
    """Checks ``two_ranks.py`` with the given arguments in two processes; returns the verdict and the folder."""

    def run(*arguments: str) -> tuple[Any, Path]:
        command = ", ".join(["python", str(SCRIPT), *arguments])
        (tmp_path / "profile.yaml").write_text(
            f"trainer: {{kind: command, command: [{command}], nproc_per_node: 2, time_limit: 300}}\n"
            "determinism: {num_threads: 1}\n"
        )
        done = check(tmp_path / "profile.yaml", "--out", tmp_path / "out")
        assert done.status == {"identical": 0, "divergent": 1, "inconclusive": 2}[done.document["verdict"]]
        return done.document, tmp_path / "out"

    return run


def test_two_ranks_that_compute_the_same_are_identical(check_ranks):
    document, out = check_ranks("fsdp", "none", "checkpoint")
    assert document["verdict"] == "identical"
    assert document["not_compared"] == []
    dump = read_dump(out / "a/msprobe_dump")
    weights = {rank: {r.path: r.shape for r in dump.records[rank] if r.tag == "weights"} for rank in (0, 1)}
    assert weights[0]["actor.blocks.0.up.weight"] == (8, 8), "half of [16, 8]: the rank's own shard"
    assert weights[0].keys() == weights[1].keys()
    assert {r.digest for r in dump.records[0] if r.path == "actor.head.bias"} != {
        r.digest for r in dump.records[1] if r.path == "actor.head.bias"
    }
    gradient = next(r for r in dump.records[0] if r.tag == "grad")
    assert gradient.shape == (8, 8)


@pytest.mark.parametrize(
    ("kind", "fault", "first_tag", "ranks"),
    [
        pytest.param("ddp", "forward", "loss", [1]),
        pytest.param("ddp", "backward", "grad", [0, 1], marks=pytest.mark.slow),
        pytest.param("fsdp", "forward", "loss", [1], marks=pytest.mark.slow),
        pytest.param("fsdp", "backward", "grad", [0, 1], marks=pytest.mark.slow),
        pytest.param("ddp checkpoint", "forward", "loss", [1], marks=pytest.mark.slow),
        pytest.param("ddp checkpoint", "backward", "grad", [0, 1], marks=pytest.mark.slow),
        pytest.param("fsdp checkpoint", "forward", "loss", [1], marks=pytest.mark.slow),
        pytest.param("fsdp checkpoint", "backward", "grad", [0, 1], marks=pytest.mark.slow),
    ],
)
def test_a_fault_on_rank_1_is_located_there(check_ranks, kind, fault, first_tag, ranks):
    kind, *rest = kind.split()
    document, out = check_ranks(kind, fault, *rest)
    assert document["verdict"] == "divergent"
    assert (document["first"]["step"], document["first"]["stage"]) == (1, "actor_update")
    assert document["first"]["rank"] == [1]
    assert document["first"]["event"] == {"forward": "forward_output", "backward": "grad_input"}[fault]
    assert document["cause"]["kind"] == f"module_{fault}"
    assert document["cause"]["name"] == "actor.blocks.1.down"
    # what the all-reduce spread is on both ranks
    assert (document["key_data"]["first"]["tag"], document["key_data"]["first"]["rank"]) == (first_tag, ranks)
    assert document["layers"]["reproduced"] is True
    assert document["not_compared"] == []
    assert document["tables"]["not_made"] == []
    dump = read_dump(out / "c/msprobe_dump")
    for rank in (0, 1):
        assert (dump.folder / f"actor_update/step1/rank{rank}/dump.json").is_file()
    assert (dump.complete, sorted(dump.ranks)) == (True, [0, 1])
    assert not any(path.name.startswith(".") for path in dump.folder.iterdir()), "no scratch is left"


def test_the_names_of_a_wrapped_model_are_its_own(check_ranks):
    _, out = check_ranks("ddp", "none")
    records = read_dump(out / "a/msprobe_dump").records[0]
    assert {r.path for r in records if r.tag == "weights"} == {
        *(f"actor.blocks.{block}.{layer}.{name}" for block in (0, 1) for layer in ("up", "down")
          for name in ("weight", "bias")),
        "actor.head.weight",
        "actor.head.bias",
    }  # fmt: skip


@pytest.mark.slow
def test_lora_is_recorded_like_any_model(check_ranks):
    pytest.importorskip("peft", reason="peft is optional; pip install peft")
    document, out = check_ranks("lora", "forward")
    assert (document["verdict"], document["first"]["rank"]) == ("divergent", [1])
    assert document["cause"]["kind"] == "module_forward"
    paths = {r.path for r in read_dump(out / "a/msprobe_dump").records[0] if r.tag == "weights"}
    assert any("lora_A" in path for path in paths)
    assert any("lora_B" in path for path in paths)
