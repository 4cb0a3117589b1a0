"""The device digest in torch is the reference's, whatever the dtype, the strides, the chunks and the threads."""

from __future__ import annotations

import math
import random
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from probe.collect.device_digest import DeviceDigests
from probe.errors import RecordError
from probe.store.device_digest import digest

DTYPES = [
    dtype
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex32 complex64"
        " complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2"
    ).split()
    if (dtype := getattr(torch, name, None)) is not None
]
INTEGERS = {torch.uint8, torch.int16, torch.int32, torch.int64}


@pytest.fixture(autouse=True)
def one_thread(torch_state: None) -> Iterator[None]:
    """Every test leaves torch as it found it, and says itself if it wants more threads."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental")
        yield


def digest_of(tensor: torch.Tensor, chunk: int | None = None) -> str:
    digests = DeviceDigests(chunk)
    ticket = digests.add(tensor)
    return digests.fetch()[ticket]


def row_major(tensor: torch.Tensor) -> bytes:
    """The elements' bytes in row-major order, one by one from memory, as the strides say."""
    width = tensor.element_size()
    storage = bytes(tensor.untyped_storage())
    grid = np.zeros(tensor.shape, np.int64)
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        grid = grid + (np.arange(size) * stride).reshape([-1 if axis == i else 1 for i in range(tensor.dim())])
    starts = (grid.reshape(-1) + tensor.storage_offset()) * width
    return b"".join(storage[start : start + width] for start in starts.tolist())


def reference(tensor: torch.Tensor) -> str:
    return digest(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), row_major(tensor))


def elements(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """Random bits of a dtype, NaN of many payloads among them; one axis."""
    source = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, (count,), generator=source).bool()
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (count * size,), dtype=torch.uint8, generator=source).view(dtype)


def strided(data: st.DataObject, dtype: torch.dtype) -> torch.Tensor:
    """A view of any strides: sliced, permuted, expanded, at any offset."""
    shape = data.draw(st.lists(st.integers(0, 6), max_size=4))
    offset = data.draw(st.integers(0, 9))
    tensor = elements(dtype, offset + math.prod(shape))[offset:].reshape(shape)
    if shape:
        tensor = tensor.permute(data.draw(st.permutations(range(len(shape)))))
        axis = data.draw(st.integers(0, len(shape) - 1))
        first, step = data.draw(st.integers(0, 3)), data.draw(st.integers(1, 3))
        tensor = tensor[(slice(None),) * axis + (slice(first, None, step),)]
        if data.draw(st.booleans()):
            tensor = tensor.unsqueeze(axis).expand(*tensor.shape[:axis], 3, *tensor.shape[axis:])
    return tensor


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_is_the_reference_s_for_any_strides(dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = strided(data, dtype)
    chunk = data.draw(st.sampled_from([None, 2, 4, 10, 64]))
    assert digest_of(tensor, chunk) == reference(tensor)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 1000, 1001])
def test_is_the_reference_s_for_sizes_that_fill_no_word(count: int) -> None:
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.complex128):
        tensor = elements(dtype, count)
        for chunk in (None, 2, 6):
            assert digest_of(tensor, chunk) == reference(tensor), (dtype, chunk)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_takes_a_tensor_without_axes_or_elements(dtype: torch.dtype) -> None:
    one = elements(dtype, 1)
    assert digest_of(one[0]) == reference(one[0])
    assert digest_of(one[:0]) == reference(one[:0])
    assert len({digest_of(one[:0]), digest_of(one[:0].reshape(0, 3)), digest_of(one[0]), digest_of(one)}) == 4


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
def test_what_is_conjugated_or_negated_lazily_counts_as_its_values(dtype: torch.dtype) -> None:
    tensor = torch.arange(60.0, dtype=torch.float64).view(torch.complex128).reshape(5, 6).to(dtype)
    for view in (tensor.conj(), tensor.conj().t()[1:], tensor.conj().imag, tensor.imag, tensor.conj()[0, 0]):
        solid = view.resolve_conj().resolve_neg().clone()
        assert solid.is_conj() is solid.is_neg() is False
        assert digest_of(view, 4) == digest_of(view) == reference(solid)


def test_memory_need_not_be_aligned() -> None:
    data = bytearray(np.random.default_rng(0).bytes(4099))
    for offset in range(9):
        tensor = torch.frombuffer(data, dtype=torch.int32, offset=offset, count=1000)
        expected = digest("int32", (1000,), bytes(data[offset : offset + 4000]))
        assert digest_of(tensor) == digest_of(tensor, 50) == expected


