"""msprobe's layer dumps, read as windows and as events in execution order."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from probe.errors import DumpError
from probe.store.digest import digest
from probe.store.layers import LayerEvent, Window, content_of, find_windows, load_tensor, read_events

REFERENCE = "reference_compute_log_prob"
UPDATE = "actor_update"

FORWARD = """
a entered, a.fc1 entered, a.fc1 left, a.act entered, a.act left, a.fc2 entered, a.fc2 left, a left,
b entered, b.fc1 entered, b.fc1 left, b.act entered, b.act left, b.fc2 entered, b.fc2 left, b left
"""
BACKWARD = """
b arrived, b.fc2 arrived, b.fc2 passed on, b.act arrived, b.act passed on, b.fc1 arrived, b.fc1 passed on, b passed on,
a arrived, a.fc2 arrived, a.fc2 passed on, a.act arrived, a.act passed on, a.fc1 arrived, a.fc1 passed on, a passed on
"""
WORDS = {
    "forward_input": "entered",
    "forward_output": "left",
    "grad_output": "arrived",
    "grad_input": "passed on",
}


@pytest.fixture
def dump(layer_runs: Path, tmp_path: Path) -> Path:
    """A dump of our own probe, to be changed."""
    return Path(shutil.copytree(layer_runs / "base", tmp_path / "dump"))


@pytest.fixture
def update(layer_runs: Path) -> Window:
    """A window with a forward and a backward pass."""
    return next(window for window in find_windows(layer_runs / "base") if window.stage == UPDATE)


def story(events: list[LayerEvent], kinds: set[str]) -> list[str]:
    return [f"{event.name} {WORDS.get(event.kind, event.kind)}" for event in events if event.kind in kinds]


def in_words(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


class TestWindows:
    def test_are_found_in_the_order_in_which_they_opened(self, layer_runs: Path) -> None:
        windows = find_windows(layer_runs / "base")
        one_step = [(REFERENCE, 0, 0), (REFERENCE, 1, 0), (UPDATE, 0, 0), (UPDATE, 0, 1)]
        assert [window.key for window in windows] == [
            (stage, step, rank, micro_step) for step in (0, 1) for stage, rank, micro_step in one_step
        ]
        assert [window.order for window in windows] == list(range(8))
        assert all(window.complete for window in windows)
        assert {(window.stage, window.role) for window in windows} == {(REFERENCE, "reference"), (UPDATE, "actor")}

    def test_the_first_lies_where_msprobe_puts_it(self, dump: Path) -> None:
        folders = [window.folder.relative_to(dump).as_posix() for window in find_windows(dump) if window.step == 0]
        assert folders == [
            f"{REFERENCE}/step0/rank0",
            f"{REFERENCE}/step0/rank1",
            f"{UPDATE}/step0/rank0",
            f"{UPDATE}/step0/rank0/micro_step1",
        ]

    def test_that_were_cut_off_are_not_complete(self, dump: Path) -> None:
        (dump / UPDATE / "step0/rank0/window.json").unlink()
        windows = {window.key: window.complete for window in find_windows(dump)}
        assert not windows.pop((UPDATE, 0, 0, 0))
        assert all(windows.values())

    def test_that_another_tool_wrote_have_the_stages_role_and_order(self, dump: Path) -> None:
        (dump / "manifest.json").unlink()
        for file in dump.rglob("window.json"):
            file.unlink()
        windows = find_windows(dump)
        assert all(window.complete for window in windows)
        assert [window.stage for window in windows if window.step == 0] == [REFERENCE, REFERENCE, UPDATE, UPDATE]
        assert {(window.stage, window.role) for window in windows} == {(REFERENCE, "reference"), (UPDATE, "actor")}

    def test_are_none_in_a_folder_without_stages(self, tmp_path: Path) -> None:
        assert find_windows(tmp_path) == []

    def test_with_a_damaged_marker_are_an_error(self, dump: Path) -> None:
        file = dump / UPDATE / "step0/rank0/window.json"
        file.write_text("{")
        with pytest.raises(DumpError, match=r"window\.json: damaged"):
            find_windows(dump)

    @pytest.mark.parametrize("marker", ['{"order": "first"}', '{"order": null}'])
    def test_with_a_wrong_marker_are_an_error(self, dump: Path, marker: str) -> None:
        (dump / UPDATE / "step0/rank0/window.json").write_text(marker)
        with pytest.raises(DumpError, match=r"window\.json"):
            find_windows(dump)


class TestEvents:
    def test_of_the_forward_pass_are_in_execution_order(self, update: Window) -> None:
        assert story(read_events(update), {"forward_input", "forward_output"}) == in_words(FORWARD)

    def test_of_the_backward_pass_are_in_execution_order(self, update: Window) -> None:
        found = story(read_events(update), {"grad_output", "grad_input"})
        # When a block's own gradient is passed on is msprobe's matter; everything else has one order.
        blocks = {"a passed on", "b passed on"}
        assert [word for word in found if word not in blocks] == [w for w in in_words(BACKWARD) if w not in blocks]
        assert sorted(found) == sorted(in_words(BACKWARD))

    def test_parameters_come_first_and_once(self, update: Window) -> None:
        events = read_events(update)
        names = {f"{block}.{layer}.{kind}" for block in "ab" for layer in ("fc1", "fc2") for kind in ("weight", "bias")}
        assert {event.name for event in events[:8]} == names
        assert [event.kind for event in events].count("weights") == 8
        assert all(event.kind == "weights" for event in events[:8])

    def test_a_parameters_gradient_comes_after_its_modules_arrived(self, update: Window) -> None:
        keys = [event.key for event in read_events(update)]
        for block in "ab":
            for layer in ("fc1", "fc2"):
                arrived = keys.index(("grad_output", f"{block}.{layer}", 0))
                assert keys.index(("param_grad", f"{block}.{layer}.weight", 0)) > arrived

    def test_have_distinct_keys(self, layer_runs: Path) -> None:
        for run in ("base", "calls"):
            for window in find_windows(layer_runs / run):
                keys = [event.key for event in read_events(window)]
                assert len(keys) == len(set(keys))

    def test_know_the_module_that_called_theirs(self, update: Window) -> None:
        parents = {event.name: event.parent for event in read_events(update) if event.kind == "forward_input"}
        assert parents == {
            "a": None, "a.fc1": "a", "a.act": "a", "a.fc2": "a",
            "b": None, "b.fc1": "b", "b.act": "b", "b.fc2": "b",
        }  # fmt: skip

    def test_count_the_calls_of_a_module(self, layer_runs: Path) -> None:
        window = next(w for w in find_windows(layer_runs / "calls") if w.stage == UPDATE)
        calls = [event.call for event in read_events(window) if (event.kind, event.name) == ("forward_input", "b")]
        assert calls == [0, 1]

    def test_two_windows_of_a_stage_count_from_zero_each(self, layer_runs: Path) -> None:
        windows = [w for w in find_windows(layer_runs / "base") if w.stage == UPDATE]
        assert {event.call for window in windows for event in read_events(window)} == {0}

    @pytest.mark.parametrize("name", ["Functional.add.0.forward", "Tensor.view.0.forward", "nonsense"])
    def test_of_another_level_are_an_error(self, dump: Path, name: str) -> None:
        file = dump / UPDATE / "step0/rank0/dump.json"
        content = json.loads(file.read_text())
        content["data"][name] = {}
        file.write_text(json.dumps(content))
        with pytest.raises(DumpError, match="is not a module"):
            read_events(find_windows(dump)[2])

    def test_of_a_module_that_construct_leaves_out_are_an_error(self, dump: Path) -> None:
        file = dump / UPDATE / "step0/rank0/construct.json"
        content = json.loads(file.read_text())
        del content["Module.b.act.Tanh.forward.0"]
        file.write_text(json.dumps(content))
        with pytest.raises(DumpError, match=r"Module\.b\.act\.Tanh\.forward\.0' is in dump\.json, not in construct"):
            read_events(find_windows(dump)[2])


class TestContent:
    def test_of_a_tensor_is_its_dtype_shape_and_digest(self, update: Window) -> None:
        (event,) = (e for e in read_events(update) if e.key == ("forward_output", "a.act", 0))
        ((path, found),) = content_of(update, event)
        tensor = load_tensor(update, "Module.a.act.Tanh.forward.0.output.0.pt")
        assert path == "0"
        assert found.form == "float32[2, 8]"
        assert found.exact == digest("float32", (2, 8), tensor.numpy().tobytes())

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.tensor(1.5),
            torch.ones(2, 3).t(),
            torch.tensor([True, False]),
            torch.ones(3, dtype=torch.bfloat16),
            torch.ones(3).to(torch.float8_e4m3fn),
            torch.tensor([1 + 2j]).conj(),
            torch.zeros(0, 4),
            torch.tensor([1 + 2j]).conj().imag,
        ],
        ids=["scalar", "transposed", "bool", "bfloat16", "float8", "conjugate", "empty", "negative view"],
    )
    def test_of_every_kind_of_tensor(self, tmp_path: Path, tensor: torch.Tensor) -> None:
        (tmp_path / "dump_tensor_data").mkdir()
        torch.save(tensor, tmp_path / "dump_tensor_data" / "x.pt")
        window = Window(tmp_path, UPDATE, 0, 0, 0, "actor", 0, True)
        event = LayerEvent("forward_output", "m", 0, None, (("", {"type": "torch.Tensor", "data_name": "x.pt"}),))
        ((_, found),) = content_of(window, event)
        assert found.form == f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        assert found.exact == digest(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw)

    @pytest.mark.parametrize(
        ("left", "right"),
        [
            ({"type": "int", "value": 1}, {"type": "int", "value": 2}),
            ({"type": "str", "value": "a"}, {"type": "str", "value": "b"}),
            ({"type": "torch.dtype", "value": "torch.float32"}, {"type": "torch.dtype", "value": "torch.float16"}),
            (None, {"type": "int", "value": 1}),
        ],
    )
    def test_of_what_is_no_tensor_counts_too(self, update: Window, left: object, right: object) -> None:
        contents = [content_of(update, LayerEvent("forward_input", "m", 0, None, (("", v),))) for v in (left, right)]
        assert contents[0] != contents[1]

    def test_of_a_file_that_holds_no_tensor_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "dump_tensor_data").mkdir()
        torch.save([1, 2], tmp_path / "dump_tensor_data" / "x.pt")
        np.save(tmp_path / "dump_tensor_data" / "y.npy", np.ones(2))
        window = Window(tmp_path, UPDATE, 0, 0, 0, "actor", 0, True)
        with pytest.raises(DumpError, match="holds a list, not a tensor"):
            load_tensor(window, "x.pt")
        with pytest.raises(DumpError, match="not a readable tensor"):
            load_tensor(window, "y.npy")
        with pytest.raises(DumpError, match="not a readable tensor"):
            load_tensor(window, "nowhere.pt")

    @pytest.mark.parametrize("name", ["../x.pt", "/x.pt", "a/../../x.pt", ".."])
    def test_outside_the_window_is_never_read(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "dump_tensor_data" / "a").mkdir(parents=True)
        torch.save(torch.ones(1), tmp_path / "x.pt")
        window = Window(tmp_path, UPDATE, 0, 0, 0, "actor", 0, True)
        with pytest.raises(DumpError):
            load_tensor(window, str(tmp_path / "x.pt") if name.startswith("/") else name)

    def test_behind_a_link_out_of_the_window_is_never_read(self, tmp_path: Path) -> None:
        folder = tmp_path / "window"
        (folder / "dump_tensor_data").mkdir(parents=True)
        torch.save(torch.ones(1), tmp_path / "x.pt")
        (folder / "dump_tensor_data" / "x.pt").symlink_to(tmp_path / "x.pt")
        with pytest.raises(DumpError, match="outside"):
            load_tensor(Window(folder, UPDATE, 0, 0, 0, "actor", 0, True), "x.pt")


@pytest.mark.parametrize("damage", ['{"task": "tensor", "data": {"Module.a.Block.forward.0": []}}', '{"data": 3}'])
def test_a_dump_of_the_wrong_form_is_an_error(dump: Path, damage: str, edit_json: Callable[..., None]) -> None:
    (dump / UPDATE / "step0/rank0/dump.json").write_text(damage)
    with pytest.raises(DumpError):
        read_events(find_windows(dump)[2])
