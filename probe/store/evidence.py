"""What a layer dump keeps of one value, and how much that tells: its bytes, a checksum of them, or statistics.

msprobe writes every checksum under ``md5``. What it is shows in its form: eight hexadecimal digits are a CRC-32, 32 an
MD5; ``0x`` and sixteen are the XOR of all words (of a scalar the number itself), which neither the order of the words
changes nor one that stands there an even number of times.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

Level = Literal["exact", "checksum", "xor", "statistics", "nothing"]
"""How much is known of two values that show no difference, the most first."""
LEVELS: tuple[Level, ...] = get_args(Level)

_STATISTICS = ("Max", "Min", "Mean", "Norm")
_NO_VALUE = frozenset({*_STATISTICS, "data_name", "md5", "requires_grad"})
_CHECKSUMS = {
    "crc32": re.compile("[0-9a-f]{8}"),
    "md5": re.compile("[0-9a-f]{32}"),
    "xor": re.compile("0x[0-9a-f]{16}"),
}


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of one value.

    Example:
        >>> one, two = (Evidence("float32[2]", checksum=("crc32", text)) for text in ("4f8c5ccc", "16fbd24c"))
        >>> one.against(two)
        (False, 'checksum')
    """

    form: str
    """Dtype and shape of a tensor; of anything else all that there is of it."""
    exact: str | None = None
    """Digest of its bytes; empty where the form says all."""
    checksum: tuple[str, str] | None = None
    """Its kind and text."""
    statistics: tuple[str, ...] | None = None

    @property
    def of_values(self) -> bool:
        """Whether it is of a tensor's values, rather than of what is no tensor, or has none."""
        return bool(self.exact or self.checksum or self.statistics)

    def against(self, other: Evidence) -> tuple[bool, Level]:
        """Compares with the same value of another run.

        Returns:
            Whether nothing differs, and what shows that: the best that both have.
        """
        if self.form != other.form:
            return False, "exact"
        if self.exact is not None and other.exact is not None:
            return self.exact == other.exact, "exact"
        same_statistics = self.statistics == other.statistics or None in (self.statistics, other.statistics)
        if self.checksum is not None and other.checksum is not None and self.checksum[0] == other.checksum[0]:
            level: Level = "xor" if self.checksum[0] == "xor" else "checksum"
            if self.checksum != other.checksum:
                return False, level
            return same_statistics, level if same_statistics else "statistics"
        if self.statistics is None or other.statistics is None:
            return True, "nothing"
        return same_statistics, "statistics"


def evidence_of(value: Any, task: str) -> Evidence | None:
    """What ``dump.json`` says of a value; None of a tensor whose bytes lie in a file of their own.

    Args:
        value: An entry of ``dump.json``.
        task: The task that dumped it.

    Raises:
        ValueError: A tensor of a dump of tensors was not stored.
    """
    if not isinstance(value, dict):
        return Evidence(json.dumps(value, sort_keys=True), "")
    if value.get("data_name"):
        return None
    if not _is_tensor(value):
        kept = {key: child for key, child in value.items() if key not in _NO_VALUE}
        return Evidence(json.dumps(kept, sort_keys=True), "")
    form = form_of(value)
    if 0 in value["shape"]:
        return Evidence(form, "")
    if task == "tensor":
        raise ValueError(f"a tensor of {value['shape']} was not stored")
    return Evidence(form, None, _checksum(value.get("md5")), statistics_of(value))


def statistics_of(value: dict[str, Any]) -> tuple[str, ...] | None:
    """The statistics of a dumped tensor as text; None where none were kept. NaN is text as any number."""
    if all(value.get(key) is None for key in _STATISTICS):
        return None
    return tuple(json.dumps(value.get(key)) for key in _STATISTICS)


def form_of(value: dict[str, Any]) -> str:
    """Dtype, shape and what else says of which kind a dumped tensor was."""
    kept = {key: child for key, child in value.items() if key not in (*_NO_VALUE, "type", "dtype", "shape")}
    dtype = str(value.get("dtype")).removeprefix("torch.")
    more = f" {json.dumps(kept, sort_keys=True)}" if kept else ""
    return f"{dtype}{value.get('shape')}{more}"


def _is_tensor(value: dict[str, Any]) -> bool:
    return "dtype" in value and isinstance(value.get("shape"), list) or value.get("type") == "torch.Tensor"


def _checksum(value: Any) -> tuple[str, str] | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, str):
        text = value.lower()
        kind = next((name for name, form in _CHECKSUMS.items() if form.fullmatch(text)), None)
        return None if kind is None else (kind, text)
    return ("xor", json.dumps(value))  # of a scalar, the number itself
