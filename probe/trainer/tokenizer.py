"""Tokenizers: one token a byte where the model has none, else that of the model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from probe.errors import ConfigError


class Tokenizer(Protocol):
    """What the trainer needs of a tokenizer."""

    pad_token_id: int
    eos_token_id: int

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Text of token ids; special tokens are left out."""
        ...


class ByteTokenizer:
    """One token for each byte of UTF-8, then padding and the end.

    Example:
        >>> tokenizer = ByteTokenizer()
        >>> tokenizer.encode("1+2="), tokenizer.decode([51, tokenizer.eos_token_id])
        ([49, 43, 50, 61], '3')
    """

    pad_token_id = 256
    eos_token_id = 257
    vocab_size = 258

    def encode(self, text: str) -> list[int]:
        """Token ids of a text."""
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        return bytes(token for token in ids if token < 256).decode(errors="replace")


class FolderTokenizer:
    """The tokenizer that a model's folder holds.

    Args:
        folder: As transformers' ``save_pretrained`` writes it.

    Raises:
        ConfigError: There is none, or it names no end token.
    """

    def __init__(self, folder: str) -> None:
        from transformers import AutoTokenizer

        try:
            self._inner: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except Exception as error:  # noqa: BLE001  (transformers raises anything on a damaged file)
            raise ConfigError(folder, "model.path", f"no tokenizer can be read there ({error})") from error
        if self._inner.eos_token_id is None:
            raise ConfigError(folder, "model.path", "its tokenizer names no end token (eos_token)")
        self.eos_token_id: int = self._inner.eos_token_id
        pad = self._inner.pad_token_id
        self.pad_token_id: int = self.eos_token_id if pad is None else pad

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        return list(self._inner.encode(text, add_special_tokens=False))

    def decode(self, ids: list[int]) -> str:
        """Text of token ids."""
        return str(self._inner.decode(ids, skip_special_tokens=True))


def load_tokenizer(folder: str | None) -> Tokenizer:
    """The tokenizer of a model folder, or the byte-level one where there is no folder or none in it.

    Raises:
        ConfigError: The folder's tokenizer cannot be read.
    """
    names = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json")
    if folder is not None and any((Path(folder) / name).exists() for name in names):
        return FolderTokenizer(folder)
    return ByteTokenizer()
