"""Two checkpoints, tensor by tensor, by all bytes: which parameters differ, first in the model's order, by how much.

Values are read in pieces, a piece of each side at a time, whatever their size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from probe.compare.align import align
from probe.compare.cosine import Products
from probe.compare.entries import Entry, KeyDataComparison, Status
from probe.compare.values import ValueDifference, describe
from probe.errors import DumpError
from probe.language import tell
from probe.store.checkpoints import Checkpoint, read_checkpoint
from probe.store.tensors import Array, Stored, StoredTensor, StoredValue, itemsize, numbers
from probe.types import Record

PIECE = 1 << 24
"""Bytes of each side that are read together; whole elements of any type."""
TAG = "weights"
"""What all values of a checkpoint are recorded as."""


@dataclass
class CheckpointComparison:
    """How two checkpoints compare.

    Example:
        >>> CheckpointComparison(Checkpoint(Path("a"), "DCP"), Checkpoint(Path("b"), "DCP")).order
        'by name, numbers by value: safetensors files keep no other order'
    """

    a: Checkpoint
    b: Checkpoint
    records: KeyDataComparison = field(default_factory=KeyDataComparison)
    """Every tensor and value, as a record of the tag ``weights``."""

    @property
    def order(self) -> str:
        """By what order the first difference is the first."""
        return (self.a if self.a.ordered or not self.b.ordered else self.b).order


def compare_checkpoints(a: Path, b: Path) -> CheckpointComparison:
    """Compares two checkpoints of any format.

    Args:
        a: A file or a folder.
        b: Another; its format may be another one.

    Raises:
        DumpError: One of them is no checkpoint, or cannot be read.
    """
    result = CheckpointComparison(read_checkpoint(a), read_checkpoint(b))
    _leave_prefix_out(result.a, result.b)
    left, right = result.a.tensors, result.b.tensors
    records = result.records
    records.problems += [*result.a.problems, *result.b.problems]
    for path, tensors in ((a, left), (b, right)):
        if not tensors and not records.problems:
            records.problems.append(tell("{path}: holds no tensors", path=path))
    if result.order == result.a.order:
        pairs = align(list(left), list(right))
    else:
        pairs = [(name, j, i) for name, i, j in align(list(right), list(left))]
    whole = not (result.a.problems or result.b.problems)
    for position, (name, index_a, index_b) in enumerate(pairs):
        one, two = (None if index is None else side[name] for index, side in ((index_a, left), (index_b, right)))
        entry = _compare(name, position, one, two, whole)
        if entry is None:
            records.count("same", TAG, 0, 0)
        else:
            records.add(entry)
    records.finish()
    return result


def _leave_prefix_out(a: Checkpoint, b: Checkpoint) -> None:
    """Where no name is in both, since one has all its parameters in a dictionary of their own (``model``), says so."""
    if set(a.tensors) & set(b.tensors):
        return
    for one, other in ((a, b), (b, a)):
        for prefix in dict.fromkeys(name.partition(".")[0] + "." for name in one.tensors):
            shared = [name for name in one.tensors if name.startswith(prefix) and name[len(prefix) :] in other.tensors]
            renamed = {name.removeprefix(prefix): value for name, value in one.tensors.items()}
            if shared and len(renamed) == len(one.tensors):
                one.tensors = renamed
                one.notes.append(
                    tell("{path}: its names begin with {prefix!r}, which was left out", path=one.path, prefix=prefix)
                )
                return


def _compare(name: str, position: int, one: Stored | None, two: Stored | None, whole: bool) -> Entry | None:
    """How one value differs; None when it does not."""
    a, b = (None if value is None else _record(name, value) for value in (one, two))

    def entry(status: Status, problem: str | None = None, difference: ValueDifference | None = None) -> Entry:
        return Entry(status, 0, 0, position, a, b, problem, difference)

    if one is None or two is None:
        if not whole:
            return entry("not_compared", tell("absent from the other checkpoint, which cannot be read as a whole"))
        return entry("missing" if two is None else "extra")
    if isinstance(one, StoredValue) or isinstance(two, StoredValue):
        return None if one == two else entry("different", tell("{a} against {b}", a=_words(one), b=_words(two)))
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return entry("different", tell("{a} against {b}", a=one.form, b=two.form))
    try:
        same, difference = _tensors(one, two)
    except DumpError as error:
        return entry("unreadable", str(error))
    if same:
        return None
    return entry("different", None if difference else tell("its bytes differ; nobody knows its numbers"), difference)


def _tensors(one: StoredTensor, two: StoredTensor) -> tuple[bool, ValueDifference | None]:
    """Whether two tensors of one type and shape are the same, and how they differ where their numbers are known."""
    if one.size != two.size:
        return False, None
    width = itemsize(one.dtype)
    summed: ValueDifference | None = None
    same = True
    for start in range(0, one.size, PIECE):
        stop = min(start + PIECE, one.size)
        left, right = one.read(start, stop), two.read(start, stop)
        piece = None
        if not np.array_equal(left, right):
            same = False
            piece = _describe(left, right, one.dtype)
        if summed is None and piece is None:
            continue
        summed = _plus(summed, piece, start // (width or 1))
    if same or summed is None or width is None:
        return same, None
    return False, _placed(summed, one.shape, one.size // width)


def _describe(left: Array, right: Array, dtype: str) -> ValueDifference | None:
    a, b = numbers(left, dtype), numbers(right, dtype)
    if a is None or b is None:
        return None
    return describe(a, b, dtype)


def _plus(summed: ValueDifference | None, piece: ValueDifference | None, offset: int) -> ValueDifference | None:
    """What two pieces of a tensor have together; the first index is that in the flat tensor."""
    if piece is None:
        return summed
    first = offset + piece.first_index[0]
    if summed is None:
        return ValueDifference(
            (first,), piece.values, piece.count, piece.size, piece.max_absolute, piece.max_relative, piece.max_ulp,
            piece.only_zeros, piece.only_nans, piece.products,
        )  # fmt: skip
    ulp = None if summed.max_ulp is None or piece.max_ulp is None else max(summed.max_ulp, piece.max_ulp)
    return ValueDifference(
        summed.first_index,
        summed.values,
        summed.count + piece.count,
        summed.size + piece.size,
        max(summed.max_absolute, piece.max_absolute),
        max(summed.max_relative, piece.max_relative),
        ulp,
        summed.only_zeros + piece.only_zeros,
        summed.only_nans + piece.only_nans,
        summed.products.plus(piece.products),
    )


def _placed(found: ValueDifference, shape: tuple[int, ...], size: int) -> ValueDifference:
    """A difference of a flat tensor in that of its shape. A cosine of parts would be none: there is none."""
    index = tuple(int(axis) for axis in np.unravel_index(found.first_index[0], shape)) if shape else ()
    return ValueDifference(
        index, found.values, found.count, size, found.max_absolute, found.max_relative, found.max_ulp,
        found.only_zeros, found.only_nans, Products(),
    )  # fmt: skip


def _record(name: str, value: Stored) -> Record:
    dtype = value.kind if isinstance(value, StoredValue) else value.dtype
    shape = () if isinstance(value, StoredValue) else value.shape
    return Record(TAG, 0, 0, 0, name, 0, None, dtype, shape, None, None, None)


def _words(value: Stored) -> str:
    if isinstance(value, StoredTensor):
        return value.form
    return f"{value.kind} {value.text[:60]}"
