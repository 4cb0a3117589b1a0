"""Sentences: English wherever text is wanted, and what they were made of wherever they go."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict
from pathlib import Path

import pytest

from probe.errors import DumpError
from probe.language import Text, join, language, said, say, speaking, tell
from probe.locate import Cause
from probe.report.names import DumpNames

WHY = tell("run {run}: {why}", run="a", why=tell("it had finished no step"))


@pytest.mark.parametrize(
    "again",
    [
        lambda text: pickle.loads(pickle.dumps(text)),
        copy.deepcopy,
        copy.copy,
        lambda text: str(DumpError(text)),
        lambda text: asdict(Cause("none", None, text))["explanation"],
    ],
)
def test_it_stays_one_wherever_it_goes(again: object) -> None:
    for text in (WHY, WHY + "!", "! " + WHY, join(", ", (WHY, "b"))):
        found = again(text)  # type: ignore[operator]
        assert isinstance(found, Text)
        assert str.__str__(found) == str.__str__(text)
        assert say(found, "zh") == say(text, "zh") != str(text)


def test_programs_read_english_whatever_people_read() -> None:
    with speaking("zh"):
        assert json.dumps({"error": WHY}) == '{"error": "run a: it had finished no step"}'
        assert f"{WHY}" == "%s" % WHY == "run a: it had finished no step"  # noqa: UP031
        assert said(WHY) == "运行 a：它没有完成任何一步"
        assert said("run a: it had finished no step") == "run a: it had finished no step", "text is a name or a value"
    assert type(said(WHY)) is str


def test_what_stands_between_is_said_too() -> None:
    assert say(join(", ", ["a", "b"]), "zh") == "a、b"
    assert say(tell("the parameter") + tell(", or a hook"), "zh") == "该参数，或钩子"


def test_braces_of_a_name_are_no_places() -> None:
    assert tell("rank {rank}", rank="{x}") == "rank {x}"
    assert say(tell("{name} was called", name="{name} {0} {"), "zh") == "{name} {0} { 被调用"
    assert tell("{") == "{"


def test_the_language_ends_with_its_block() -> None:
    assert language() == "en"
    with speaking("zh"), pytest.raises(ValueError, match="x"), speaking("en"):
        raise ValueError("x")
    assert language() == "en"


def test_a_dump_is_named_as_people_know_it() -> None:
    names = DumpNames({Path("/tmp/x/dump"): Path("a/dump")})
    text = names.text(tell("{path}: holds no tensors", path=Path("/tmp/x/dump/w")))
    assert (str(text), say(text, "zh")) == ("a/dump/w: holds no tensors", "a/dump/w：没有任何张量")
    with pytest.raises(DumpError) as raised, names.in_errors():
        raise DumpError(tell("{path}: holds no tensors", path="/tmp/x/dump"))
    assert say(str(raised.value), "zh") == "a/dump：没有任何张量"
