"""The digest of ``probe.store.device_digest``, computed with torch where a tensor lies: on the host, CUDA or an NPU.

Operations on integers only. Nothing here waits for a device before ``DeviceDigests.fetch``: a tensor's two sums stay
where they were computed, 16 bytes for each. A tensor is read in chunks, so that beside it only some buffers of one
chunk are needed: 1 MB on the host, 48 MiB on a device, whatever its size, type and strides.

On a device, a chunk costs some twenty kernel launches and no copy to the host. On the host the same takes tens of times
as long as xxh3, so that it is not used there by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from probe.collect.values import dtype_name, own_part
from probe.store.device_digest import KEYS, ROUNDS, finalised

_CHUNK_ON_HOST = 16_000
"""Words of a chunk; twice as many numbers are still too few for torch to wake further threads."""
_CHUNK_ON_DEVICE = 1 << 20
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By bytes of an element."""
_WORD = 8


@dataclass(frozen=True, slots=True)
class _Pending:
    """A tensor's digest that is still on its device."""

    dtype: str
    shape: tuple[int, ...]
    size: int
    sums: torch.Tensor | None
    """int64 [2]; None where there is nothing to add."""
    stream: Any
    """On which the sums are made; None on the host."""


class DeviceDigests:
    """Digests many tensors where they lie, and fetches the results together. For one thread.

    Args:
        chunk: Words of eight bytes that are mixed together, an even number; None takes what suits the device. The
            digests do not depend on it.

    Example:
        >>> digests = DeviceDigests()
        >>> ticket = digests.add(torch.zeros(3))
        >>> len(digests.fetch()[ticket])
        32
    """

    def __init__(self, chunk: int | None = None) -> None:
        self._chunk = chunk
        self._factors: dict[torch.device, list[torch.Tensor]] = {}
        self._pending: dict[int, _Pending] = {}
        self._tickets = 0

    def add(self, tensor: torch.Tensor) -> int:
        """Starts the digest of a tensor's bytes as they are at this point of the device's current stream.

        Args:
            tensor: Any dense tensor; of a sharded one, this process's part.

        Returns:
            The ticket by which ``fetch`` names the digest.

        Raises:
            RecordError: The tensor is sparse or quantised, or has no storage.
        """
        part = own_part(tensor)
        with torch.no_grad():
            sums = self._sums(part)
        ticket = self._tickets
        self._tickets += 1
        stream = None if sums is None else _current_stream(part.device)
        self._pending[ticket] = _Pending(dtype_name(part), tuple(part.shape), part.nbytes, sums, stream)
        return ticket

    def fetch(self) -> dict[int, str]:
        """The digests of all tensors since the last call, by ticket, with one copy and one wait for each device.

        Returns:
            32 hexadecimal digits for each.
        """
        pending, self._pending = self._pending, {}
        on_device: dict[torch.device, list[int]] = {}
        for ticket, entry in pending.items():
            if entry.sums is not None:
                on_device.setdefault(entry.sums.device, []).append(ticket)
        found: dict[int, tuple[int, int]] = {}
        for device, tickets in on_device.items():
            _wait_for_others(device, {pending[ticket].stream for ticket in tickets})
            together = torch.stack([sums for ticket in tickets if (sums := pending[ticket].sums) is not None])
            found.update(zip(tickets, map(tuple, together.to("cpu").tolist()), strict=True))
        return {
            ticket: finalised(found.get(ticket, (0, 0)), entry.dtype, entry.shape, entry.size)
            for ticket, entry in pending.items()
        }

    def _sums(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Sum of the mixed words in each lane; int64 [2]."""
        default = _CHUNK_ON_HOST if tensor.device.type == "cpu" else _CHUNK_ON_DEVICE
        total, before = None, 0
        for words in _chunks(tensor, default if self._chunk is None else self._chunk):
            summed = self._mixed(words, before)
            total = summed if total is None else total.add_(summed)
            before += words.numel()
        return total

    def _mixed(self, words: torch.Tensor, before: int) -> torch.Tensor:
        """As in the reference, with numbers of either sign: int64 [n] to int64 [2]."""
        keys, *factors = self._factors_on(words.device)
        first = before + 1
        mixed = torch.arange(first, first + words.numel(), dtype=torch.int64, device=words.device) * keys
        mixed.bitwise_xor_(words)
        upper = torch.empty_like(mixed)
        for factor, (_, shift) in zip(factors, ROUNDS, strict=True):
            torch.bitwise_right_shift(mixed.mul_(factor), shift, out=upper)
            mixed.bitwise_xor_(upper.bitwise_and_((1 << (64 - shift)) - 1))  # the shift has copied the sign
        return mixed.sum(dim=1)

    def _factors_on(self, device: torch.device) -> list[torch.Tensor]:
        """Keys and factors on a device, int64 [2, 1] each: filled there, as a copy would wait for it."""
        if device not in self._factors:
            self._factors[device] = [_column(pair, device) for pair in (KEYS, *(factors for factors, _ in ROUNDS))]
        return self._factors[device]


def _column(factors: tuple[int, int], device: torch.device) -> torch.Tensor:
    column = torch.empty((2, 1), dtype=torch.int64, device=device)
    for lane, factor in enumerate(factors):
        column[lane].fill_(factor - (1 << 64) if factor >> 63 else factor)
    return column


def _chunks(tensor: torch.Tensor, chunk: int) -> Iterator[torch.Tensor]:
    """A tensor's bytes in row-major order as words, zeros behind the last; int64, at most ``chunk`` at a time."""
    size = tensor.nbytes
    words = _as_words(tensor)
    for start in range(0, size, chunk * _WORD):
        end = min(start + chunk * _WORD, size)
        if words is not None and end % _WORD == 0:
            yield words[start // _WORD : end // _WORD]
        else:
            width = tensor.element_size()
            yield _copied(tensor, start // width, end // width)


def _as_words(tensor: torch.Tensor) -> torch.Tensor | None:
    """The whole words of a tensor's own memory; None where that is not all of them, in order, and aligned."""
    if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or tensor.numel() == 0:
        return None
    if tensor.data_ptr() % _WORD or tensor.storage_offset() * tensor.element_size() % _WORD:
        return None
    flat = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)  # one element alone may have any stride
    return flat[: flat.numel() // _WORD * _WORD].view(torch.int64)


def _copied(tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """A copy of some elements as words; int64.

    Args:
        tensor: Of any strides.
        start: Number of the first element in row-major order.
        stop: Number of the one behind the last.
    """
    size = (stop - start) * tensor.element_size()
    words = torch.zeros(-(-size // _WORD), dtype=torch.int64, device=tensor.device)
    elements = words.view(_INTEGERS[min(tensor.element_size(), _WORD)])
    _fill(elements[: size // elements.element_size()], tensor, start, stop)
    return words


def _fill(into: torch.Tensor, tensor: torch.Tensor, start: int, stop: int) -> None:
    """Copies elements from ``start`` to ``stop`` of a tensor; no piece on the way is larger than all of them."""
    while start < stop:
        rows, row_size = (tensor.shape[0], tensor.numel() // tensor.shape[0]) if tensor.dim() else (1, 1)
        row, offset = divmod(start, row_size)
        if offset == 0 and stop - start >= row_size:
            count = min((stop - start) // row_size, rows)
            taken = count * row_size
            piece = _as_integers(tensor[row : row + count] if tensor.dim() else tensor)
            into[: piece.numel()].view(piece.shape).copy_(piece)
            done = piece.numel()
        else:
            taken = min(row_size - offset, stop - start)
            done = taken * max(1, tensor.element_size() // _WORD)
            _fill(into[:done], tensor[row], offset, offset + taken)
        into, start = into[done:], start + taken


def _as_integers(piece: torch.Tensor) -> torch.Tensor:
    """The same bits as integers, of which no copy can change any; an element of 16 bytes becomes two."""
    plain = piece.resolve_conj().resolve_neg()
    return (torch.view_as_real(plain) if plain.element_size() > _WORD else plain).view(
        _INTEGERS[min(plain.element_size(), _WORD)]
    )


def _current_stream(device: torch.device) -> Any:
    return None if device.type == "cpu" else torch.get_device_module(device).current_stream(device)


def _wait_for_others(device: torch.device, streams: set[Any]) -> None:
    """Lets the device's current stream wait for others; the host does not."""
    current = _current_stream(device)
    for stream in streams - {current, None}:
        current.wait_stream(stream)
