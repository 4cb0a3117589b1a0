"""Property: whatever is saved, the dump holds exactly that, at that moment; and one other bit anywhere is found.

What is expected is worked out here from the drawn bytes, with NumPy and xxhash alone.
"""

from __future__ import annotations

import io
import json
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probe import Probe
from probe.collect.values import Empty
from probe.compare import KeyDataComparison, compare_key_data
from probe.errors import RecordError
from probe.store.reader import read_dump, read_values
from probe.types import Record, RunSpec

# torch warns once of every process's first complex32, quantised and CSR tensor
pytestmark = [
    pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental"),
    pytest.mark.filterwarnings("ignore:Sparse [CB]S[RC]"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

PROPERTY = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))

FLOAT8 = {  # bits of exponent and significand, bias, whether there are infinities, codes of NaN
    "float8_e4m3fn": (4, 3, 7, False, {0x7F, 0xFF}),
    "float8_e4m3fnuz": (4, 3, 8, False, {0x80}),
    "float8_e5m2": (5, 2, 15, True, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}),
    "float8_e5m2fnuz": (5, 2, 16, False, {0x80}),
}
REAL = ["float16", "bfloat16", "float32", "float64"]
COMPLEX = ["complex32", "complex64", "complex128"]
DTYPES = [
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *(*REAL, *FLOAT8, "float8_e8m0fnu", *COMPLEX),
]


def width_of(dtype: str) -> int:
    return int(torch.empty(0, dtype=getattr(torch, dtype)).element_size())


def xxh3(dtype: str, shape: tuple[int, ...], data: bytes) -> str:
    """The digest as the format defines it."""
    return str(xxhash.xxh3_128_hexdigest(f"{dtype}{list(shape)}\n".encode() + data))


def float8_number(dtype: str, code: int) -> float:
    """What a byte stands for (OCP 8-bit floating point; the fnuz types of IEEE P3109)."""
    if dtype == "float8_e8m0fnu":
        return float("nan") if code == 0xFF else 2.0 ** (code - 127)
    exponents, significands, bias, infinite, nans = FLOAT8[dtype]
    sign, exponent = -1.0 if code & 0x80 else 1.0, (code & 0x7F) >> significands
    significand = code & ((1 << significands) - 1)
    if code in nans:
        return float("nan")
    if infinite and exponent == (1 << exponents) - 1:
        return sign * float("inf")
    if exponent == 0:
        return sign * float(significand) * 2.0 ** (1 - bias - significands)
    return sign * (1 + significand / (1 << significands)) * 2.0 ** (exponent - bias)


FLOAT8_TABLES = {
    dtype: np.array([float8_number(dtype, code) for code in range(256)], np.float32)
    for dtype in (*FLOAT8, "float8_e8m0fnu")
}


