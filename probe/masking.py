"""Secrets: which variables hold one, and what stands in their place wherever they would be written or shown.

A masked value is a digest under a key that only this machine's user has, so that two runs can still be compared, and
nobody who has only the files can guess the value by trying. Standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

PATTERNS = (
    *("*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*PASSPHRASE*", "*CREDENTIAL*", "*API_KEY*", "*APIKEY*"),
    *("*ACCESS_KEY*", "*PRIVATE_KEY*", "*AUTH_KEY*", "*ENCRYPTION_KEY*", "*CONNECTION_STRING*", "*CONNECTION_URL*"),
    *("*COOKIE*", "*DSN", "AWS_*KEY*", "*_PAT", "*_AUTH", "*_KEY"),
)
"""Names of variables that hold a secret, in capitals."""
NO_SECRETS = ("*TOKENIZER*", "*_TOKENS", "*TOKEN_ID", "*TOKEN_IDS", "TOKENS_*", "*NUM_TOKEN*", "*MAX_TOKEN*")
"""Names that look like one and are none."""
SHORTEST = 4
"""Characters of the shortest value that is looked for in a text: shorter ones stand in every other word."""
_PLAIN_WORDS = frozenset({"true", "false", "none", "null", "auto", "default", "disabled", "enabled"})

_MARK = re.compile(r"<masked:([0-9a-f]{8}):([0-9a-f]{32})>")
_USERINFO = re.compile(r"://(?P<user>[^\s/@:?#'\"]{0,200}):(?P<password>[^\s/@'\"]{1,500})@")
_LONGEST_LINE = 1 << 16
STARS = "***"
"""What stands for a secret in a text that people read."""


def is_secret(name: str, more: Iterable[str] = ()) -> bool:
    """Whether a variable's value is a secret, by its name.

    Args:
        name: The variable's name.
        more: Names, or patterns as ``fnmatch`` takes them, beside the known ones; these count in any case.

    Example:
        >>> is_secret("HF_TOKEN"), is_secret("TOKENIZERS_PARALLELISM"), is_secret("MINE", ["mine"])
        (True, False, True)
    """
    upper = name.upper()
    if any(fnmatchcase(upper, pattern.upper()) for pattern in more):
        return True
    known = any(fnmatchcase(upper, pattern) for pattern in PATTERNS)
    return known and not any(fnmatchcase(upper, pattern) for pattern in NO_SECRETS)


def mask(value: str) -> str:
    """What is written in place of a secret: its digest under this machine's key, and which key that is."""
    key = _key()
    name = hashlib.sha256(key).hexdigest()[:8]
    return f"<masked:{name}:{hmac.new(key, value.encode(errors='surrogatepass'), hashlib.sha256).hexdigest()[:32]}>"


def mask_urls(text: str) -> str:
    """Masks the passwords of addresses such as ``https://user:password@host``."""
    return _USERINFO.sub(lambda found: f"://{found['user']}:{mask(found['password'])}@", text)


def is_masked(text: str) -> bool:
    """Whether a text holds what ``mask`` writes."""
    return _MARK.search(text) is not None


def unknown_whether_same(one: Any, two: Any) -> bool:
    """Whether two values are the same but for secrets that were masked with different keys: nobody knows then."""
    if not isinstance(one, str) or not isinstance(two, str) or one == two:
        return False
    keys = [[found[1] for found in _MARK.finditer(text)] for text in (one, two)]
    return keys[0] != keys[1] and _MARK.sub("", one) == _MARK.sub("", two)


class Hidden:
    """Takes secrets out of what people read: logs, messages.

    Args:
        values: The secrets.

    Example:
        >>> Hidden(["hunter2!"]).text("my password is hunter2!, at ftp://me:pw@host")
        'my password is ***, at ftp://me:***@host'
    """

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value)}
        longest_first = sorted(forms, key=len, reverse=True)
        self.longest = max(map(len, forms), default=0)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None
        self._signs = [b"://", *(form.encode(errors="surrogateescape") for form in forms)]
        self._rest = b""

    @classmethod
    def of(cls, environment: dict[str, str], more: Iterable[str] = ()) -> Hidden:
        """For a process with an environment: the values of its secret variables, and passwords in its addresses."""
        names = list(more)
        found = [value for name, value in environment.items() if is_secret(name, names)]
        found += [match["password"] for value in environment.values() for match in _USERINFO.finditer(value)]
        return cls(found)

    def text(self, text: str) -> str:
        """A text without them."""
        if self._pattern is not None:
            text = self._pattern.sub(STARS, text)
        return _USERINFO.sub(rf"://\g<user>:{STARS}@", text)

    def feed(self, chunk: bytes) -> bytes:
        """A stream without them: all whole lines that are there now. A secret may come in pieces.

        A line that does not end is handed on in pieces, once it is long.
        """
        data = self._rest + chunk
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if len(data) - end > _LONGEST_LINE:
            data = self._bytes(data)
            end = len(data) - min(len(data), 4 * self.longest + 1024)
            self._rest = data[end:]
            return data[:end]
        self._rest = data[end:]
        return self._bytes(data[:end])

    def flush(self) -> bytes:
        """What is left at the end of a stream."""
        rest, self._rest = self._rest, b""
        return self._bytes(rest)

    def _bytes(self, data: bytes) -> bytes:
        if not any(sign in data for sign in self._signs):
            return data  # most of what trainers print, at the speed of memory
        return self.text(data.decode(errors="surrogateescape")).encode(errors="surrogateescape")


def _forms(value: str) -> list[str]:
    """How a value may stand in a text: as it is, in a URL, in JSON, as Python writes it, and line by line."""
    lines = value.splitlines() if "\n" in value.strip() else []
    forms = [value, value.strip(), quote(value, safe=""), json.dumps(value)[1:-1], repr(value)[1:-1]]
    forms += [line.strip() for line in lines if len(line.strip()) >= 2 * SHORTEST]
    return [form for form in forms if len(form) >= SHORTEST and form.lower() not in _PLAIN_WORDS]


@cache
def _key() -> bytes:
    """This user's key on this machine, made at its first use; where it cannot be kept, one for this process."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    file = Path(base, "firstdiff", "mask.key")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        made = file.with_name(f"{file.name}.{secrets.token_hex(8)}")
        if not file.exists():
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                stream.write(secrets.token_hex(32))
            try:
                os.link(made, file)  # whoever comes second takes the first one's
            except FileExistsError:
                pass
            finally:
                made.unlink()
        key = bytes.fromhex(file.read_text(encoding="ascii").strip())
        if len(key) == 32:
            return key
    except (OSError, ValueError):
        pass
    return secrets.token_bytes(32)