class TestTellsApart:
    """Variants of one content, many added and all fetched at once: each the reference's, no two the same."""

    @staticmethod
    def check(variants: list[torch.Tensor]) -> None:
        digests = DeviceDigests()
        tickets = [digests.add(variant) for variant in variants]
        found = digests.fetch()
        assert [found[ticket] for ticket in tickets] == [
            digest(str(v.dtype).removeprefix("torch."), tuple(v.shape), v.contiguous().view(torch.uint8).numpy().data)
            for v in variants
        ]
        assert len(set(found.values())) == len(variants)

    def test_every_flipped_bit(self) -> None:
        words = elements(torch.int16, 47)
        flipped = [words]
        for place in range(words.numel()):
            for bit in range(16):
                other = words.clone()
                other[place] ^= -(1 << 15) if bit == 15 else 1 << bit
                flipped.append(other)
        self.check(flipped)

    @pytest.mark.parametrize("value", [0.0, 1.0])
    def test_pairs_of_top_bits(self, value: float) -> None:
        """Two signs changed, each the top bit of a word of the digest."""
        plain = torch.full((40,), value, dtype=torch.float64)
        variants = [plain]
        for pair in combinations(range(40), 2):
            other = plain.clone()
            other[list(pair)] = -value
            variants.append(other)
        self.check(variants)

    def test_rows_that_are_swapped_or_repeated(self) -> None:
        rows = torch.randn(20, 7, generator=torch.Generator().manual_seed(0))
        variants = [rows]
        for one, two in combinations(range(20), 2):
            order = list(range(20))
            order[one], order[two] = two, one
            variants += [rows[order], rows[[one if row == two else row for row in range(20)]]]
        self.check(variants)

    def test_shifted_content(self) -> None:
        alone = torch.zeros(300, dtype=torch.bfloat16)
        alone[0] = 1
        self.check([alone.roll(shift) for shift in range(300)])

    def test_zeros_of_different_lengths(self) -> None:
        self.check([torch.zeros(length, dtype=torch.uint8) for length in range(300)])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_does_not_matter(threads: int) -> None:
    tensor = elements(torch.float32, 1 << 19).reshape(1 << 9, -1)
    expected = digest("float32", tuple(tensor.t().shape), tensor.t().contiguous().view(torch.uint8).numpy().data)
    torch.set_num_threads(threads)
    assert torch.get_num_threads() == threads
    assert digest_of(tensor.t()) == digest_of(tensor.t(), 1 << 17) == expected


class Seen(TorchDispatchMode):
    """Notes every operation, and the largest tensor that any of them made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[str] = []
        self.arithmetic: set[torch.dtype] = set()
        self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations.append(func.overloadpacket.__name__)
        made = result if isinstance(result, torch.Tensor) else None
        if made is not None and not func.is_view:
            self.arithmetic.add(made.dtype)
            self.largest = max(self.largest, made.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("layout", ["plain", "transposed", "expanded", "conjugated", "odd"])
def test_only_integers_are_computed_with_and_nothing_waits(layout: str) -> None:
    """No operation gives a number to the host, and nothing larger than a chunk's buffers is made."""
    chunk = 1000
    tensor = {
        "plain": lambda: torch.randn(100, 300),
        "transposed": lambda: torch.randn(100, 300).t(),
        "expanded": lambda: torch.randn(300).expand(100, 300),
        "conjugated": lambda: torch.randn(100, 300, dtype=torch.complex64).conj(),
        "odd": lambda: torch.randn(30_003).bfloat16()[1:],
    }[layout]()
    digests = DeviceDigests(chunk)
    with Seen() as adding:
        ticket = digests.add(tensor)
    assert not {"_local_scalar_dense", "item", "nonzero", "equal", "_to_copy", "is_nonzero"} & {*adding.operations}
    assert adding.arithmetic - {torch.complex64} <= INTEGERS
    assert layout == "conjugated" or adding.arithmetic <= INTEGERS
    assert adding.largest <= 2 * 8 * chunk
    assert digests.fetch()[ticket] == reference(tensor.resolve_conj().clone())