@dataclass(frozen=True)
class Case:
    """A tensor as a view of some storage, and what it shows: uint8 of its shape and one axis of bytes."""

    dtype: str
    tensor: torch.Tensor
    shown: np.ndarray
    storage: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shown.shape[:-1]

    @property
    def data(self) -> bytes:
        return self.shown.tobytes()

    def flipped(self, where: int) -> tuple[torch.Tensor, tuple[int, ...] | None]:
        """A plain tensor of the same bytes but for one bit, and the element it is in; None where there is none."""
        raw = np.frombuffer(self.data, np.uint8).copy()
        element = None
        if raw.size:
            bit = where % (8 * raw.size)
            raw[bit // 8] ^= 1 << (0 if self.dtype == "bool" else bit % 8)  # a bool has one bit that counts
            element = tuple(map(int, np.unravel_index(bit // 8 // self.shown.shape[-1], self.shape)))
        return plain(raw.reshape(self.shown.shape), self.dtype)[0], element


def plain(raw: np.ndarray, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A contiguous tensor of given bytes, [*shape, width], and its storage as bytes."""
    storage = torch.empty(raw.size, dtype=torch.uint8)
    storage.numpy()[:] = raw.reshape(-1)
    return storage.view(getattr(torch, dtype)).reshape(raw.shape[:-1]), storage


def with_sign_flipped(raw: np.ndarray) -> np.ndarray:
    changed = raw.copy()
    changed[..., -1] ^= 0x80  # the machine is little-endian, as every one that torch runs on here
    return changed


def contiguous(raw: np.ndarray, dtype: str) -> Case:
    tensor, storage = plain(raw, dtype)
    return Case(dtype, tensor, raw, storage)


def transposed(raw: np.ndarray, dtype: str) -> Case:
    tensor, storage = plain(raw, dtype)
    axes = tuple(reversed(range(tensor.ndim)))
    return Case(dtype, tensor.permute(axes), raw.transpose(*axes, tensor.ndim), storage)


def strided(raw: np.ndarray, dtype: str) -> Case:
    tensor, storage = plain(np.repeat(raw, 2, axis=-2) if raw.ndim > 1 else raw, dtype)
    return Case(dtype, tensor[..., ::2] if raw.ndim > 1 else tensor, raw, storage)


def every_other(raw: np.ndarray, dtype: str) -> Case:
    """Every second of the first axis, which may leave one element or none, with strides of their own."""
    tensor, storage = plain(raw, dtype)
    return Case(dtype, tensor[1::2] if raw.ndim > 1 else tensor, raw[1::2] if raw.ndim > 1 else raw, storage)


def expanded(raw: np.ndarray, dtype: str) -> Case:
    tensor, storage = plain(raw, dtype)
    return Case(dtype, tensor.expand(3, *tensor.shape), np.broadcast_to(raw, (3, *raw.shape)), storage)


def offset(raw: np.ndarray, dtype: str) -> Case:
    before = np.full((3, raw.shape[-1]), 1, np.uint8)
    tensor, storage = plain(np.concatenate([before, raw.reshape(-1, raw.shape[-1])]), dtype)
    return Case(dtype, tensor[3:].reshape(raw.shape[:-1]), raw, storage)


def conjugated(raw: np.ndarray, dtype: str) -> Case:
    tensor, storage = plain(quiet(raw, dtype), dtype)
    assert tensor.conj().is_conj()
    return Case(dtype, tensor.conj(), with_sign_flipped(quiet(raw, dtype)), storage)


def negative(raw: np.ndarray, dtype: str) -> Case:
    """The imaginary part of a conjugate: a real view with the negative bit."""
    tensor, storage = plain(quiet(raw, dtype), dtype)
    view = tensor.conj().imag
    assert view.is_neg()
    shown = with_sign_flipped(quiet(raw, dtype))[..., raw.shape[-1] // 2 :]
    return Case(str(view.dtype).removeprefix("torch."), view, shown, storage)


def quiet(raw: np.ndarray, dtype: str) -> np.ndarray:
    """torch's own conjugation of complex32 makes signalling NaNs quiet: there are none of them here."""
    if dtype != "complex32":
        return raw
    halves = raw.copy().view(np.uint16)
    halves[(halves & 0x7FFF) > 0x7C00] |= 0x0200
    return halves.view(np.uint8)


VIEWS = [contiguous, transposed, strided, every_other, expanded, offset]
COMPLEX_VIEWS = [conjugated, negative]


def raw_values(dtype: str, shape: tuple[int, ...], data: bytes) -> np.ndarray:
    """Elements of given bytes, repeated as often as is needed; [*shape, width]."""
    wanted = int(np.prod(shape)) * width_of(dtype)
    raw = np.resize(np.frombuffer(data, np.uint8), wanted).reshape(*shape, width_of(dtype))
    return raw & 1 if dtype == "bool" else raw


SPECIAL = st.sampled_from(
    [bytes.fromhex(text) for text in ("00", "80", "ff", "7f", "0100807f", "00c0ff", "00000000000080", "007c00fc", "01")]
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    raw = raw_values(dtype, shape, draw(st.binary(min_size=1, max_size=64) | SPECIAL))
    return draw(st.sampled_from([*VIEWS, *(COMPLEX_VIEWS if dtype in COMPLEX else [])]))(raw, dtype)


def check_numbers(values: np.ndarray, case: Case) -> None:
    """The stored numbers are those of the original, of a type that SingleComparator can subtract."""
    raw, stored = np.frombuffer(case.data, np.uint8), np.array(values, order="C")
    assert (stored.dtype.kind in "iufc", stored.shape) == (True, case.shape)
    if case.dtype in FLOAT8_TABLES:
        assert stored.dtype == np.float32
        expected: np.ndarray = FLOAT8_TABLES[case.dtype][raw].reshape(case.shape)
        assert np.array_equal(stored, expected, equal_nan=True)
        assert np.array_equal(np.signbit(stored[stored == 0]), np.signbit(expected[expected == 0]))
    elif case.dtype == "complex32":
        halves = raw.view(np.float16).reshape(*case.shape, 2)
        for part, half in ((stored.real, halves[..., 0]), (stored.imag, halves[..., 1])):
            assert np.array_equal(part, half.astype(np.float32), equal_nan=True)
    elif case.dtype == "bfloat16":
        assert stored.dtype == np.float32
        assert np.array_equal(stored.reshape(-1).view(np.uint32), raw.view(np.uint16).astype(np.uint32) << 16)
    else:
        assert stored.dtype == ("int8" if case.dtype == "bool" else case.dtype)
        assert stored.tobytes() == case.data


def check_description(folder: Path, record: Record, values: np.ndarray) -> None:
    """The ``.json`` beside a value is strict JSON, with the seed's statistics, dtype, shape and digest."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    (file,) = (folder / f"data/{record.tag}/step0/rank0/micro_step0").glob("*.json")
    described = json.loads(file.read_text(), parse_constant=refuse)["data"]
    about = (described["dtype"], tuple(described["shape"]), described["digest"])
    assert about == (record.dtype, record.shape, record.digest)
    assert {"max", "min", "mean", "norm"} <= set(described)
    reals = np.abs(values) if values.dtype.kind == "c" else values
    if reals.size == 0:
        assert (described["max"], described["min"], described["mean"], described["norm"]) == (None,) * 4
    elif np.isfinite(reals).all():
        assert (described["max"], described["min"]) == (reals.max(), reals.min())


@pytest.fixture
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Saves each value under a tag of its own, ``t0``, ``t1``, …, in one step.

    ``after`` runs before anything is digested or written.
    """

    def record(values: list[Any], after: Callable[[], object] = lambda: None, key_data: Any = "full") -> Path:
        folder = tmp_path_factory.mktemp("dump") / "dump"
        probe = Probe(RunSpec(run="a", dump_path=str(folder), key_data=key_data))
        gate = threading.Event()
        assert probe._background is not None
        probe._background.submit(gate.wait, 0)
        for number, value in enumerate(values):
            probe.save({f"t{number}": value})
        after()
        gate.set()
        probe.step()
        probe.close()
        return folder

    return record


def check_one_dump(folder: Path, expected: list[Case]) -> None:
    dump = read_dump(folder)
    assert (dump.complete, dump.problems) == (True, [])
    for record, case in zip(dump.records[0], expected, strict=True):
        assert (record.dtype, record.shape) == (case.dtype, case.shape)
        assert record.digest == xxh3(case.dtype, case.shape, case.data)
        values = read_values(folder, record)
        check_numbers(values, case)
        with np.errstate(all="ignore"):
            check_description(folder, record, values)


def check_flips(comparison: KeyDataComparison, elements: list[tuple[int, ...] | None], full: bool = True) -> None:
    """Exactly the tags with a changed element are told, each with the place and number of what differs."""
    changed = {f"t{number}": element for number, element in enumerate(elements) if element is not None}
    assert comparison.verdict == ("divergent" if changed else "identical")
    assert comparison.counts == Counter(same=len(elements) - len(changed)) + Counter(different=len(changed))
    found = {entry.record.tag: entry.difference for entry in comparison.entries}
    assert set(found) == set(changed)
    for tag, difference in found.items():
        if not full:
            assert difference is None
            continue
        assert difference is not None
        assert (difference.first_index, difference.count) == (changed[tag], 1)


@given(drawn=st.lists(cases(), min_size=1, max_size=8), where=st.integers(0, 1 << 30), full=st.booleans())
@PROPERTY
def test_tensors_are_recorded_as_they_were_and_one_flipped_bit_is_found(
    recorded: Callable[..., Path], drawn: list[Case], where: int, full: bool
) -> None:
    def overwrite() -> None:
        for case in drawn:
            case.storage.bitwise_not_()

    key_data = "full" if full else "digests"
    folder = recorded([case.tensor for case in drawn], overwrite, key_data)
    if full:
        check_one_dump(folder, drawn)
    flipped = [case.flipped(where) for case in drawn]
    other = recorded([tensor for tensor, _ in flipped], key_data=key_data)
    check_flips(compare_key_data(read_dump(folder), read_dump(other)), [element for _, element in flipped], full)


@pytest.mark.parametrize("make", [*VIEWS, *COMPLEX_VIEWS], ids=lambda make: make.__name__)
def test_every_view_of_every_dtype(recorded: Callable[..., Path], make: Callable[..., Case]) -> None:
    random = np.random.default_rng(20)
    built = []
    for dtype in COMPLEX if make in COMPLEX_VIEWS else DTYPES:
        for shape in ((), (0,), (2, 0, 3), (1,), (3,), (2, 1, 3), (64, 8)):
            built.append(make(raw_values(dtype, shape, random.bytes(4096)), dtype))
    assert any(not case.tensor.is_contiguous() for case in built) or make in (contiguous, offset, *COMPLEX_VIEWS)
    folder = recorded([case.tensor for case in built], lambda: [case.storage.bitwise_not_() for case in built])
    check_one_dump(folder, built)
    flipped = [case.flipped(int(random.integers(1 << 30))) for case in built]
    other = recorded([tensor for tensor, _ in flipped])
    check_flips(compare_key_data(read_dump(folder), read_dump(other)), [element for _, element in flipped])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FLOAT8, "float8_e8m0fnu"])
def test_every_number_of_the_short_formats(recorded: Callable[..., Path], dtype: str) -> None:
    """Also: two codes of a format are never stored as the same number, not even two NaNs."""
    width = width_of(dtype)
    raw = np.arange(256**width, dtype=np.uint8 if width == 1 else np.uint16).view(np.uint8).reshape(-1, width)
    case = contiguous(raw, dtype)
    folder = recorded([case.tensor])
    check_one_dump(folder, [case])
    (record,) = read_dump(folder).records[0]
    stored = read_values(folder, record)
    assert len(np.unique(stored.view(np.uint32 if stored.itemsize == 4 else np.uint16))) == 256**width


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outside", [False, True], ids=["inside", "outside"])
def test_a_flipped_bit_outside_the_mask_is_told_apart(
    recorded: Callable[..., Path], tmp_path: Path, dtype: str, outside: bool
) -> None:
    raw = raw_values(dtype, (4,), bytes(range(1, 100)))
    case = contiguous(raw, dtype)
    changed, element = case.flipped(8 * width_of(dtype) * (3 if outside else 1))
    assert element == ((3,) if outside else (1,))
    mask = torch.tensor([True, True, False, False])
    folders = []
    for name, tensor in (("a", case.tensor), ("b", changed)):
        probe = Probe(RunSpec(run=name, dump_path=str(tmp_path / name)))
        probe.save({"t": tensor}, mask=mask)
        probe.close()
        folders.append(tmp_path / name)
    comparison = compare_key_data(*map(read_dump, folders))
    assert comparison.verdict == "divergent"
    (entry,) = comparison.entries
    assert (entry.harmless == "entries outside the mask") is outside
    kept = raw.copy()
    kept[2:] = 0
    assert entry.a is not None and entry.a.masked == xxh3(dtype, (4,), kept.tobytes() + bytes([1, 1, 0, 0]))


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "float8_e8m0fnu"])  # which has no zero
def test_a_mask_may_be_of_any_dtype_and_is_taken_at_the_call(tmp_path: Path, dtype: str) -> None:
    raw = np.zeros((3, width_of(dtype)), np.uint8)
    raw[0] = raw[2] = 1
    mask, storage = plain(raw, dtype)
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))
    probe.save({"x": torch.tensor([1, 2, 3])}, mask=mask)
    storage.fill_(1)
    probe.close()
    (record,) = read_dump(tmp_path / "dump").records[0]
    assert record.masked == xxh3("int64", (3,), struct.pack("<3q3B", 1, 0, 3, 1, 0, 1))


