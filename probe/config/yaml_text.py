"""Setting keys in a YAML file of somebody else, and leaving every other byte of it as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from probe.errors import ConfigError


def with_values(source: str, text: str, values: Mapping[str, Any]) -> str:
    r"""The text with some keys set: comments, order and all other values stay, byte for byte.

    Where that cannot be (an alias, an empty section, a document of several), the whole is written anew from its values.

    Args:
        source: What the text is called in an error.
        text: YAML, a mapping at its top.
        values: By dotted key; plain values, or lists and mappings of them.

    Raises:
        ConfigError: It is no YAML mapping.

    Example:
        >>> with_values("x.yaml", "rl_config:\n  gamma: 1.0  # as it was\n", {"rl_config.guarantee_order": True})
        'rl_config:\n  guarantee_order: true\n  gamma: 1.0  # as it was\n'
    """
    wanted = _loaded(source, text)
    for key, value in values.items():
        _put(wanted, key.split("."), value)
    changed = text
    try:
        for key, value in values.items():
            changed = _with_value(changed, key.split("."), value)
        if yaml.safe_load(changed) == wanted:
            return changed
    except (yaml.YAMLError, ValueError):
        pass  # what was put in does not fit there
    return str(yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True))


def _loaded(source: str, text: str) -> dict[str, Any]:
    try:
        found = _unshared(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(source, "", f"not valid YAML ({' '.join(str(error).split())[:200]})") from error
    if not isinstance(found, dict | None):
        raise ConfigError(source, "", f"must be a mapping of sections, not {type(found).__name__}")
    return found or {}


def _unshared(value: Any) -> Any:
    """The same values, of which an alias has its own."""
    if isinstance(value, dict):
        return {key: _unshared(child) for key, child in value.items()}
    return [_unshared(child) for child in value] if isinstance(value, list) else value


def _put(mapping: dict[str, Any], parts: list[str], value: Any) -> None:
    *sections, last = parts
    for section in sections:
        if not isinstance(mapping.get(section), dict):
            mapping[section] = {}
        mapping = mapping[section]
    mapping[last] = value


def _with_value(text: str, parts: list[str], value: Any) -> str:
    """The text with one key set; it may not mean what it should, which the caller looks at."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, part in enumerate(parts):
        if not isinstance(node, yaml.MappingNode):
            break
        found = next((child for key, child in node.value if key.value == part), None)
        if found is None:
            return _inserted(text, node, parts[depth:], value, depth)
        node = found
    if node is None:
        return f"{text}{_block(parts, value, '')}\n"
    start, end = node.start_mark.index, node.end_mark.index
    end = start + len(text[start:end].rstrip())
    space = " " if start == end else ""
    return f"{text[:start]}{space}{_flow(value)}{text[end:]}"


def _inserted(text: str, node: yaml.MappingNode, parts: list[str], value: Any, depth: int) -> str:
    """The text with a key that a mapping lacks: at its beginning, or as the last section of the file."""
    if node.flow_style:
        start = node.start_mark.index + 1
        nested: Any = value
        for part in reversed(parts[1:]):
            nested = {part: nested}
        return f"{text[:start]}{parts[0]}: {_flow(nested)}{', ' if node.value else ''}{text[start:]}"
    if depth == 0:
        gap = "" if text.endswith("\n") else "\n"
        return f"{text}{gap}{_block(parts, value, '')}\n"
    first = node.value[0][0].start_mark
    indent = " " * first.column
    return f"{text[: first.index]}{_block(parts, value, indent)}\n{indent}{text[first.index :]}"


def _block(parts: list[str], value: Any, indent: str) -> str:
    """Lines of a nested key; the first is not indented, as it stands where a key begins."""
    lines = [f"{indent}{'  ' * depth}{part}:" for depth, part in enumerate(parts)]
    return "\n".join(lines).removeprefix(indent) + f" {_flow(value)}"


def _flow(value: Any) -> str:
    """A value on one line: JSON is YAML."""
    return json.dumps(value, ensure_ascii=False)
