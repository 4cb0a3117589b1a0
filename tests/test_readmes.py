"""README.md and README.zh-CN.md say the same: what can be compared without knowing either language is compared here.

Section by section: the kinds of blocks in their order, code blocks byte for byte, tables with the code in each cell,
code in the text, links, emphasised words (they are those that the program prints) and numbers. Each message names the
section in both files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(slots=True)
class Section:
    file: str
    heading: str  # its text, without the marks before it
    level: int
    line: int
    blocks: list[str] = field(default_factory=list)
    code_blocks: list[tuple[str, str]] = field(default_factory=list)  # language, content
    tables: list[list[list[str]]] = field(default_factory=list)  # per cell its code, sorted
    code: set[str] = field(default_factory=set)
    emphasised: set[str] = field(default_factory=set)
    numbers: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    images: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.file}:{self.line} “{'#' * self.level} {self.heading}”"


def add_inline(section: Section, token: Token) -> list[str]:
    """Adds what a text holds to its section, and returns the code in it."""
    code: list[str] = []
    emphasis: list[str] | None = None
    for part in token.children or []:
        if part.type == "code_inline":
            code.append(part.content)
        elif part.type == "text":
            section.numbers |= set(NUMBER.findall(part.content))
            if emphasis is not None:
                emphasis.append(part.content)
        elif part.type in ("em_open", "strong_open"):
            emphasis = []
        elif part.type in ("em_close", "strong_close"):
            section.emphasised.add("".join(emphasis or []))
            emphasis = None
        elif part.type == "link_open":
            section.links.append(unquote(str(part.attrs["href"])))
        elif part.type == "image":
            section.images.append(unquote(str(part.attrs["src"])))
    section.code |= set(code)
    return code


def sections(file: str, text: str) -> list[Section]:
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    found: list[Section] = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type == "inline" and before is not None and before.type == "heading_open":
            found.append(Section(file, token.content, int(before.tag[1:]), before.map[0] + 1 if before.map else 0))
        if not found:
            assert token.type == "heading_open", f"{file} does not begin with a heading"
            continue
        section = found[-1]
        if token.type == "fence":
            section.code_blocks.append((token.info, token.content))
        elif token.type == "table_open":
            section.tables.append([])
        elif token.type == "tr_open":
            section.tables[-1].append([])
        elif token.type == "inline":
            code = add_inline(section, token)
            if before is not None and before.type in ("th_open", "td_open"):
                section.tables[-1][-1].append(" ".join(sorted(code)))
        if token.type in ("paragraph_open", "fence", "code_block", "table_open", "list_item_open", "blockquote_open"):
            section.blocks.append(token.type.removesuffix("_open"))
    return found


def anchors(of: list[Section]) -> list[str]:
    """The anchors that GitHub gives to headings: no punctuation, hyphens for spaces, a number where one comes again."""
    seen: Counter[str] = Counter()
    found = []
    for section in of:
        text = re.sub(r"[`*]|\[([^]]*)]\([^)]*\)", r"\1", section.heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        found.append(f"{anchor}-{seen[anchor]}" if seen[anchor] else anchor)
        seen[anchor] += 1
    return found


def unresolved(of: list[Section], root: Path) -> Iterator[str]:
    known = anchors(of)
    for section in of:
        for link in [*section.links, *section.images]:
            if link.startswith("#") and link[1:] not in known:
                yield f"{section}: no heading has the anchor {link}"
            elif not link.startswith(("#", "https://")) and not (root / link).is_file():
                yield f"{section}: there is no file {link}"


def targets(section: Section, known: list[str]) -> list[str]:
    """Where its links lead, as it reads in either language: a heading is its place among the headings."""
    links = [link for link in section.links if link not in (ENGLISH, CHINESE)]
    places = {f"#{anchor}": f"heading {number}" for number, anchor in enumerate(known)}
    return sorted(places.get(link, link) for link in links) + section.images


def without_counterpart(some: list[Section], others: list[Section]) -> Iterator[str]:
    """Sections that resemble none of the other file: the likely ones where headings differ in number."""

    def looks(section: Section) -> tuple[Any, ...]:
        return section.level, section.blocks, section.code_blocks, section.code

    there = [looks(section) for section in others]
    for section in some:
        if looks(section) not in there:
            yield f"{section}: no section of {others[0].file} is like it"


def only(what: str, first: Section, second: Section, ours: Iterable[str], theirs: Iterable[str]) -> Iterator[str]:
    """What one of two sections has more of, as sentences."""
    have, want = Counter(ours), Counter(theirs)
    for section, other, more in ((first, second, have - want), (second, first, want - have)):
        if more:
            yield f"{section}: {what} that {other} lacks: {', '.join(sorted(more))}"


def tables_differ(first: Section, second: Section) -> Iterator[str]:
    if len(first.tables) != len(second.tables):
        yield f"{first}: {len(first.tables)} tables, {second}: {len(second.tables)}"
        return
    for number, (ours, theirs) in enumerate(zip(first.tables, second.tables, strict=True), start=1):
        if len(ours) != len(theirs):
            yield f"{first}, table {number}: {len(ours)} rows, {second}: {len(theirs)}"
            yield from only("rows with the code", first, second, map(" | ".join, ours), map(" | ".join, theirs))
            continue
        for row, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            if mine != other:
                yield f"{first}, table {number}, row {row}: the code in its cells is {mine}, in {second} it is {other}"


def section_differs(first: Section, second: Section) -> Iterator[str]:
    if first.level != second.level:
        yield f"{first}: another level than {second}"
    if first.blocks != second.blocks:
        yield f"{first}: its blocks are {first.blocks}, those of {second} {second.blocks}"
    if len(first.code_blocks) != len(second.code_blocks):
        yield f"{first}: {len(first.code_blocks)} code blocks, {second}: {len(second.code_blocks)}"
    for ours, theirs in zip(first.code_blocks, second.code_blocks, strict=False):
        if ours != theirs:
            lines = [f"```{language}\n{content}".splitlines() for language, content in (ours, theirs)]
            more = list(only("lines of a code block", first, second, *lines))
            yield from more or [f"{first}: the lines of a code block stand in another order than in {second}"]
    yield from tables_differ(first, second)
    yield from only("code in the text", first, second, first.code, second.code)
    yield from only("emphasised words", first, second, first.emphasised, second.emphasised)
    missing = first.numbers - second.numbers  # Chinese may write in digits what English writes in words
    if missing:
        yield f"{first}: numbers that {second} lacks: {', '.join(sorted(missing))}"


def differences(english: list[Section], chinese: list[Section]) -> list[str]:
    if len(english) != len(chinese):
        counts = f"{ENGLISH} has {len(english)} headings, {CHINESE} {len(chinese)}"
        return [counts, *without_counterpart(english, chinese), *without_counterpart(chinese, english)]
    found = []
    known = anchors(english), anchors(chinese)
    for first, second in zip(english, chinese, strict=True):
        found += section_differs(first, second)
        found += only("links", first, second, targets(first, known[0]), targets(second, known[1]))
    return found


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    root = Path(__file__).parents[1]
    return {file: (root / file).read_text(encoding="utf-8") for file in (ENGLISH, CHINESE)}


@pytest.fixture(scope="module")
def parsed(texts: dict[str, str]) -> dict[str, list[Section]]:
    return {file: sections(file, text) for file, text in texts.items()}


def test_both_readmes_say_the_same(parsed: dict[str, list[Section]]) -> None:
    found = differences(parsed[ENGLISH], parsed[CHINESE])
    assert not found, "edit the other README, too:\n" + "\n".join(found)


@pytest.mark.parametrize("file", [ENGLISH, CHINESE])
def test_links_within_a_readme_resolve(parsed: dict[str, list[Section]], file: str) -> None:
    found = list(unresolved(parsed[file], Path(__file__).parents[1]))
    assert not found, "\n".join(found)


def test_each_readme_names_the_other_at_its_top(parsed: dict[str, list[Section]]) -> None:
    for file, other in ((ENGLISH, CHINESE), (CHINESE, ENGLISH)):
        assert [section.heading for section in parsed[file] if other in section.links][:1] == ["Firstdiff"], file


def test_a_link_without_its_heading_or_file_is_found() -> None:
    heading = "# 标题：一（a b）\n\n"
    text = f"{heading}[here](#标题一a-b) [no](#标题一) [gone](gone.md)\n\n{heading}[again](#标题一a-b-1)\n"
    found = list(unresolved(sections("x.md", text), Path(__file__).parent))
    assert len(found) == 2
    assert "x.md:1 “# 标题：一（a b）”: no heading has the anchor #标题一" in found[0]
    assert "gone.md" in found[1]


def after(pattern: str, added: str) -> Callable[[str], str]:
    """An edit that adds lines after the first line that matches."""
    return lambda text: re.sub(f"({pattern})", lambda match: f"{match[1]}\n{added}", text, count=1, flags=re.MULTILINE)


EDITS = {
    "a section": (after("^```$", "\n## More\n\n`more`"), r"no section of .* is like it"),
    "a heading's level": (lambda text: "#" + text, "another level"),
    "a command": (after("^```sh$", "firstdiff more"), "lines of a code block .*: firstdiff more"),
    "the order of commands": (lambda text: re.sub("(```sh\n)(.*\n)(.*\n)", r"\1\3\2", text), "another order"),
    "a row": (after(r"^\| --- \|.*$", "| `more` | |"), r"rows with the code .*: more \|"),
    "an option in a cell": (lambda text: re.sub(r"^\| `", "| `--more` `", text, flags=re.M), "the code in its cells"),
    "a paragraph": (after(r"^!\[.*$", "\nWithout code."), "its blocks"),
    "an option in the text": (after(r"^!\[.*$", "`--more`"), "code in the text .*: --more"),
    "a picture": (after(r"^!\[.*$", "![](docs/more.png)"), "links .*: docs/more.png"),
    "a link": (after(r"^!\[.*$", "[more](https://example.org/more)"), "links .*: https://example.org/more"),
    "a printed word": (after(r"^!\[.*$", "*More*"), "emphasised words .*: More"),
}


@pytest.fixture(scope="module")
def excerpts(texts: dict[str, str], parsed: dict[str, list[Section]]) -> dict[str, str]:
    """One section of each README, the same: with commands, a table and a picture, and without links to others."""
    found = {}
    for file, text in texts.items():
        ends = [*(section.line for section in parsed[file][1:]), len(text.splitlines()) + 1]
        for section, end in zip(parsed[file], ends, strict=True):
            if section.tables and section.images and "sh" in dict(section.code_blocks) and not section.links:
                found[file] = "\n".join(text.splitlines()[section.line - 1 : end - 1])
    return found


@pytest.mark.parametrize("file", [ENGLISH, CHINESE])
@pytest.mark.parametrize("what", EDITS)
def test_what_one_readme_alone_gets_is_found(excerpts: dict[str, str], what: str, file: str) -> None:
    edit, expected = EDITS[what]
    edited = {**excerpts, file: edit(excerpts[file])}
    assert differences(*(sections(name, excerpts[name]) for name in edited)) == []
    found = "\n".join(differences(*(sections(name, edited[name]) for name in edited)))
    assert re.search(expected, found), found
    for name in edited:
        assert f"“{edited[name].splitlines()[0]}”" in found or what == "a section"


def test_a_number_that_the_translation_lacks_is_found() -> None:
    found = differences(sections(ENGLISH, "# One\n\n1.4 times"), sections(CHINESE, "# 一\n\n1.5 倍"))
    assert found == ["README.md:1 “# One”: numbers that README.zh-CN.md:1 “# 一” lacks: 1.4"]
