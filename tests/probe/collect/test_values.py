"""What ``Probe.save`` keeps of each kind of value: its exact bytes as a digest, and its numbers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from probe.errors import RecordError

# torch warns once of every process's first complex32
pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.complex32,
    torch.complex64,
    torch.complex128,
]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def tensor_of(dtype: torch.dtype) -> torch.Tensor:
    """Powers of two, which every dtype but bool holds exactly; shape [2, 3]."""
    return torch.tensor([[1.0, 2.0, 4.0], [1.0, 1.0, 2.0]]).to(dtype)


def with_flipped_bit(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor with the lowest bit of its very last element's first byte changed."""
    changed = tensor.clone()
    changed.reshape(-1)[-1:].view(torch.uint8)[0] ^= 1
    return changed


@every_dtype
def test_the_numbers_of_every_dtype_are_stored_exactly(dtype, saved):
    tensor = tensor_of(dtype)
    record, values = saved(tensor)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    assert (record.dtype, record.shape) == (str(dtype).removeprefix("torch."), (2, 3))
    assert values.shape == (2, 3)
    assert np.array_equal(values.astype(np.complex128), tensor.to(wide).numpy())


@every_dtype
def test_one_bit_changes_the_digest_of_every_dtype(dtype, saved):
    tensor = tensor_of(dtype)
    assert saved(tensor)[0].digest == saved(tensor.clone())[0].digest
    assert saved(tensor)[0].digest != saved(with_flipped_bit(tensor))[0].digest


@every_dtype
def test_a_mask_works_on_every_dtype(dtype, saved):
    tensor, mask = tensor_of(dtype), torch.tensor([[1, 1, 1], [1, 1, 0]])
    outside = with_flipped_bit(tensor)
    inside = tensor.clone()
    inside.view(torch.uint8).reshape(-1)[0] ^= 1
    reference = saved(tensor, mask)[0]
    assert reference.masked == saved(outside, mask)[0].masked
    assert reference.masked != saved(inside, mask)[0].masked
    assert reference.digest != saved(outside, mask)[0].digest


def test_integers_and_doubles_keep_the_digits_that_float32_would_lose(saved):
    large = torch.tensor([2**24 + 1, 2**62 + 1, -(2**63)])
    precise = torch.tensor([1 + 2**-52, np.pi], dtype=torch.float64)
    assert saved(large)[1].tolist() == large.tolist()
    assert saved(precise)[1].tolist() == precise.tolist()


def test_the_same_bytes_under_another_dtype_or_shape_have_another_digest(saved):
    tensor = torch.arange(6, dtype=torch.int32)
    seen = [tensor, tensor.view(torch.float32), tensor.view(2, 3), tensor.view(3, 2), tensor.view(6, 1)]
    assert len({saved(value)[0].digest for value in seen}) == len(seen)


def test_order_matters(saved):
    rows = torch.arange(6.0).view(2, 3)
    assert saved(rows)[0].digest != saved(rows.flip(0))[0].digest


def test_signed_zero_and_nan_payload_are_seen(saved):
    zeros = torch.tensor([0.0]), torch.tensor([-0.0])
    nans = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert len({saved(value)[0].digest for value in (*zeros, *nans)}) == 4


def test_equal_nans_are_equal(saved):
    tensor = torch.tensor([float("nan"), float("inf")])
    assert saved(tensor)[0].digest == saved(tensor.clone())[0].digest


@pytest.mark.parametrize(
    "view",
    [
        torch.arange(12.0).view(3, 4).t(),
        torch.arange(12.0).view(3, 4)[:, ::2],
        torch.arange(3.0).view(3, 1).expand(3, 4),
        torch.arange(4.0).expand(3, 4),
        torch.arange(48.0).view(1, 2, 4, 6).contiguous(memory_format=torch.channels_last),
        torch.complex(torch.arange(3.0), torch.ones(3)).conj(),
        torch.complex(torch.arange(3.0), torch.ones(3)).conj().imag,
        torch.tensor(3.5),
        torch.tensor(True),
        torch.tensor(1 + 2j).conj(),
        torch.empty(0),
        torch.empty(3, 0, 2, dtype=torch.bfloat16),
        torch.empty(0, dtype=torch.bool),
    ],
    ids=[
        "transposed",
        "strided",
        "expanded",
        "broadcast",
        "channels-last",
        "conjugate",
        "negative",
        "0-dim",
        "0-dim-bool",
        "0-dim-conjugate",
        "empty",
        "empty-3d",
        "empty-bool",
    ],
)
def test_a_view_is_recorded_as_the_values_that_it_shows(view, saved):
    plain = torch.empty(view.shape, dtype=view.dtype).copy_(view)
    assert not plain.is_conj() and not plain.is_neg() and plain.is_contiguous()
    record, values = saved(view)
    assert record.shape == tuple(view.shape)
    assert record.digest == saved(plain)[0].digest
    assert np.array_equal(values, saved(plain)[1])
    assert values.tolist() == plain.to(torch.float32 if view.dtype == torch.bfloat16 else view.dtype).tolist()


