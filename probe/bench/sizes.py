"""How much each benchmark does. The defaults are the reference sizes, which the targets are stated for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

_MIB = 1 << 20


def qwen2(layers: int, hidden: int) -> dict[str, int]:
    """Keys of transformers' ``Qwen2Config`` for a width: the MLP is twice as wide, a head for each 64, two at least.

    Args:
        layers: Decoder layers.
        hidden: Hidden size.

    Example:
        >>> qwen2(4, 512)["intermediate_size"]
        1024
    """
    heads = max(2, hidden // 64)
    return {
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": max(1, heads // 2),
    }


@dataclass(frozen=True, slots=True)
class RecordingSize:
    """A GRPO training with a small Qwen2.

    Example:
        >>> RecordingSize(prompts=8, samples=4).responses
        32
    """

    layers: int = 4
    hidden: int = 512
    """Hidden size; the MLP is twice as wide, attention has a head for each 64 (at least two)."""
    prompts: int = 8
    """Prompts per step."""
    samples: int = 4
    """Responses per prompt."""
    response_tokens: int = 28
    """Longest response; with the four tokens of a prompt a sequence has 32."""
    micro_batch: int = 8
    """Responses that a forward pass gets, outside of the generation."""
    steps: int = 3
    """Training steps that a contender takes in a round."""
    rounds: int = 6
    """With three contenders, six rounds hold every order of them once."""

    @property
    def responses(self) -> int:
        """Responses per step."""
        return self.prompts * self.samples

    @property
    def disk_bytes(self) -> int:
        """Most that lies on the disk at once."""
        per_step = 64 * self.responses * (self.response_tokens + 64) + 4 * _MIB
        return self.rounds * self.steps * 2 * per_step

    def to_dict(self) -> dict[str, Any]:
        """For the document."""
        return asdict(self)

    def to_json(self) -> str:
        """For a child process."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class BytesSize:
    """Two folders of equal ``.npy`` files.

    Example:
        >>> BytesSize(files=600, file_bytes=1_000_000).disk_bytes > 1_200_000_000
        True
    """

    files: int = 600
    """Files in each of the two folders."""
    file_bytes: int = 1_000_000
    """Values in each file, in bytes; a multiple of 4, as they are float32."""
    rounds: int = 4

    @property
    def disk_bytes(self) -> int:
        """Most that lies on the disk at once."""
        return 2 * self.files * (self.file_bytes + 4 * 4096) + 64 * _MIB

    def to_dict(self) -> dict[str, Any]:
        """For the document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DigestsSize:
    """Two dumps that hold digests only.

    Example:
        >>> DigestsSize().total
        800000
    """

    ranks: int = 8
    records: int = 100_000
    """Records of each rank in each of the two dumps."""
    steps: int = 10
    """Training steps that the records are spread over."""
    rounds: int = 3

    @property
    def total(self) -> int:
        """Records in each of the two dumps."""
        return self.ranks * self.records

    @property
    def disk_bytes(self) -> int:
        """Most that lies on the disk at once."""
        return 2 * self.total * 512 + 64 * _MIB

    def to_dict(self) -> dict[str, Any]:
        """For the document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OverheadSize:
    """Checks without a server, with a trainer of three steps.

    Example:
        >>> OverheadSize(rounds=5).rounds
        5
    """

    rounds: int = 3
    """Checks after the first one, which alone makes Prefect's database."""

    @property
    def disk_bytes(self) -> int:
        """Most that lies on the disk at once."""
        return 32 * _MIB

    def to_dict(self) -> dict[str, Any]:
        """For the document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class DeviceDigestSize:
    """One tensor, digested by each contender.

    Example:
        >>> DeviceDigestSize(tensor_bytes=1024).disk_bytes
        0
    """

    tensor_bytes: int = 64 * _MIB
    """A multiple of 4, as it is float32."""
    rounds: int = 6

    @property
    def disk_bytes(self) -> int:
        """Most that lies on the disk at once."""
        return 0

    def to_dict(self) -> dict[str, Any]:
        """For the document."""
        return asdict(self)

    def to_json(self) -> str:
        """For a child process."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class TraceSize:
    """Optimizer steps on small Qwen2s of several widths, and whole GRPO steps.

    Example:
        >>> TraceSize(widths=(64,)).model(64)["num_attention_heads"]
        2
    """

    widths: tuple[int, ...] = (64, 512, 1024)
    """Hidden sizes; the MLP is twice as wide, attention has a head for each 64 (at least two)."""
    dumps: tuple[str, ...] = ("l0_statistics", "l0_md5", "mix_md5")
    """msprobe's dumps beside the trace: names in ``probe.bench.tracing.DUMPS``."""
    layers: int = 4
    vocabulary: int = 1024
    sequences: int = 8
    tokens: int = 256
    """Tokens of a sequence."""
    steps: int = 2
    """Steps that a contender takes in a round."""
    rounds: int = 4
    whole: RecordingSize = field(default_factory=lambda: RecordingSize(samples=8, micro_batch=64, steps=1))
    """The GRPO steps, generation included: 64 responses of 32 tokens, which is as many tokens as the updates have."""

    def model(self, width: int) -> dict[str, int]:
        """Keys of ``Qwen2Config``.

        Args:
            width: The hidden size.
        """
        return {"vocab_size": self.vocabulary, **qwen2(self.layers, width)}

    @property
    def disk_bytes(self) -> int:
        """Most that lies on the disk at once."""
        return (self.rounds + 1) * self.steps * self.layers * 8 * _MIB + self.whole.disk_bytes + 64 * _MIB

    def to_dict(self) -> dict[str, Any]:
        """For the document."""
        return {**asdict(self), "widths": list(self.widths), "dumps": list(self.dumps)}

    def to_json(self) -> str:
        """For a child process."""
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True)
class LocateSize:
    """Two dumps with traces that differ from the middle on, in each rank.

    Example:
        >>> LocateSize().total
        8000000
    """

    ranks: int = 4
    events: int = 2_000_000
    """Events of each rank in each of the two dumps."""
    steps: int = 10
    """Training steps that the events are spread over."""
    rounds: int = 2

    @property
    def total(self) -> int:
        """Events in each of the two dumps."""
        return self.ranks * self.events

    @property
    def disk_bytes(self) -> int:
        """Most that lies on the disk at once."""
        return 2 * self.total * 256 + 64 * _MIB

    def to_dict(self) -> dict[str, Any]:
        """For the document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sizes:
    """One size for each benchmark, under its name.

    Example:
        >>> Sizes(digests=DigestsSize(ranks=2, records=50)).digests.total
        100
    """

    recording: RecordingSize = field(default_factory=RecordingSize)
    bytes: BytesSize = field(default_factory=BytesSize)
    digests: DigestsSize = field(default_factory=DigestsSize)
    device_digest: DeviceDigestSize = field(default_factory=DeviceDigestSize)
    locate: LocateSize = field(default_factory=LocateSize)
    trace: TraceSize = field(default_factory=TraceSize)
    overhead: OverheadSize = field(default_factory=OverheadSize)


REFERENCE = Sizes()
"""What the command measures."""
