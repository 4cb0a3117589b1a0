"""Every sentence for people that the source holds: what ``tell``, the report's template, its script and hints say."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import jinja2
from jinja2 import nodes

ROOT = Path(__file__).resolve().parents[3]
REPORT = ROOT / "probe/report"


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of ``tell`` in Python source, with its place."""
    for package in ("probe", "flows", "tasks"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Name)
                    and node.func.id in ("tell", "join")
                    and node.args
                ):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", node


def in_python() -> Iterator[tuple[str, str, set[str] | None]]:
    """Place, template, and the names of the values; None where they are handed on as a mapping."""
    for place, call in calls():
        first = call.args[0]
        if not isinstance(first, ast.Constant) or not isinstance(first.value, str):
            continue
        if isinstance(call.func, ast.Name) and call.func.id == "join":
            if any(c.isalpha() for c in first.value) or first.value in (", ", "; "):
                yield place, first.value, set()
            continue
        names = {keyword.arg for keyword in call.keywords}
        yield place, first.value, None if None in names else {name for name in names if name}


def in_template() -> Iterator[tuple[str, str, set[str]]]:
    """The same, of ``t`` in the report's template."""
    tree = jinja2.Environment().parse((REPORT / "report.html.j2").read_text(encoding="utf-8"))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "t":
            (first,) = call.args
            assert isinstance(first, nodes.Const), call.lineno
            yield f"report.html.j2:{call.lineno}", first.value, {keyword.key for keyword in call.kwargs}
    html = (REPORT / "html.py").read_text(encoding="utf-8")
    for template in re.findall(r'_told\("([^"]+)"', html):
        yield "html.py", template, set(re.findall(r"\{(\w+)", template))


def in_script() -> Iterator[tuple[str, str, set[str]]]:
    """The same, of ``say`` in the report's script."""
    script = (REPORT / "report.js").read_text(encoding="utf-8")
    for template, values in re.findall(r'\bsay\("([^"]+)", \{([^}]*)\}', script):
        yield "report.js", template, set(re.findall(r"(\w+):", values))


def hints() -> Iterator[tuple[str, str, set[str]]]:
    """The texts of the hints."""
    for hint in json.loads((REPORT / "hints.json").read_text(encoding="utf-8"))["hints"]:
        yield f"hints.json: {hint['id']}", hint["text"], set()


def everything() -> list[tuple[str, str, set[str] | None]]:
    """All of them."""
    return [*in_python(), *in_template(), *in_script(), *hints()]