@pytest.mark.parametrize("view", [torch.Tensor.conj, lambda mask: mask.conj().imag], ids=["conjugate", "negative"])
def test_a_mask_may_be_a_view(tmp_path: Path, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))
    probe.save({"x": torch.tensor([1, 2])}, mask=view(torch.tensor([1j, 0])))
    probe.close()
    (record,) = read_dump(tmp_path / "dump").records[0]
    assert record.masked == xxh3("int64", (2,), struct.pack("<2q2B", 1, 0, 1, 0))


def test_entries_that_one_run_alone_counts_are_not_outside_the_mask(tmp_path: Path) -> None:
    for name, last, mask in (("a", 0.0, [1, 1]), ("b", 7.0, [1, 0])):
        probe = Probe(RunSpec(run=name, dump_path=str(tmp_path / name)))
        probe.save({"x": torch.tensor([1.0, last])}, mask=torch.tensor(mask))
        probe.close()
    (entry,) = compare_key_data(read_dump(tmp_path / "a"), read_dump(tmp_path / "b")).entries
    assert entry.harmless is None


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_default_device_elsewhere_does_not_matter(recorded: Callable[..., Path], dtype: str) -> None:
    case = contiguous(raw_values(dtype, (2, 3), bytes(range(100))), dtype)
    with torch.device("meta"):
        folder = recorded([case.tensor])
    check_one_dump(folder, [case])


