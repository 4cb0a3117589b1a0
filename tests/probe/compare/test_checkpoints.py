"""``firstdiff compare`` on two checkpoints of every format: which parameter differs first, by how much, how sure."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from probe.comparison import compare_dumps
from probe.errors import DumpError, UsageError
from probe.store.checkpoints import is_checkpoint, read_checkpoint
from probe.store.tensors import StoredTensor, numbers

State = dict[str, torch.Tensor]


def state(**changed: torch.Tensor) -> State:
    """A small model's parameters in an order that is not that of their names."""
    torch.manual_seed(0)
    names = ["embed", *(f"layers.{n}.{part}" for n in (0, 1, 2, 10) for part in ("q", "down")), "norm"]
    return OrderedDict((name, changed.get(name.replace(".", "_"), torch.randn(6, 4))) for name in names)


def as_safetensors(tensors: State, folder: Path) -> Path:
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return folder / "model.safetensors"


def as_folder(tensors: State, folder: Path) -> Path:
    as_safetensors(tensors, folder)
    (folder / "config.json").write_text("{}")
    return folder


def as_shards(tensors: State, folder: Path) -> Path:
    folder.mkdir()
    weight_map = {}
    for number, names in enumerate((list(tensors)[:5], list(tensors)[5:])):
        name = f"model-0000{number}-of-00002.safetensors"
        save_file({key: tensors[key] for key in names}, folder / name)
        weight_map.update(dict.fromkeys(names, name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def as_torch(tensors: State, folder: Path) -> Path:
    folder.mkdir()
    torch.save(tensors, folder / "model.pt")
    return folder / "model.pt"


def as_old_torch(tensors: State, folder: Path) -> Path:
    folder.mkdir()
    torch.save(tensors, folder / "model.pt", _use_new_zipfile_serialization=False)
    return folder / "model.pt"


def as_dcp(tensors: State, folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no process group
        dcp.save(dict(tensors), checkpoint_id=folder)
    return folder


FORMATS: dict[str, Callable[[State, Path], Path]] = {
    "safetensors": as_safetensors,
    "folder": as_folder,
    "shards": as_shards,
    "torch": as_torch,
    "old torch": as_old_torch,
    "dcp": as_dcp,
}


@pytest.mark.parametrize("save", FORMATS.values(), ids=FORMATS)
def test_equal_checkpoints_are_identical(tmp_path: Path, save: Callable[[State, Path], Path]) -> None:
    document = compare_dumps(save(state(), tmp_path / "a"), save(state(), tmp_path / "b"), None)
    assert document["verdict"] == "identical"
    assert document["certainty"]["level"] == "exact"
    assert document["key_data"]["compared"] == 10
    assert (document["not_compared"], document["checkpoint"]["parameters"]) == ([], [])


@pytest.mark.parametrize("save", FORMATS.values(), ids=FORMATS)
def test_the_first_parameter_that_differs_is_named_and_by_how_much(
    tmp_path: Path, save: Callable[[State, Path], Path]
) -> None:
    changed = state()
    for name, row in (("layers.2.q", 3), ("layers.10.down", 0)):
        changed[name][row, 1] = torch.nextafter(changed[name][row, 1], torch.tensor(9.0))
    document = compare_dumps(save(state(), tmp_path / "a"), save(changed, tmp_path / "b"), tmp_path / "out")
    first, row = document["first"], document["checkpoint"]["parameters"][0]
    assert document["verdict"] == "divergent"
    assert [row["name"] for row in document["checkpoint"]["parameters"]] == ["layers.2.q", "layers.10.down"]
    assert (first["event"], first["name"], first["step"], first["rank"]) == ("weights", "layers.2.q", None, [])
    assert document["cause"]["kind"] == "weights"
    assert (row["differing"], row["size"], row["max_ulp"], row["first_index"]) == (1, 24, 1, [3, 1])
    assert row["max_absolute"] == abs(row["a"] - row["b"]) > 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Parameters that differ, in order" in page
    assert "layers.2.q: 1 of 24 elements differ" in page


@pytest.mark.parametrize("one", ["shards", "torch", "dcp"])
@pytest.mark.parametrize("other", ["folder", "old torch"])
def test_two_formats(tmp_path: Path, one: str, other: str) -> None:
    changed = state(norm=torch.zeros(6, 4))
    a = FORMATS[one](state(), tmp_path / "a")
    assert compare_dumps(a, FORMATS[other](state(), tmp_path / "b"), None)["verdict"] == "identical"
    document = compare_dumps(a, FORMATS[other](changed, tmp_path / "c"), None)
    assert (document["verdict"], document["first"]["name"]) == ("divergent", "norm")


def test_the_order_is_that_of_the_state_dict_where_a_file_keeps_one(tmp_path: Path) -> None:
    changed = state(embed=torch.ones(6, 4), layers_10_q=torch.ones(6, 4), layers_0_down=torch.ones(6, 4))
    a, b = as_safetensors(state(), tmp_path / "a"), as_torch(changed, tmp_path / "b")
    document = compare_dumps(a, b, None)
    names = [row["name"] for row in document["checkpoint"]["parameters"]]
    assert names == ["embed", "layers.0.down", "layers.10.q"]
    assert document["checkpoint"]["order"] == "as in the state dict"
    turned = OrderedDict(reversed(changed.items()))
    document = compare_dumps(a, as_torch(turned, tmp_path / "c"), None)
    assert [row["name"] for row in document["checkpoint"]["parameters"]] == names[::-1]


class TestWhatDiffers:
    @staticmethod
    def compared(tmp_path: Path, one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
        return compare_dumps(as_torch(one, tmp_path / "a"), as_torch(two, tmp_path / "b"), None)

    def test_a_dtype(self, tmp_path: Path) -> None:
        document = self.compared(tmp_path, state(), state(norm=state()["norm"].double()))
        assert document["checkpoint"]["parameters"][0]["how"] == "float32[6, 4] against float64[6, 4]"

    def test_a_shape(self, tmp_path: Path) -> None:
        document = self.compared(tmp_path, state(), state(norm=state()["norm"].reshape(4, 6)))
        assert document["checkpoint"]["parameters"][0]["how"] == "float32[6, 4] against float32[4, 6]"

    @pytest.mark.parametrize(("status", "words"), [("missing", "only checkpoint a"), ("extra", "only checkpoint b")])
    def test_a_parameter_that_one_lacks(self, tmp_path: Path, status: str, words: str) -> None:
        fewer = state()
        del fewer["layers.1.q"]
        pair = (state(), fewer) if status == "missing" else (fewer, state())
        document = self.compared(tmp_path, *pair)
        row = document["checkpoint"]["parameters"][0]
        assert (document["verdict"], row["name"], row["status"]) == ("divergent", "layers.1.q", status)
        assert words in row["how"]

    def test_a_value_that_is_no_tensor(self, tmp_path: Path) -> None:
        one = {"state": {0: {"step": 3}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "name": None}]}
        two = {"state": {0: {"step": 4}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "name": None}]}
        document = self.compared(tmp_path, one, two)
        assert document["key_data"]["compared"] == 5
        assert document["checkpoint"]["parameters"][0]["how"] == "int 3 against int 4"
        assert self.compared_again(tmp_path, one, {**one, "state": {0: {"step": True}}}) == "divergent"

    def compared_again(self, tmp_path: Path, one: dict[str, Any], two: dict[str, Any]) -> str:
        again = tmp_path / "again"
        again.mkdir()
        return str(self.compared(again, one, two)["verdict"])

    @pytest.mark.parametrize(
        ("left", "right", "words"),
        [
            (torch.tensor([0.0, 1.0]), torch.tensor([-0.0, 1.0]), "only the sign of zeros"),
            (
                torch.tensor([0x7FC00000], dtype=torch.int32).view(torch.float32),
                torch.tensor([0x7FC00001], dtype=torch.int32).view(torch.float32),
                "only the payload of NaN",
            ),
        ],
    )
    def test_bits_that_are_the_same_number(
        self, tmp_path: Path, left: torch.Tensor, right: torch.Tensor, words: str
    ) -> None:
        document = self.compared(tmp_path, {"w": left}, {"w": right})
        assert document["verdict"] == "divergent"
        assert words in document["checkpoint"]["parameters"][0]["how"]

    @pytest.mark.parametrize(
        "tensor",
        [
            torch.tensor(1.5),
            torch.zeros(0, 4),
            torch.arange(12.0).reshape(3, 4).t(),
            torch.arange(4.0).expand(3, 4),
            torch.arange(8.0)[::2],
            torch.tensor([True, False]),
            torch.ones(3, dtype=torch.bfloat16),
            torch.ones(3, dtype=torch.float16),
            torch.ones(3).to(torch.float8_e4m3fn),
            torch.tensor([1 + 2j]),
            torch.tensor([2**62, -1]),
            torch.tensor([3, 4], dtype=torch.uint16),
        ],
        ids=["scalar", "empty", "transposed", "expanded", "strided", "bool", "bfloat16", "float16", "float8", "complex",
             "int64", "uint16"],
    )  # fmt: skip
    def test_every_kind_of_tensor(self, tmp_path: Path, tensor: torch.Tensor) -> None:
        same = self.compared(tmp_path, {"w": tensor}, {"w": tensor.clone(memory_format=torch.contiguous_format)})
        assert same["verdict"] == "identical"
        if not tensor.numel():
            return
        raw = bytearray(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        raw[0] ^= 1
        other = torch.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape)
        again = tmp_path / "again"
        again.mkdir()
        row = self.compared(again, {"w": tensor}, {"w": other})["checkpoint"]["parameters"][0]
        assert (row["differing"], row["size"]) == (1, tensor.numel())
        assert row["first_index"] == [0] * tensor.dim()

    def test_the_place_of_a_difference_behind_the_first_piece(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("probe.compare.checkpoints.PIECE", 64)
        one, two = torch.zeros(10, 10), torch.zeros(10, 10)
        two[7, 3], two[9, 9] = 1.0, 2.0
        row = self.compared(tmp_path, {"w": one.t()}, {"w": two.t()})["checkpoint"]["parameters"][0]
        assert (row["first_index"], row["differing"], row["size"], row["max_absolute"]) == ([3, 7], 2, 100, 2.0)


def test_what_lies_beside_the_model_is_compared_under_its_file(tmp_path: Path) -> None:
    folders = []
    for name, rate in (("a", 0.1), ("b", 0.2)):
        folder = as_folder(state(), tmp_path / name)
        torch.save({"exp_avg": torch.full((2,), rate)}, folder / "optimizer.pt")
        folders.append(folder)
    document = compare_dumps(*folders, None)
    assert document["verdict"] == "divergent"
    assert document["first"]["name"] == "optimizer.pt:exp_avg"
    assert any("config.json" in note for note in document["notes"])


def test_a_name_of_its_own_for_all_parameters_is_left_out_and_said(tmp_path: Path) -> None:
    a = as_torch(state(), tmp_path / "a")
    b = as_torch({"model": state(), "step": 3}, tmp_path / "b")  # type: ignore[dict-item]
    document = compare_dumps(a, b, None)
    assert [row["name"] for row in document["checkpoint"]["parameters"]] == ["step"]
    assert any("begin with 'model.'" in note for note in document["notes"])


class Planted:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


class TestNothingIsUnpickled:
    def test_of_a_file(self, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        a = as_torch({"w": Planted(mark)}, tmp_path / "a")  # type: ignore[dict-item]
        with pytest.raises(DumpError, match="weights_only=True.*refuses it.*posix.system|refuses it"):
            compare_dumps(a, a, None)
        assert not mark.exists()

    def test_of_metadata(self, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        for name in "ab":
            folder = as_dcp(state(), tmp_path / name)
            (folder / ".metadata").write_bytes(pickle.dumps(Planted(mark), protocol=4))
        with pytest.raises(DumpError, match="refuses it"):
            compare_dumps(tmp_path / "a", tmp_path / "b", None)
        assert not mark.exists()

    def test_of_what_lies_beside_the_model(self, tmp_path: Path) -> None:
        mark = tmp_path / "mark"
        folders = [as_folder(state(), tmp_path / name) for name in "ab"]
        for folder in folders:
            torch.save({"w": Planted(mark)}, folder / "training_args.bin")
        document = compare_dumps(*folders, None)
        assert document["verdict"] == "identical"  # of the model
        assert any("training_args.bin" in note and "refuses it" in note for note in document["notes"])
        assert not mark.exists()


class TestDamage:
    @pytest.mark.parametrize("save", [as_safetensors, as_torch, as_old_torch])
    @pytest.mark.parametrize("damage", ["cut", "empty", "noise", "gone", "link", "folder"])
    def test_of_a_file_is_one_sentence(self, tmp_path: Path, save: Callable[[State, Path], Path], damage: str) -> None:
        a, b = save(state(), tmp_path / "a"), save(state(), tmp_path / "b")
        content = b.read_bytes()
        b.unlink()
        if damage == "cut":
            b.write_bytes(content[: len(content) // 2])
        if damage == "empty":
            b.touch()
        if damage == "noise":
            b.write_bytes(content[:20] + bytes(range(256)) * 4 + content[1044:])
        if damage == "link":
            (tmp_path / "other").write_bytes(content)
            b.symlink_to(tmp_path / "other")
        if damage == "folder":
            b.mkdir()
        try:
            document = compare_dumps(a, b, None)
        except (DumpError, UsageError) as error:
            assert str(tmp_path / "b") in str(error)
            assert "\n" not in str(error)
        else:
            assert document["verdict"] == ("identical" if damage == "link" else "divergent")  # a link that was named

    def test_of_an_index(self, tmp_path: Path) -> None:
        a, b = as_shards(state(), tmp_path / "a"), as_shards(state(), tmp_path / "b")
        file = b / "model.safetensors.index.json"
        for text in ("", "{", "[]", '{"weight_map": 3}', '{"weight_map": {"w": 3}}', '{"weight_map": ' + "[" * 10**5):
            file.write_text(text)
            with pytest.raises(DumpError, match="is no index of shards"):
                compare_dumps(a, b, None)

    @pytest.mark.parametrize(
        "shard", ["../secret.safetensors", "/etc/passwd", "..", "x/y.safetensors", "", "index.json"]
    )
    def test_an_index_that_leads_out_of_the_folder(self, tmp_path: Path, shard: str) -> None:
        a, b = as_shards(state(), tmp_path / "a"), as_shards(state(), tmp_path / "b")
        save_file(state(), tmp_path / "secret.safetensors")
        file = b / "model.safetensors.index.json"
        content = json.loads(file.read_text())
        content["weight_map"]["embed"] = shard
        file.write_text(json.dumps(content))
        with pytest.raises(DumpError, match="lies outside the folder|is no file of tensors"):
            compare_dumps(a, b, None)

    @pytest.mark.parametrize("damage", ["gone", "unlisted", "listed", "link"])
    def test_of_a_shard_is_never_identical(self, tmp_path: Path, damage: str) -> None:
        a, b = as_shards(state(), tmp_path / "a"), as_shards(state(), tmp_path / "b")
        for folder in (a, b):
            index, shard = folder / "model.safetensors.index.json", folder / "model-00001-of-00002.safetensors"
            content = json.loads(index.read_text())
            if damage == "gone":
                shard.unlink()
            if damage == "unlisted":
                del content["weight_map"]["norm"]
            if damage == "listed":
                content["weight_map"]["more"] = shard.name
            if damage == "link":
                shard.rename(tmp_path / f"{folder.name}.safetensors")
                shard.symlink_to(tmp_path / f"{folder.name}.safetensors")
            index.write_text(json.dumps(content))
        try:
            document = compare_dumps(a, b, None)
        except DumpError as error:
            assert damage == "link" and "a link is not followed" in str(error)
        else:
            assert document["verdict"] == "inconclusive"
            assert document["not_compared"]

    @pytest.mark.parametrize(
        ("header", "words"),
        [
            ({"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 8]}}, "not a readable safetensors file"),
            ({"w": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 8]}}, "not a readable safetensors file"),
            ({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}, "not a readable safetensors file"),
            ({"w": 3}, "not a readable safetensors file"),
        ],
    )
    def test_a_header_that_lies(self, tmp_path: Path, header: dict[str, Any], words: str) -> None:
        text = json.dumps(header).encode()
        for name in "ab":
            (tmp_path / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
        with pytest.raises(DumpError, match=words):
            compare_dumps(tmp_path / "a.safetensors", tmp_path / "b.safetensors", None)

    def test_a_checkpoint_without_tensors(self, tmp_path: Path) -> None:
        document = compare_dumps(as_torch({}, tmp_path / "a"), as_torch({}, tmp_path / "b"), None)
        assert document["verdict"] == "inconclusive"

    @pytest.mark.parametrize("value", [{1: 2, "1": 3}, {"w": torch.ones(2).to_sparse()}, {"w": {1, 2}}])
    def test_what_is_not_compared_is_said(self, tmp_path: Path, value: dict[Any, Any]) -> None:
        document = compare_dumps(as_torch(value, tmp_path / "a"), as_torch(value, tmp_path / "b"), None)
        assert document["verdict"] == "inconclusive"
        assert len(document["not_compared"]) == 2

    def test_a_number_of_six_hundred_digits(self, tmp_path: Path) -> None:
        one, two = 10**600, 10**600 + 1
        document = compare_dumps(
            as_torch({"n": one}, tmp_path / "a"),  # type: ignore[dict-item]
            as_torch({"n": two}, tmp_path / "b"),  # type: ignore[dict-item]
            None,
        )
        assert document["verdict"] == "divergent"


class TestDistributed:
    def change(self, folder: Path, change: Callable[[Any], None]) -> None:
        file = folder / ".metadata"
        metadata = pickle.loads(file.read_bytes())
        change(metadata)
        file.write_bytes(pickle.dumps(metadata))

    @pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "x/../../secret"])
    def test_metadata_that_leads_out_of_the_folder(self, tmp_path: Path, name: str) -> None:
        folders = [as_dcp(state(), tmp_path / name) for name in "ab"]
        shutil.copy(folders[0] / "__0_0.distcp", tmp_path / "secret")

        def lead_out(metadata: Any) -> None:
            for info in metadata.storage_data.values():
                info.relative_path = name

        for folder in folders:
            self.change(folder, lead_out)
        document = compare_dumps(*folders, None)
        assert document["verdict"] == "inconclusive"
        assert "lies outside the checkpoint" in document["not_compared"][0]

    def test_a_file_that_was_cut_off(self, tmp_path: Path) -> None:
        folders = [as_dcp(state(), tmp_path / name) for name in "ab"]
        for folder in folders:
            file = folder / "__0_0.distcp"
            file.write_bytes(file.read_bytes()[:3000])
        document = compare_dumps(*folders, None)
        assert document["verdict"] == "inconclusive"
        assert any("fewer than its metadata says" in said for said in document["not_compared"])

    def test_pieces_that_leave_a_gap(self, tmp_path: Path) -> None:
        folders = [as_dcp(state(), tmp_path / name) for name in "ab"]

        def shift(metadata: Any) -> None:
            metadata.state_dict_metadata["norm"].size = torch.Size([7, 4])

        for folder in folders:
            self.change(folder, shift)
        document = compare_dumps(*folders, None)
        assert document["verdict"] == "inconclusive"
        assert "24 elements of 28" in document["not_compared"][0]

    def test_metadata_that_lacks_where_a_piece_lies(self, tmp_path: Path) -> None:
        folders = [as_dcp(state(), tmp_path / name) for name in "ab"]

        def drop(metadata: Any) -> None:
            for info in metadata.storage_data.values():
                del info.__dict__["length"]

        self.change(folders[1], drop)
        document = compare_dumps(*folders, None)
        assert document["verdict"] == "inconclusive"
        assert any(".metadata: is damaged" in said for said in document["not_compared"])

    @pytest.mark.parametrize("content", [b"", b"\x80\x04.", b"\x80\x04N.", b"nonsense", bytes(100)])
    def test_metadata_that_is_none(self, tmp_path: Path, content: bytes) -> None:
        folders = [as_dcp(state(), tmp_path / name) for name in "ab"]
        (folders[1] / ".metadata").write_bytes(content)
        with pytest.raises(DumpError, match=r"\.metadata: "):
            compare_dumps(*folders, None)

    def test_optimizer_and_other_values(self, tmp_path: Path) -> None:
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3, "note": "x"}
        folders = [as_dcp(saved, tmp_path / "a"), as_dcp({**saved, "step": 4}, tmp_path / "b")]
        document = compare_dumps(*folders, None)
        assert [row["how"] for row in document["checkpoint"]["parameters"]] == ["int 3 against int 4"]
        assert document["key_data"]["compared"] > 15

    @pytest.mark.slow
    def test_sharded_over_two_ranks_against_one(self, tmp_path: Path) -> None:
        script = tmp_path / "shard.py"
        script.write_text(SHARDED)
        for ranks, name in ((1, "a"), (2, "b"), (2, "c")):
            subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
                 f"--nproc-per-node={ranks}", str(script), str(tmp_path / name), str(int(name == "c"))],
                check=True, timeout=200,
            )  # fmt: skip
        assert len(list((tmp_path / "b").glob("*.distcp"))) == 2
        assert compare_dumps(tmp_path / "a", tmp_path / "b", None)["verdict"] == "identical"
        document = compare_dumps(tmp_path / "a", tmp_path / "c", None)
        row = document["checkpoint"]["parameters"][0]
        assert (row["name"], row["differing"], row["first_index"]) == ("1.weight", 1, [5, 3])
        for name in "ac":  # verl saves each rank's shards by themselves
            (tmp_path / f"shards-{name}").mkdir()
        for rank in (0, 1):
            shutil.move(tmp_path / f"b.rank{rank}.pt", tmp_path / "shards-a" / f"model_world_size_2_rank_{rank}.pt")
            shutil.move(tmp_path / f"c.rank{rank}.pt", tmp_path / "shards-c" / f"model_world_size_2_rank_{rank}.pt")
        row = compare_dumps(tmp_path / "shards-a", tmp_path / "shards-c", None)["checkpoint"]["parameters"][0]
        assert row["name"] == "model_world_size_2_rank_1.pt:1.weight"
        assert (row["differing"], row["shape"], row["first_index"]) == (1, [3, 6], [1, 3])


SHARDED = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 7))
if sys.argv[2] == "1":
    model[1].weight.data[5, 3] += 1
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
fully_shard(model, mesh=mesh)
dcp.save(model.state_dict(), checkpoint_id=sys.argv[1])
torch.save(model.state_dict(), f"{sys.argv[1]}.rank{dist.get_rank()}.pt")
dist.destroy_process_group()
"""


def test_large_files_are_compared_in_little_memory(tmp_path: Path) -> None:
    size = 192 << 20
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    for name in "ab":
        with (tmp_path / f"{name}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
            file.seek(-4, os.SEEK_END)
            file.write(np.float32(1 if name == "a" else 2).tobytes())
    code = (
        "import sys, resource; from pathlib import Path; from probe.comparison import compare_dumps;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "document = compare_dumps(Path(sys.argv[1]), Path(sys.argv[2]), None);"
        "row = document['checkpoint']['parameters'][0]; assert row['differing'] == 1, row;"
        "assert 'torch' not in sys.modules;"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.safetensors"), str(tmp_path / "b.safetensors")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert int(done.stdout) < 160 << 10  # KiB; the files are 192 MiB each


def test_a_link_that_is_named_is_followed_whatever_the_file_is_called(tmp_path: Path) -> None:
    """As a model hub's cache has it: names are links to files called by their digest."""
    blobs = [tmp_path / name for name in ("9f", "8e")]
    for blob, save in zip(blobs, (as_safetensors, as_torch), strict=True):
        shutil.move(save(state(), tmp_path / f"{blob.name}-made"), blob)
    for name, blob in zip(("model.safetensors", "model.pt"), blobs, strict=True):
        (tmp_path / name).symlink_to(blob)
    assert compare_dumps(tmp_path / "model.safetensors", tmp_path / "model.pt", None)["verdict"] == "identical"


def test_a_dcp_folder_among_other_files_comes_first(tmp_path: Path) -> None:
    """As the integrated trainer and Megatron save."""
    for name, seed in (("a", 1), ("b", 2)):
        as_dcp(state(), tmp_path / name / "model")
        torch.save({"seed": torch.tensor(seed)}, tmp_path / name / "rank0.pt")
    document = compare_dumps(tmp_path / "a", tmp_path / "b", None)
    assert document["key_data"]["compared"] == 11
    assert document["first"]["name"] == "rank0.pt:seed"
    assert document["checkpoint"]["order"] == "as in the checkpoint's metadata"


class TestCommand:
    """Exit statuses and last lines, as people see them."""

    def test_says_what_differs_and_exits_1(self, firstdiff: Callable[..., Any], tmp_path: Path) -> None:
        a, b = as_torch(state(), tmp_path / "a"), as_torch(state(norm=torch.ones(6, 4)), tmp_path / "b")
        done = firstdiff("compare", a, b, "--json")
        assert done.status == 1
        assert done.document["checkpoint"]["parameters"][0]["name"] == "norm"
        assert done.last_line.startswith("divergent; norm: 24 of 24 elements differ")
        assert firstdiff("compare", a, a).status == 0

    def test_two_of_different_kinds_are_bad_usage(
        self, firstdiff: Callable[..., Any], single_save_tree: Path, tmp_path: Path
    ) -> None:
        done = firstdiff("compare", as_torch(state(), tmp_path / "a"), single_save_tree)
        assert done.status == 64
        assert "name two of a kind" in done.last_line
        (tmp_path / "empty").mkdir()
        assert firstdiff("compare", tmp_path / "empty", tmp_path / "empty").status == 2


def test_numbers_of_types_that_numpy_lacks() -> None:
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        tensor = torch.tensor([1.5, -2.0, 0.25]).to(dtype)
        raw = tensor.view(torch.uint8).numpy()
        found = numbers(raw, str(dtype).removeprefix("torch."))
        assert found is not None
        assert found.tolist() == [1.5, -2.0, 0.25]
    assert numbers(np.zeros(4, np.uint8), "quint8") is None


def test_a_checkpoint_is_told_from_other_things(tmp_path: Path) -> None:
    assert is_checkpoint(as_torch(state(), tmp_path / "a"))
    (tmp_path / "x.txt").write_text("text")
    assert not is_checkpoint(tmp_path / "x.txt")
    assert not is_checkpoint(tmp_path / "nowhere")
    with pytest.raises(DumpError, match="neither a dump folder nor a checkpoint"):
        compare_dumps(tmp_path / "x.txt", tmp_path / "x.txt", None)
    found = read_checkpoint(as_safetensors(state(), tmp_path / "b")).tensors
    assert all(isinstance(value, StoredTensor) for value in found.values())


def test_one_element_of_a_larger_tensor_and_a_tensor_alone(tmp_path: Path) -> None:
    torch.save(torch.arange(8.0)[1::4][:1], tmp_path / "a.pt")
    torch.save(torch.tensor([1.0]), tmp_path / "b.pt")
    torch.save(torch.tensor([2.0]), tmp_path / "c.pt")
    assert compare_dumps(tmp_path / "a.pt", tmp_path / "b.pt", None)["verdict"] == "identical"
    found = compare_dumps(tmp_path / "a.pt", tmp_path / "c.pt", None)
    assert [each["name"] for each in found["checkpoint"]["parameters"]] == ["the tensor"]


def test_why_a_file_that_was_cut_off_cannot_be_read_is_said_whole(tmp_path: Path) -> None:
    file = as_torch(state(), tmp_path / "a")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DumpError, match=r"\(PytorchStreamReader failed reading zip archive: [a-z ]+\)$"):
        read_checkpoint(file)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off"])
def test_a_damaged_file_beside_the_model_is_never_identical(tmp_path: Path, content: bytes) -> None:
    folders = [as_folder(state(), tmp_path / name) for name in "ab"]
    for folder in folders:
        (folder / "optimizer.pt").write_bytes(content)
    document = compare_dumps(*folders, None)
    assert document["verdict"] == "inconclusive"
    assert any("optimizer.pt" in said for said in document["not_compared"]), document["not_compared"]


def test_a_file_beside_the_model_that_is_no_file_of_tensors_is_only_said(tmp_path: Path) -> None:
    folders = [as_folder(state(), tmp_path / name) for name in "ab"]
    for folder in folders:
        (folder / "tokenizer.bin").write_bytes(b"merges")
    assert compare_dumps(*folders, None)["verdict"] == "identical"
