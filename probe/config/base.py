"""The base of every configuration model: strict types, unknown keys refused, docstrings as descriptions."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from probe.errors import ConfigError
from probe.masking import is_secret

_KINDS = (["integrated"], ["command"], ["script"], ["mindspeed_rl"])
"""Kinds of trainers, as they stand in a place that pydantic gives."""


class StrictModel(BaseModel):
    """A configuration section: no unknown keys, no silent conversions, a docstring under each field."""

    model_config = ConfigDict(
        extra="forbid", strict=True, use_attribute_docstrings=True, frozen=True, allow_inf_nan=False
    )


def first_problem(error: ValidationError, source: str, root: type[BaseModel], prefix: str = "") -> ConfigError:
    """The first finding of a validation as one sentence with its dotted key.

    Args:
        error: What pydantic raised.
        source: The file that was read.
        root: The model that was validated; its fields serve to suggest the key that was meant.
        prefix: Dotted path of ``root`` inside the file.
    """
    finding = error.errors()[0]
    location = list(finding["loc"])
    if location[:1] == ["trainer"] and location[1:2] in _KINDS:
        del location[1]  # it only says which kind of trainer was tried
    if location[:2] == ["trainer", "env"]:
        del location[3:4]  # it only says whether text or a source was given
    key = ".".join([prefix] * bool(prefix) + [str(part) for part in location])
    match finding["type"]:
        case "extra_forbidden":
            problem = "unknown key" + _suggestion(root, location)
        case "missing":
            problem = "this key is required"
        case "value_error":
            problem = str(finding["ctx"]["error"]) if "ctx" in finding else finding["msg"]
        case "union_tag_invalid" | "union_tag_not_found":
            key = f"{key}.kind" if key else "kind"
            problem = f"must be one of {finding['ctx'].get('expected_tags', 'the known kinds')}"
        case _:
            message = finding["msg"][0].lower() + finding["msg"][1:]
            secret = location[:2] == ["trainer", "env"] or any(is_secret(str(part)) for part in location)
            problem = message if secret else f"{message}, not {_short(finding['input'])}"
    return ConfigError(source, key, problem)


def problem_of_text(text: str) -> str:
    r"""Why the operating system takes a text neither as an argument nor as a path; empty where it does.

    Example:
        >>> problem_of_text("train.py"), problem_of_text("a\0b")
        ('', 'holds a NUL character')
    """
    if "\0" in text:
        return "holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half a character (a lone surrogate)"
    return ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _suggestion(root: type[BaseModel], location: list[Any]) -> str:
    """Names the keys that exist beside an unknown one, the closest first."""
    siblings = _fields_at(root, [str(part) for part in location[:-1]])
    close = difflib.get_close_matches(str(location[-1]), siblings, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known keys here: {', '.join(siblings)}" if siblings else ""


def _fields_at(model: type[BaseModel], path: list[str]) -> list[str]:
    """The keys at a dotted path below a model: found by walking its schema, so that unions are followed too."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})
    nodes = [schema]
    for part in path:
        nodes = [child for node in _expand(nodes, definitions) for child in _children(node, part)]
    names: dict[str, None] = {}
    for node in _expand(nodes, definitions):
        names.update(dict.fromkeys(node.get("properties", {})))
    return list(names)


def _expand(nodes: list[dict[str, Any]], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    queue = list(nodes)
    while queue:
        node = queue.pop()
        if "$ref" in node:
            queue.append(definitions[node["$ref"].rsplit("/", 1)[1]])
        for union in ("anyOf", "oneOf", "allOf"):
            queue.extend(node.get(union, ()))
        found.append(node)
    return found


def _children(node: dict[str, Any], part: str) -> list[dict[str, Any]]:
    if part.isdigit() and "items" in node:
        return [node["items"]]
    child = node.get("properties", {}).get(part)
    return [child] if child else []
