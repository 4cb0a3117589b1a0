"""One catalogue: every sentence of the source is in it, and nothing else; both languages have the same values."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

import pytest

from probe.language import CATALOGUE, Text, catalogue, recall, say, tell
from probe.language.catalogue import fields_of
from tests.probe.language.leftovers import english_in
from tests.probe.language.sources import ROOT, calls, everything, hints

FILE = ROOT / "probe/language" / CATALOGUE
HINTS = {text for _, text, _ in hints()}
SAME = {"Profile", "Checkpoints, {order}", "{folder}: rank {ranks}: {why}",
        "Traces", "rank {rank}", "rank {ranks}", "ranks {ranks}", "ranks", "rank", "layers: {why}",
        "{name} · rank {rank}", "profile", "keydata/{table}: {why}", "rank {ranks}: ", "ranks {ranks}: "}  # fmt: skip
"""What is a term in Chinese, too."""
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
FROM_ELSEWHERE = {
    "probe/language/catalogue.py": "what recall found in the catalogue",
    "probe/report/hints.py": "a hint's text, from hints.json",
    "probe/report/html.py": "what the report's template and script say",
}
"""Files that make sentences of templates that are no literals there."""


def test_every_sentence_has_its_chinese() -> None:
    missing = {template: place for place, template, _ in everything() if template not in catalogue()}
    assert missing == {}


def test_nothing_else_is_in_it() -> None:
    used = {template for _, template, _ in everything()}
    assert [template for template in catalogue() if template not in used] == []


def test_every_sentence_is_given_the_values_that_it_names() -> None:
    wrong = []
    for place, template, given in everything():
        if (
            given is not None
            and template not in HINTS
            and (given or "{" in template)
            and set(fields_of(template)) != given
        ):
            wrong.append((place, template, given))
    assert wrong == []


def test_both_languages_have_the_same_values() -> None:
    known = {english: chinese for english, chinese in catalogue().items() if english not in HINTS}
    assert {english: chinese for english, chinese in known.items() if fields_of(english) != fields_of(chinese)} == {}


def test_templates_are_literals() -> None:
    others = {
        place.partition(":")[0]
        for place, call in calls()
        if not (isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str))
    }
    assert others == FROM_ELSEWHERE.keys()


def test_the_file_is_sorted_and_has_nothing_twice() -> None:
    pairs: list[tuple[str, Any]] = []
    json.loads(FILE.read_text(encoding="utf-8"), object_pairs_hook=lambda found: pairs.extend(found))
    keys = [key for key, _ in pairs]
    assert keys == sorted(set(keys))


def test_the_chinese_is_chinese() -> None:
    left = {}
    for english, chinese in catalogue().items():
        words = re.sub(r"\{[^}]*\}|</?code>", " ", chinese)
        untranslated = re.search("[a-zA-Z]{4,}", re.sub(r"\{[^}]*\}", "", english)) and not _CHINESE.search(words)
        if (english_in(words) or untranslated) and english not in SAME:
            left[english] = chinese
    assert left == {}


def test_a_sentence_of_values_alone_is_made_of_them() -> None:
    sentence = tell("{name} was called", name="actor.head")
    assert (str(sentence), say(sentence, "en"), say(sentence, "zh")) == (
        "actor.head was called", "actor.head was called", "actor.head 被调用",
    )  # fmt: skip


def test_english_of_a_file_is_found_again() -> None:
    why = tell("the trainer failed with exit status {status}: {last}", status=3, last="ValueError: no; really")
    known = tell("run {run}: {why}", run="a", why=why)
    found = recall(json.loads(json.dumps(known)))
    assert isinstance(found, Text) and str.__str__(found) == known
    assert say(found, "zh") == "运行 a：训练程序以退出码 3 失败：ValueError: no; really"


@pytest.mark.parametrize(
    "text", ["", "actor.layers.0", "/tmp/a/dump", "ValueError: no such thing", "a {b} c", "{", "1.5"]
)
def test_what_is_none_of_ours_stays_as_it_is(text: str) -> None:
    assert recall(text) == text
    assert say(recall(text), "zh") == text


def test_a_value_that_was_formatted_is_not_formatted_again() -> None:
    made = tell("{count} of {size} elements differ, by {largest:.3g} at most", count=3, size=8, largest=1e-7)
    assert say(recall(json.loads(json.dumps(made))), "zh") == say(made, "zh")