# ---- weights ----


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "complex64"])
@pytest.mark.parametrize("make", VIEWS, ids=lambda make: make.__name__)
def test_weights_of_every_layout_have_the_digest_of_their_bytes(
    tmp_path: Path, dtype: str, make: Callable[..., Case]
) -> None:
    model = torch.nn.Module()
    built = []
    for number, shape in enumerate(((), (0,), (1,), (2,), (2, 3), (3, 1))):
        built.append(make(raw_values(dtype, shape, bytes(range(1, 100))), dtype))
        model.register_parameter(f"p{number}", torch.nn.Parameter(built[-1].tensor, requires_grad=False))
    model.register_buffer("flag", torch.tensor([True, False])[::2])
    model.register_buffer("conjugate", torch.tensor([1 + 2j]).conj())
    model.register_buffer("negative", torch.tensor([1 + 2j]).conj().imag)
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))
    probe.attach(actor=model)
    probe.step()
    for case in built:
        case.storage.bitwise_not_()
    probe.close()
    *records, flag, conjugate, negative = read_dump(tmp_path / "dump").records[0]
    for number, (record, case) in enumerate(zip(records, built, strict=True)):
        assert (record.path, record.dtype, record.shape) == (f"actor.p{number}", dtype, case.shape)
        assert record.digest == xxh3(dtype, case.shape, case.data)
    assert (flag.path, flag.digest) == ("actor.flag", xxh3("bool", (1,), b"\x01"))
    assert conjugate.digest == xxh3("complex64", (1,), struct.pack("<2f", 1, -2))
    assert negative.digest == xxh3("float32", (1,), struct.pack("<f", -2))