@pytest.mark.parametrize("dtype", ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"])
def test_numpy_arrays_of_every_numeric_dtype(dtype, saved):
    array = np.array([[1, 0, 3], [4, 5, 6]]).astype(dtype)
    record, values = saved(array)
    assert (record.dtype, record.shape) == (array.dtype.name, (2, 3))
    assert np.array_equal(values, array)
    changed = array.copy()
    changed[1, 2] = 0
    assert saved(changed)[0].digest != record.digest


@pytest.mark.parametrize("layout", [np.asfortranarray, lambda array: np.repeat(array, 2, axis=1)[:, ::2]])
def test_the_memory_layout_of_a_numpy_array_does_not_matter(layout, saved):
    array = np.arange(6.0).reshape(2, 3)
    assert saved(layout(array))[0].digest == saved(array)[0].digest


def test_arrays_of_different_numbers_never_share_a_digest_because_of_their_byte_order(saved):
    little, big = np.array([1 << 24], "<i4"), np.array([1], ">i4")
    assert little.tobytes() == big.tobytes()
    assert saved(little)[0].digest != saved(big)[0].digest


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (True, "bool", 1),
        (7, "int64", 7),
        (-(2**62) - 1, "int64", -(2**62) - 1),
        (0.1, "float64", 0.1),
        (1 + 2j, "complex128", 1 + 2j),
        (np.float32(0.1), "float32", np.float32(0.1).item()),
        (np.int8(-3), "int8", -3),
        (np.bool_(False), "bool", 0),
        (np.array(2.5), "float64", 2.5),
    ],
)
def test_numbers_are_recorded_as_scalars(value, dtype, stored, saved):
    record, values = saved(value)
    assert (record.dtype, record.shape) == (dtype, ())
    assert values.item() == stored


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 2), (1, 1.0), (1, True), (0.0, -0.0), ("1", 1), (None, ""), ("a", "b"), ("a", ""), ("", 0), ("ä", "a\u0308")],
)
def test_different_numbers_strings_and_none_have_different_digests(one, other, saved):
    assert saved(one)[0].digest != saved(other)[0].digest
    assert saved(one)[0].digest == saved(one)[0].digest


def test_a_string_is_stored_as_its_utf_8_bytes(saved):
    assert saved("naïve 🙂")[1].tobytes().decode() == "naïve 🙂"


def test_any_python_string_is_recorded_also_one_that_is_no_utf_8(saved):
    assert saved("\ud800")[0].digest != saved("\udfff")[0].digest


def test_nested_values_are_recorded_leaf_by_leaf_with_their_dotted_path(record):
    recording = record()
    recording.probe.save(
        {
            "x": {"tokens": torch.tensor([1, 2]), "meta": [3, {"name": "a", "none": None}, (np.float32(1), True)]},
            "y": [4],
        }
    )
    assert [(entry.tag, entry.path, entry.dtype) for entry in recording.records()] == [
        ("x", "tokens", "int64"),
        ("x", "meta.0", "int64"),
        ("x", "meta.1.name", "str"),
        ("x", "meta.1.none", "none"),
        ("x", "meta.2.0", "float32"),
        ("x", "meta.2.1", "bool"),
        ("y", "0", "int64"),
    ]


def test_an_empty_container_is_not_nothing(record):
    recording = record()
    recording.probe.save({"x": {}, "y": [], "z": [{}]})
    assert [(entry.tag, entry.path) for entry in recording.records()] == [("x", ""), ("y", ""), ("z", "0")]


UNRECORDABLE: dict[str, Any] = {
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.empty(2, device="meta"),
    "float4": torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
    "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    "object": object(),
    "bytes": b"ab",
    "set": {1, 2},
    "objects": np.array([object()]),
    "strings": np.array(["a"]),
    "times": np.array(["2020-01-01"], "datetime64[D]"),
    "function": len,
}


@pytest.mark.parametrize("value", UNRECORDABLE.values(), ids=UNRECORDABLE)
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "in-a-dict"])
def test_what_has_no_exact_bytes_is_refused_in_one_sentence(value, nested, record):
    recording = record()
    with pytest.raises(RecordError, match=r"cannot be recorded") as caught:
        recording.probe.save({"x": {"inner": value} if nested else value})
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    "make",
    [lambda: torch.eye(2).to_sparse_csr(), lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)],
    ids=["sparse-csr", "quantised"],
)
def test_compressed_tensors_are_refused(make, record):
    with pytest.raises(RecordError, match="save its dense values"):
        record().probe.save({"x": make()})