@pytest.mark.parametrize("layout", ["plain", "transposed", "odd", "conjugated", "turned and conjugated"])
def test_what_is_held_at_once_is_six_chunks_at_most(layout: str) -> None:
    """By the profiler's account of every piece of memory that torch takes and gives back."""
    chunk, plain = 1 << 14, torch.ones(1024, 1024)
    pairs = torch.view_as_complex(plain.reshape(1024, 512, 2)).conj()
    tensor = {
        "plain": plain,
        "transposed": plain.t(),
        "odd": plain.bfloat16().reshape(-1)[1:],
        "conjugated": pairs,
        "turned and conjugated": pairs.t(),
    }[layout]
    digests = DeviceDigests(chunk)
    digests.add(torch.ones(3))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        digests.add(tensor)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = np.cumsum([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    assert 4 * 8 * chunk <= held.max() <= 6 * 8 * chunk
    assert held[-1] <= 1024  # the sums


@pytest.mark.parametrize("count", [1, 10, 300])
def test_many_are_fetched_by_the_same_few_operations(count: int) -> None:
    digests = DeviceDigests()
    tickets = [digests.add(torch.full((3,), float(number))) for number in range(count)]
    with Seen() as fetching:
        found = digests.fetch()
    assert fetching.operations in (["stack"], ["stack", "_to_copy"])
    assert sorted(found) == tickets
    assert len(set(found.values())) == count
    assert digests.fetch() == {}


def test_tickets_stay_apart_from_one_fetch_to_the_next() -> None:
    digests = DeviceDigests()
    first = digests.add(torch.zeros(2))
    assert [*digests.fetch()] == [first]
    second = digests.add(torch.ones(2))
    assert second != first
    assert digests.fetch() == {second: digest_of(torch.ones(2))}


def test_it_takes_the_values_of_the_moment() -> None:
    digests, tensor = DeviceDigests(), torch.zeros(5)
    before = digests.add(tensor)
    tensor += 1
    after = digests.add(tensor)
    found = digests.fetch()
    assert found[before] == digest_of(torch.zeros(5))
    assert found[after] == digest_of(torch.ones(5))


def test_it_leaves_everything_as_it_was() -> None:
    leaf = torch.randn(50, requires_grad=True)
    hidden = (leaf * 2).reshape(5, 10)
    for tensor in (leaf, hidden, hidden.t()):
        states = torch.get_rng_state().tolist(), random.getstate(), tensor._version, tensor.grad_fn
        kept = tensor.detach().clone()
        assert digest_of(tensor, 4) == digest_of(kept)
        assert (torch.get_rng_state().tolist(), random.getstate(), tensor._version, tensor.grad_fn) == states
        assert torch.equal(tensor, kept)
    hidden.sum().backward()
    assert torch.equal(leaf.grad, torch.full((50,), 2.0))


def test_it_works_under_every_mode_of_the_trainer() -> None:
    tensor = torch.randn(40, 3)
    expected = digest_of(tensor)
    digests = DeviceDigests(8)
    tickets = [digests.add(tensor)]
    with torch.inference_mode():
        tickets += [digests.add(tensor), digests.add(tensor.clone())]
        made_inside = tensor.clone()
        within = digests.fetch()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
        tickets += [digests.add(made_inside), digests.add(tensor)]
    torch.use_deterministic_algorithms(True)
    tickets.append(digests.add(tensor))
    assert list({**within, **digests.fetch()}) == tickets
    fresh = DeviceDigests(8)
    with torch.inference_mode():
        inside = fresh.add(tensor)
    outside = fresh.add(tensor)
    found = fresh.fetch()
    assert found[inside] == found[outside] == expected
    assert set(within.values()) == {expected}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: torch.eye(3).to_sparse(), "sparse"),
        (lambda: torch.empty(3, device="meta"), "meta"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
    ],
)
def test_a_tensor_without_bytes_in_order_is_refused(make: Callable[[], torch.Tensor], said: str) -> None:
    digests = DeviceDigests()
    with pytest.raises(RecordError, match=said):
        digests.add(make())
    assert digests.fetch() == {}


MEMORY = """
import re
from pathlib import Path
import torch
from probe.collect.device_digest import DeviceDigests

torch.set_num_threads(1)

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024

plain = torch.ones(8192, 4096)  # 128 MB
tensors = {
    "plain": plain, "transposed": plain.t(), "odd": plain.view(torch.uint8).reshape(-1)[3:],
    "conjugated": torch.view_as_complex(plain.reshape(8192, 2048, 2)).conj(),
    "expanded": torch.ones(64, 1).expand(64, 1 << 19),
}
digests = DeviceDigests()
digests.add(torch.ones(1 << 20).reshape(1024, 1024).t())
for name, tensor in tensors.items():
    before = peak()
    ticket = digests.add(tensor)
    digests.fetch()
    print(name, peak() - before)
"""


def test_memory_does_not_grow_with_the_tensor(run_python: Callable[..., str]) -> None:
    """Most resident memory of a process, in MB, before and after tensors of 128 MB."""
    grown = dict(re.findall(r"^(\w+) (\d+)$", run_python(MEMORY), re.MULTILINE))
    assert len(grown) == 5
    assert all(int(megabytes) <= 8 for megabytes in grown.values()), grown


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_is_the_reference_s_for_large_tensors(dtype: torch.dtype, threads: int) -> None:
    torch.set_num_threads(threads)
    tensor = elements(dtype, 1 << 27)
    name = str(dtype).removeprefix("torch.")
    assert digest_of(tensor) == digest(name, (1 << 27,), tensor.view(torch.uint8).numpy().data)
    odd = tensor[1:].reshape(7, -1)[1:].t()
    data = odd.contiguous().view(torch.uint8).numpy().data
    assert digest_of(odd) == digest(name, tuple(odd.shape), data)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_is_the_same_on_a_cuda_device(dtype: torch.dtype) -> None:
    host = elements(dtype, 6_000_002)
    there = host.cuda()
    digests = DeviceDigests()
    torch.cuda.set_sync_debug_mode("error")
    try:
        tickets = [digests.add(there), digests.add(there[1:].reshape(-1, 7)[:, ::2].t())]
        with torch.cuda.stream(torch.cuda.Stream()):
            tickets.append(digests.add(there))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found = digests.fetch()
    expected = digest_of(host), digest_of(host[1:].reshape(-1, 7)[:, ::2].t()), digest_of(host)
    assert tuple(found[ticket] for ticket in tickets) == expected