# ---- NumPy ----

NUMPY = [
    np.dtype(order + code)
    for code in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
    for order in "<>"
] + [np.dtype("?")]

LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "C": lambda array: array,
    "Fortran": np.asfortranarray,
    "strided": lambda array: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
    "negative": lambda array: np.ascontiguousarray(array[::-1])[::-1] if array.ndim else array,
    "broadcast": lambda array: np.broadcast_to(array, (2, *array.shape)),
    "unaligned": lambda array: unaligned(array),
}


def unaligned(array: np.ndarray) -> np.ndarray:
    holder = np.zeros(array.nbytes + 1, np.uint8)
    view = holder[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = draw(st.sampled_from(NUMPY))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    data = np.frombuffer(draw(st.binary(min_size=1, max_size=64) | SPECIAL), np.uint8)
    raw = np.resize(data, int(np.prod(shape)) * dtype.itemsize)
    array = (raw & 1 if dtype.kind == "b" else raw).view(dtype).reshape(shape)
    return draw(st.sampled_from(list(LAYOUTS.values())))(array)


def native_bytes(array: np.ndarray) -> bytes:
    """The bytes in row-major order and the machine's byte order, element by element."""
    raw = array.tobytes()  # row-major whatever the layout
    part = array.dtype.itemsize // (2 if array.dtype.kind == "c" else 1)
    if array.dtype.byteorder == ">":
        raw = np.frombuffer(raw, np.uint8).reshape(-1, part)[:, ::-1].tobytes()
    return raw


@given(drawn=st.lists(arrays(), min_size=1, max_size=8), where=st.integers(0, 1 << 30))
@PROPERTY
def test_numpy_arrays_are_recorded_as_they_were_and_one_flipped_bit_is_found(
    recorded: Callable[..., Path], drawn: list[np.ndarray], where: int
) -> None:
    expected = []
    for array in drawn:
        shown = np.frombuffer(native_bytes(array), np.uint8).reshape(*array.shape, array.dtype.itemsize)
        expected.append(Case(array.dtype.newbyteorder("=").name, torch.empty(0), shown.copy(), torch.empty(0)))

    def overwrite() -> None:
        for array in drawn:
            if array.flags.writeable:
                array[...] = 1

    folder = recorded(drawn, overwrite)
    check_one_dump(folder, expected)
    flipped = [case.flipped(where) for case in expected]
    arrays = [tensor.numpy() for tensor, _ in flipped]
    other = recorded([array.astype(array.dtype.newbyteorder(">")) for array in arrays])
    check_flips(compare_key_data(read_dump(folder), read_dump(other)), [element for _, element in flipped])


def test_read_only_arrays_and_their_memory_maps(recorded: Callable[..., Path], tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    np.save(tmp_path / "array.npy", array)
    array.setflags(write=False)
    folder = recorded([array, np.load(tmp_path / "array.npy", mmap_mode="r"), np.array(array)])
    assert {record.digest for record in read_dump(folder).records[0]} == {xxh3("int16", (2, 3), array.tobytes())}


# ---- numbers, strings, nested ----

TEXT = st.text(st.characters(exclude_categories=()), max_size=8)  # with lone surrogates
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.complex_numbers()
    | TEXT
    | st.sampled_from(["", "\ud800", "\0", "a\nb", "None", "<empty>"])
)
NESTED = st.recursive(
    LEAVES,
    lambda children: st.lists(children, max_size=3) | st.tuples(children) | st.dictionaries(TEXT, children, max_size=3),
    max_leaves=8,
)


def leaf_bytes(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    if value is None:
        return "none", (0,), b""
    if isinstance(value, str):
        text = value.encode("utf-8", "surrogatepass")
        return "str", (len(text),), text
    if isinstance(value, Empty):
        return f"empty {value.kind}", (0,), b""
    if isinstance(value, bool):
        return "bool", (), bytes([value])
    if isinstance(value, int):
        return ("int64", (), struct.pack("<q", value)) if value < 2**63 else ("uint64", (), struct.pack("<Q", value))
    if isinstance(value, float):
        return "float64", (), struct.pack("<d", value)
    return "complex128", (), struct.pack("<2d", value.real, value.imag)


def flattened(value: Any, path: str | None = None) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict | list | tuple):
        yield path or "", value
        return
    if not value:
        yield path or "", Empty("dict" if isinstance(value, dict) else "list")
    named = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in named:
        name = str(key).replace("\\", "\\\\").replace(".", "\\.")
        if isinstance(value, dict) and (not name or name.isdigit() or name.startswith("(")):
            name = f"\\{name}"  # no index, and no level of its own
        yield from flattened(child, f"{path}.{name}" if path else name)


@given(drawn=st.lists(NESTED, min_size=1, max_size=6))
@PROPERTY
def test_numbers_strings_and_nested_ones_are_recorded_exactly(recorded: Callable[..., Path], drawn: list[Any]) -> None:
    folder = recorded(drawn)
    dump = read_dump(folder)
    assert dump.problems == []
    expected = [(f"t{number}", *leaf) for number, value in enumerate(drawn) for leaf in flattened(value)]
    for record, (tag, path, leaf) in zip(dump.records[0], expected, strict=True):
        dtype, shape, data = leaf_bytes(leaf)
        assert (record.tag, record.path, record.dtype, record.shape) == (tag, path, dtype, shape)
        assert record.digest == xxh3(dtype, shape, data)
        values = read_values(folder, record)
        assert values.tobytes() == data
        assert values.dtype.kind in "iufc"
    assert compare_key_data(dump, read_dump(recorded(drawn))).verdict == "identical"


@given(one=LEAVES, other=LEAVES)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_two_numbers_or_strings_are_the_same_only_when_all_their_bits_are(
    recorded: Callable[..., Path], one: Any, other: Any
) -> None:
    assume(leaf_bytes(one) != leaf_bytes(other))
    dumps = [read_dump(recorded([[1, {"x": leaf}]])) for leaf in (one, other)]
    assert compare_key_data(*dumps).verdict == "divergent"


@pytest.mark.parametrize(
    ("one", "other"),
    [({}, "<empty dict>"), ([], "<empty list>"), ({}, []), ({"0": 1}, [1]), ({"": 1}, 1), ({"": {"": 1}}, {"": 1})],
)
def test_another_container_is_another_record(recorded: Callable[..., Path], one: Any, other: Any) -> None:
    dumps = [read_dump(recorded([value])) for value in (one, other)]
    assert compare_key_data(*dumps).verdict == "divergent"


def test_what_is_changed_inside_a_container_after_the_call_is_not_seen(recorded: Callable[..., Path]) -> None:
    inner: list[Any] = [1, torch.ones(2), np.ones(2)]
    outer = {"list": inner, "text": "before"}

    def change() -> None:
        inner[1].fill_(5)
        inner[2].fill(5)
        inner.append(9)
        outer["text"] = "after"

    folder = recorded([outer], change)
    records = read_dump(folder).records[0]
    assert [record.path for record in records] == ["list.0", "list.1", "list.2", "text"]
    assert [read_values(folder, record).tolist() for record in records[1:3]] == [[1, 1], [1, 1]]
    assert records[3].digest == xxh3("str", (6,), b"before")


# ---- what is refused ----


def quantised(per_channel: bool) -> torch.Tensor:
    if per_channel:
        scales, zeros = torch.ones(2), torch.zeros(2, dtype=torch.int64)
        return torch.quantize_per_channel(torch.ones(2, 2), scales, zeros, 0, torch.quint8)
    return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse": (lambda: torch.eye(2).to_sparse(), "sparse_coo tensor cannot be recorded; save its dense values"),
    "CSR": (lambda: torch.eye(2).to_sparse_csr(), "sparse_csr tensor cannot be recorded; save its dense values"),
    "CSC": (lambda: torch.eye(2).to_sparse_csc(), "sparse_csc tensor cannot be recorded; save its dense values"),
    "BSR": (lambda: torch.eye(4).to_sparse_bsr((2, 2)), "sparse_bsr tensor cannot be recorded; save its dense"),
    "quantised": (lambda: quantised(False), "quantised tensor cannot be recorded; save its dense values"),
    "quantised by channel": (lambda: quantised(True), "quantised tensor cannot be recorded; save its dense values"),
    "meta": (lambda: torch.empty(2, device="meta"), "meta tensor cannot be recorded"),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
        "nested tensor cannot be recorded; save its parts",
    ),
    "float4": (
        lambda: torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "tensor of float4_e2m1fn_x2 cannot be recorded",
    ),
    "bits": (lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8), "tensor of bits8 cannot be recorded"),
    "objects": (lambda: np.array([object()]), "ndarray of object cannot be recorded; save numbers"),
    "texts": (lambda: np.array(["a"]), "cannot be recorded; save numbers"),
    "fields": (lambda: np.zeros(2, [("x", "f4")]), "cannot be recorded; save numbers"),
    "times": (lambda: np.array(["2020-01-01"], "datetime64[D]"), "cannot be recorded; save numbers"),
    "long doubles": (lambda: np.ones(2, np.longdouble), "cannot be recorded; save numbers"),
    "complex long doubles": (lambda: np.ones(2, np.clongdouble), "cannot be recorded; save numbers"),
    "a masked array": (lambda: np.ma.array([1.0, 2.0], mask=[True, False]), "MaskedArray of float64 cannot be"),
    "an integer of more than 64 bits": (lambda: 2**64, "cannot be recorded"),
    "a negative one": (lambda: -(2**63) - 1, "cannot be recorded"),
    "a set": (lambda: {1}, "a set cannot be recorded; save tensors, arrays, numbers or strings"),
    "bytes": (lambda: b"a", "a bytes cannot be recorded"),
    "a generator": (lambda: (x for x in [1]), "a generator cannot be recorded"),
    "a file": (io.BytesIO, "a BytesIO cannot be recorded"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_exact_bytes_is_refused_at_the_call(name: str, tmp_path: Path) -> None:
    make, sentence = REFUSED[name]
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))
    with pytest.raises(RecordError) as caught:
        probe.save({"before": 1, "x": make(), "after": 2})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    probe.close()
    dump = read_dump(tmp_path / "dump")
    assert [record.tag for record in dump.records[0]] == ["before"]
    assert not dump.complete
    assert sentence in dump.problems[0]


@pytest.mark.parametrize("make", [lambda: torch.eye(2).to_sparse(), lambda: torch.ones(2, device="meta")])
def test_a_mask_without_values_is_refused_at_the_call(make: Callable[[], torch.Tensor], tmp_path: Path) -> None:
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))
    with pytest.raises(RecordError, match="tensor cannot be recorded; save its dense values"):
        probe.save({"x": torch.ones(2, 2)}, mask=make())
    probe.close()


@pytest.mark.parametrize("dtype", [torch.uint1, torch.uint4, torch.uint7, torch.int4], ids=str)
def test_the_dtypes_that_torch_cannot_copy_are_refused_in_a_sentence(dtype: torch.dtype, tmp_path: Path) -> None:
    probe = Probe(RunSpec(run="a", dump_path=str(tmp_path / "dump")))
    with pytest.raises(RecordError, match="cannot be recorded"):
        probe.save({"x": torch.zeros(2, dtype=torch.uint8).view(dtype)})
    probe.close()
