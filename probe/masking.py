"""Values that nobody may read in what a check leaves: variables of the trainer whose names look secret.

In files a value is replaced by ``***``, the beginning of a keyed digest, and which key that was. Two runs with another
value are told apart by it, and nobody who reads the file can try out values, since the key never leaves the machine: it
is made once, in a file that only its owner can read. Digests of two keys say nothing about each other. Where no key can
be kept there is no digest. In what a trainer prints, the values themselves are replaced, wherever they stand.

Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

MASK = "***"
KEY_FILE = "FIRSTDIFF_MASK_KEY"
"""Variable that names the file of the key; without it, it lies in the user's folder of state."""
SECRET_NAME = re.compile(r"TOKEN(?!S|IZ)|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE", re.IGNORECASE)
SHORTEST = 4
"""Characters of the shortest value that is looked for in a trainer's output."""
_MASKED = re.compile(r"\*\*\*( [0-9a-f]{16} by key [0-9a-f]{8})?")
_ADDRESS = re.compile(r"://[^\s/@:?#'\"]{0,200}:(?P<password>[^\s/@'\"]{1,500})@")
_NO_SECRETS = ("true", "false", "none", "null")


def is_secret(name: str, more: Iterable[str] = ()) -> bool:
    """Whether a variable's value is not written down.

    Args:
        name: Its name.
        more: Further names that are secret.

    Example:
        >>> is_secret("HF_TOKEN"), is_secret("TOKENIZERS_PARALLELISM"), is_secret("LICENCE", ["LICENCE"])
        (True, False, True)
    """
    return SECRET_NAME.search(name) is not None or name in more


def holds_password(value: object) -> bool:
    """Whether a value is, or holds, an address such as ``https://user:password@host``."""
    return isinstance(value, str) and _ADDRESS.search(value) is not None


def is_masked(value: object) -> bool:
    """Whether a value stands for one that is not written down."""
    return isinstance(value, str) and _MASKED.fullmatch(value) is not None


def tell_nothing(one: object, two: object) -> bool:
    """Whether two masked values do not show if what they stand for is the same: no digests, or those of two keys."""
    if not (is_masked(one) and is_masked(two)):
        return False
    keys = {str(value).partition(" by key ")[2] for value in (one, two)}
    return len(keys) > 1 or keys == {""}


def masked_profile(profile: dict[str, Any], with_digests: bool = True) -> dict[str, Any]:
    """A profile as a mapping, without the values of variables that are secret.

    Args:
        profile: The mapping; it stays as it is.
        with_digests: Whether a masked value shows if two runs had the same.
    """
    trainer, check = profile.get("trainer"), profile.get("check")
    if not isinstance(trainer, dict):
        return profile
    key = _key() if with_digests else None
    more = [str(name) for name in trainer.get("secrets") or ()]

    def variables(found: Any) -> Any:
        if not isinstance(found, dict):
            return found
        return {name: variable(str(name), value) for name, value in found.items()}

    def variable(name: str, value: Any) -> Any:
        if isinstance(value, dict):  # it only says where the value comes from
            return {place: each for place, each in value.items() if each is not None}
        return _mask(value, key) if is_secret(name, more) or holds_password(value) else value

    result = {**profile, "trainer": {**trainer, "env": variables(trainer["env"])} if "env" in trainer else trainer}
    if isinstance(check, dict) and isinstance(check.get("b"), dict):
        changes = {}
        for name, value in check["b"].items():
            head, _, named = str(name).partition("trainer.env.")
            if name == "trainer":
                value = masked_profile({"trainer": {"secrets": more, **value}})["trainer"] if value else value
            if name == "trainer.env":
                value = variables(value)
            changes[name] = variable(named, value) if head == "" and named else value
        result["check"] = {**check, "b": changes}
    return result


def secret_values(variables: Mapping[str, str], more: Iterable[str] = ()) -> list[str]:
    """Values that may not stand in a trainer's output, of some variables.

    Args:
        variables: The trainer's environment.
        more: Further names that are secret.
    """
    named = list(more)
    found: dict[str, None] = {}
    for name, value in variables.items():
        found.update(dict.fromkeys(match["password"] for match in _ADDRESS.finditer(value)))
        if is_secret(name, named) and not is_masked(value):
            found.update(dict.fromkeys([value, *value.splitlines()]))  # a key of several lines may be printed apart
    return [value for value in found if len(value.strip()) >= SHORTEST and value.lower() not in _NO_SECRETS]


class Masker:
    """Replaces values in a stream, also where one comes in several parts.

    Args:
        values: What to replace.

    Example:
        >>> masker = Masker(["hunter2"])
        >>> masker.feed(b"it is hunt") + masker.feed(b"er2.") + masker.rest()
        b'it is ***.'
    """

    def __init__(self, values: Iterable[str]) -> None:
        encoded = {value.encode(errors="surrogateescape") for value in values} - {b""}
        self._values = sorted(encoded, key=len, reverse=True)
        self._pattern = re.compile(b"|".join(map(re.escape, self._values))) if encoded else None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Takes the next part of the stream; returns what is known to hold no value."""
        if self._pattern is None:
            return chunk
        buffer, self._held = self._held + chunk, b""
        done: list[bytes] = []
        start, held = 0, self._beginning(buffer, 0)
        for match in self._pattern.finditer(buffer):
            if match.start() >= held:
                break  # it may be the beginning of a longer one
            done += [buffer[start : match.start()], MASK.encode()]
            start = match.end()
            if start > held:
                held = self._beginning(buffer, start)
        self._held = buffer[held:]
        return b"".join([*done, buffer[start:held]])

    def rest(self) -> bytes:
        """What was held back, since it looked like the beginning of a value; the stream has ended."""
        rest, self._held = self._held, b""
        return rest if self._pattern is None else self._pattern.sub(MASK.encode(), rest)

    def text(self, text: str) -> str:
        """A whole text without the values."""
        if self._pattern is None:
            return text
        return self._pattern.sub(MASK.encode(), text.encode(errors="surrogateescape")).decode(errors="surrogateescape")

    def _beginning(self, buffer: bytes, start: int) -> int:
        """Where the first possible beginning of a value that may go on stands; the end where there is none."""
        longest = len(self._values[0]) - 1
        for place in range(max(start, len(buffer) - longest), len(buffer)):
            tail = buffer[place:]
            if any(len(tail) < len(value) and value.startswith(tail) for value in self._values):
                return place
        return len(buffer)


def _mask(value: Any, key: bytes | None) -> str:
    if is_masked(value):
        return str(value)
    if key is None:
        return MASK
    digest = hmac.new(key, str(value).encode(errors="surrogateescape"), hashlib.sha256).hexdigest()
    return f"{MASK} {digest[:16]} by key {hashlib.sha256(key).hexdigest()[:8]}"


def _key() -> bytes | None:
    """This user's key, made where there is none yet; None where it cannot be kept."""
    named = os.environ.get(KEY_FILE)
    state = os.environ.get("XDG_STATE_HOME")
    try:
        path = Path(named) if named else (Path(state) if state else Path.home() / ".local/state") / "firstdiff/mask.key"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent) as file:  # only its owner can read it
                file.write(secrets.token_bytes(32))
                file.flush()
                with contextlib.suppress(FileExistsError):  # another check was first
                    os.link(file.name, path)
        key = path.read_bytes()
    except (OSError, RuntimeError):
        return None
    return key if len(key) >= 16 else None
