"""Which language: what is asked for, then FIRSTDIFF_LANG, then the locale."""

from __future__ import annotations

import pytest

from probe.errors import UsageError
from probe.language import chosen_language


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "ZH_CN.utf8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "en_US.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LC_ALL": "zh_CN.GB18030", "LANG": "C"}, "zh"),
        ({"LC_ALL": "", "LC_MESSAGES": "", "LANG": "zh_CN"}, "zh"),
        ({"LC_CTYPE": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "zh_CN", "FIRSTDIFF_LANG": "en"}, "en"),
        ({"LANG": "C", "FIRSTDIFF_LANG": "zh"}, "zh"),
        ({"LANG": "zh_CN", "FIRSTDIFF_LANG": ""}, "zh"),
    ],
)
def test_by_the_environment(environment: dict[str, str], expected: str) -> None:
    assert chosen_language(None, environment) == expected


def test_what_is_asked_for_counts_first() -> None:
    assert chosen_language("en", {"FIRSTDIFF_LANG": "zh", "LC_ALL": "zh_CN"}) == "en"
    assert chosen_language("zh", {}) == "zh"


@pytest.mark.parametrize("code", ["xx", "ZH", "zh_CN", [1], 3])
def test_another_is_refused_in_one_sentence(code: str) -> None:
    with pytest.raises(UsageError, match=r"^parameters: lang: must be en or zh, not "):
        chosen_language(code, {}, "parameters: lang")
    with pytest.raises(UsageError, match=r"^FIRSTDIFF_LANG: must be en or zh, not "):
        chosen_language(None, {"FIRSTDIFF_LANG": "fr"})