def test_a_later_change_in_place_does_not_alter_what_was_saved(record):
    recording = record()
    tensor, array, weight = torch.ones(3), np.ones(3), torch.nn.Parameter(torch.ones(3))
    recording.probe.save({"tensor": tensor, "array": array, "weight": weight})
    before = [entry.digest for entry in recording.records()]
    tensor.fill_(9)
    array.fill(9)
    weight.data.fill_(9)
    assert [recording.values(entry).tolist() for entry in recording.records()] == [[1, 1, 1]] * 3
    again = record()
    again.probe.save({"tensor": tensor, "array": array, "weight": weight})
    assert not set(before) & {entry.digest for entry in again.records()}


def test_saving_leaves_the_tensor_and_its_graph_as_they_were(record):
    def gradient(save):
        x = torch.arange(4.0, requires_grad=True)
        y = (x * x)[::2]
        version, stride = y._version, y.stride()
        save(y)
        assert (y._version, y.stride(), y.grad_fn is not None) == (version, stride, True)
        y.sum().backward()
        return x.grad

    recording = record()
    assert torch.equal(gradient(lambda y: recording.probe.save({"y": y}, mask=torch.ones(2))), gradient(lambda y: None))


def test_a_mask_of_another_shape_is_not_used(saved):
    assert saved(torch.ones(2, 3), torch.ones(2))[0].masked is None
    assert saved(torch.tensor(1.0), torch.ones(2))[0].masked is None
    assert saved(torch.ones(2))[0].masked is None


@pytest.mark.parametrize("make", [torch.tensor, np.array], ids=["tensor", "array"])
def test_a_mask_hides_what_is_outside_even_nan(make, saved):
    mask = torch.tensor([1, 1, 0])
    one, other = make([1.0, 2.0, float("nan")]), make([1.0, 2.0, -5.0])
    assert saved(one, mask)[0].masked == saved(other, mask)[0].masked
    assert saved(one, mask)[0].masked != saved(make([1.0, 2.5, -5.0]), mask)[0].masked


@pytest.mark.parametrize("mask", [[True, False], [1, 0], [0.5, 0.0], [-1, 0]])
def test_any_non_zero_mask_entry_counts(mask, saved):
    expected = saved(torch.tensor([3.0, 4.0]), torch.tensor([True, False]))[0].masked
    assert saved(torch.tensor([3.0, 9.0]), torch.tensor(mask))[0].masked == expected


def test_the_json_beside_a_value_has_its_statistics(record):
    recording = record()
    recording.probe.save({"x": {"inner": torch.tensor([[3.0, -4.0]])}})
    recording.probe.close()
    file = recording.folder / "data/x/step0/rank0/micro_step0/x.json"
    described = json.loads(file.read_text())["data"]
    assert {key: described[key] for key in ("max", "min", "mean", "norm", "shape", "dtype", "path")} == {
        "max": 3.0,
        "min": -4.0,
        "mean": -0.5,
        "norm": 5.0,
        "shape": [1, 2],
        "dtype": "float32",
        "path": "inner",
    }


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([float("nan"), float("inf")]),
        torch.empty(0),
        torch.tensor([1 + 1j]),
        torch.tensor([True, False]),
        torch.tensor([6e4, 6e4], dtype=torch.float16),
        torch.tensor([2**63 - 1, -(2**63)]),
        "text",
        "",
        None,
    ],
    ids=["nan", "empty", "complex", "bool", "float16", "int64", "text", "no-text", "none"],
)
def test_statistics_are_strict_json_for_every_value(value, record):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    recording = record()
    recording.probe.save({"x": value})
    recording.probe.close()
    file = recording.folder / "data/x/step0/rank0/micro_step0/x.json"
    assert json.loads(file.read_text(), parse_constant=refuse)["data"]["shape"] is not None


def test_statistics_do_not_overflow_in_the_value_s_own_precision(record):
    recording = record()
    recording.probe.save({"half": torch.full((10,), 6e4, dtype=torch.float16), "byte": torch.tensor([200, 100]).byte()})
    recording.probe.close()
    folder = recording.folder / "data"
    half = json.loads((folder / "half/step0/rank0/micro_step0/half.json").read_text())["data"]
    byte = json.loads((folder / "byte/step0/rank0/micro_step0/byte.json").read_text())["data"]
    assert half["mean"] == pytest.approx(6e4, rel=1e-3)
    assert half["norm"] == pytest.approx(6e4 * 10**0.5, rel=1e-3)
    assert byte["mean"] == 150
