"""Digests tell apart whatever differs in dtype, shape, or any bit, and are the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from probe.collect.values import Snapshot
from probe.store import device_digest
from probe.store import digest as module
from probe.store.digest import ALGORITHM, digest


def test_is_xxh3_of_dtype_shape_and_bytes() -> None:
    assert ALGORITHM == "xxh3-128"
    assert digest("float32", (1,), b"\0\0\x80?") == xxhash.xxh3_128_hexdigest(b"float32[1]\n\0\0\x80?")


def test_is_that_of_devices_where_xxhash_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "xxhash", None)
    assert digest("uint8", (2,), b"ab") == device_digest.digest("uint8", (2,), b"ab")
    files = module.hasher(), module.hasher()
    files[0].update(b"line\nline\n")
    for piece in (b"li", b"ne\nl", b"ine\n"):
        files[1].update(piece)
    assert files[0].hexdigest() == files[1].hexdigest() == device_digest.digest("bytes", (10,), b"line\nline\n")


def test_has_128_bits() -> None:
    assert len(digest("uint8", (0,), b"")) == 32


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (("uint8", (2,), b"ab"), ("int8", (2,), b"ab")),
        (("uint8", (2,), b"ab"), ("uint8", (2, 1), b"ab")),
        (("uint8", (2,), b"ab"), ("uint8", (1, 2), b"ab")),
        (("uint8", (0, 3), b""), ("uint8", (3, 0), b"")),
        (("float32", (0,), b""), ("float64", (0,), b"")),
        (("uint8", (4,), b"\0" * 4), ("uint8", (8,), b"\0" * 8)),
        (("uint8", (1, 2), b"ab"), ("uint8", (12,), b"ab")),
        (("uint8", (2,), b"ab"), ("uint8", (2,), b"ba")),
    ],
)
def test_tells_dtype_shape_and_order_apart(
    left: tuple[str, tuple[int, ...], bytes], right: tuple[str, tuple[int, ...], bytes]
) -> None:
    assert digest(*left) != digest(*right)


@given(data=st.binary(min_size=1, max_size=200), where=st.integers(min_value=0))
def test_one_flipped_bit_changes_it(data: bytes, where: int) -> None:
    bit = where % (8 * len(data))
    other = bytearray(data)
    other[bit // 8] ^= 1 << bit % 8
    assert digest("uint8", (len(data),), data) != digest("uint8", (len(data),), bytes(other))


@pytest.mark.parametrize(
    "pair",
    [
        (torch.tensor(0.0), torch.tensor(-0.0)),
        (torch.tensor([float("nan")]).view(torch.int32), torch.tensor([0x7FC00001], dtype=torch.int32)),
        (torch.tensor(2**53, dtype=torch.int64), torch.tensor(2**53 + 1, dtype=torch.int64)),
        (torch.tensor(1.0, dtype=torch.float64), torch.tensor(1.0, dtype=torch.float32)),
        (torch.tensor(True), torch.tensor(1, dtype=torch.uint8)),
        (torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])),
    ],
)
def test_of_tensors_tells_bits_apart(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    assert Snapshot.take(pair[0]).digest != Snapshot.take(pair[1]).digest


def test_of_a_tensor_and_of_the_same_array_are_equal() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert Snapshot.take(torch.from_numpy(array)).digest == Snapshot.take(array).digest


def test_of_a_view_is_that_of_its_values() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    assert Snapshot.take(tensor.t()).digest == Snapshot.take(tensor.t().contiguous()).digest
    assert Snapshot.take(tensor.t()).digest != Snapshot.take(tensor.reshape(4, 3)).digest


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(12.0).reshape(4, 3)[:1, 0], torch.arange(6.0)[::2][:1], torch.tensor([1 + 2j]).imag],
    ids=["column of one row", "slice of one", "imaginary part"],
)
def test_of_one_element_does_not_depend_on_strides(tensor: torch.Tensor) -> None:
    assert Snapshot.take(tensor).digest == Snapshot.take(torch.tensor(tensor.tolist())).digest
