"""What replaying a captured module answers, and what a capture that is damaged or hostile does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch

from probe.errors import DumpError
from probe.replay import replay_check, summary
from probe.store.packing import pack
from probe.store.reader import read_dump

slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "backward", "result", "operation"),
    [
        pytest.param("Unsteady", False, "confirmed alone", None, marks=slow),
        pytest.param("Noise", False, "confirmed alone", "firstdiff_tests::noise", marks=slow),
        ("Backward", True, "confirmed alone", "firstdiff_tests::noise"),
        pytest.param("OncePerProcess", False, "only across processes", None, marks=slow),
    ],
)
def test_a_module_that_differs(captured, kind, backward, result, operation):
    answer = replay_check(captured(kind, backward), 6)
    assert (answer.result, answer.operation) == (result, operation)
    assert answer.distinct > 1
    assert answer.times == 6
    assert answer.module == "actor.part"
    assert result in summary(answer)
    if operation is None:
        assert answer.instead is not None
        assert answer.operation_backward is False
    else:
        assert answer.operation_backward is backward


@pytest.mark.parametrize(("name", "backward"), [("actor.part", True), pytest.param("actor", False, marks=slow)])
def test_a_steady_module_is_not_reproduced_and_gives_what_the_training_had(captured, name, backward):
    answer = replay_check(captured("Steady", backward, name), 5)
    assert answer.result == "not reproduced alone"
    assert answer.distinct == 1
    assert answer.equals_captured
    assert {one["distinct"] for one in answer.tried} == {1}
    assert "memory, streams" in summary(answer)


@pytest.mark.parametrize(
    ("before", "found"),
    [
        (lambda model: torch.rand(1), "rng.cpu"),
        (lambda model: model.part.inner.weight.data.add_(1), "weights.inner.weight"),
    ],
)
def test_what_changed_within_the_stage_before_the_call_is_named(captured, tmp_path, before, found):
    captured("Steady", folder="check/c/msprobe_dump")
    captured("Steady", folder="check/d/msprobe_dump", before=before)
    answer = replay_check(tmp_path / "check", 2)
    assert answer.result == "not reproduced alone"
    assert answer.before == [found]
    assert f"{found} was not the same in runs c and d" in summary(answer)


@slow
def test_a_module_that_depends_on_threads(captured):
    answer = replay_check(captured("Threads"), 3)
    assert answer.result.startswith("only with ")
    assert answer.result.endswith(("threads", "thread"))
    assert answer.distinct > 1
    assert answer.equals_captured


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("crash", "SIGSEGV"),
        pytest.param("hang", "hung", marks=slow),
        pytest.param("raise", "not today", marks=slow),
        pytest.param("exit", "exit status 7", marks=slow),
    ],
)
def test_a_crash_or_a_hang_is_an_answer(captured, monkeypatch, how, words):
    dump = captured("Crash")
    monkeypatch.setenv("REPLAYED", how)
    with pytest.raises(DumpError, match=words):
        replay_check(dump, 2, seconds=1, patience=2)


def test_a_capture_is_whole_and_readable(captured):
    dump = captured("Steady", True)
    info = json.loads((dump / "capture/capture.json").read_text())
    tensors = safetensors.numpy.load_file(dump / "capture/tensors.safetensors")
    assert set(tensors) == set(info["tensors"])
    inputs = {item[0]: item for item in info["inputs"]}
    assert set(inputs) == {"args.0", "kwargs.extra.scale"}
    assert info["tensors"]["inputs.args.0"]["stride"] == [1, 4]
    for name in ("weights.inner.weight", "buffers.count", "grad_output.out.x", "grad_input.args.0.0", "rng.cpu"):
        assert name in tensors, name
    assert {"param_grad.inner.weight", "before.inner.weight", "output.out.x"} <= set(tensors)
    assert info["settings"]["training"] is True and info["settings"]["grad"] is True
    assert read_dump(dump).complete


def test_what_cannot_be_captured_is_a_note(captured):
    dump = captured("Held")
    assert read_dump(dump).complete
    with pytest.raises(DumpError, match="not captured: actor.part"):
        replay_check(dump)


def test_a_call_that_never_comes_is_a_note(captured):
    with pytest.raises(DumpError, match="never came"):
        replay_check(captured("Steady", name="actor.nowhere"))


def _damage(dump: Path, how: str) -> None:
    folder = dump / "capture"
    info = json.loads((folder / "capture.json").read_text())
    match how:
        case "no json":
            (folder / "capture.json").write_text("{")
        case "deep json":
            (folder / "capture.json").write_text("[" * 100_000)
        case "other json":
            (folder / "capture.json").write_text("[]")
        case "keys":
            del info["settings"]
            (folder / "capture.json").write_text(json.dumps(info))
        case "linked":
            (folder / "module.pkl").unlink()
            (folder / "module.pkl").symlink_to("/etc/passwd")
        case "gone":
            (folder / "call.pkl").unlink()
        case "folder":
            shutil.move(folder, dump / "elsewhere")
            folder.symlink_to(dump / "elsewhere")
        case "tensors":
            path = folder / "tensors.safetensors"
            path.write_bytes(path.read_bytes()[:100])
        case "pickle":
            (folder / "module.pkl").write_bytes(b"\x80\x04nonsense")
        case "types":
            info["tensors"]["inputs.args.0"]["stride"] = ["x", {}]
            (folder / "capture.json").write_text(json.dumps(info))
        case "settings":
            info["settings"] = {"variables": {"A=B": "c"}, "threads": "many"}
            (folder / "capture.json").write_text(json.dumps(info))


QUICK = ("no json", "deep json", "other json", "keys", "linked", "gone", "folder")


@pytest.mark.parametrize(
    "how", [*QUICK, *(pytest.param(how, marks=slow) for how in ("tensors", "pickle", "types", "settings"))]
)
def test_a_damaged_capture_is_one_sentence(captured, how):
    dump = captured("Steady")
    _damage(dump, how)
    with pytest.raises(DumpError) as raised:
        replay_check(dump, 2)
    assert len(str(raised.value).splitlines()) == 1


@slow
def test_a_packed_capture_is_replayed(captured, tmp_path):
    dump = captured("Unsteady", folder="check/c/msprobe_dump")
    assert pack(dump) is not None
    assert not (dump / "capture").exists()
    answer = replay_check(tmp_path / "check", 3)
    assert (answer.result, answer.run) == ("confirmed alone", "c")


def test_the_command(captured: Any, firstdiff: Any, tmp_path: Path) -> None:
    done = firstdiff("replay", "nowhere", "--json")
    assert (done.status, done.document["verdict"]) == (64, None)
    assert firstdiff("replay", captured("Held"), "--json").status == 2
