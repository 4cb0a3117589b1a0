"""The language of commands and flows: asked for, by a variable, by the locale; programs read English in any case."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from probe.language import recall, said, speaking
from probe.report import last_line
from probe.store.writer import DumpWriter
from tests.probe.language.leftovers import english_in, visible

CHECK = "determinism-check/determinism-check"
NAMES = ("rewards", "loss", "prompts", "weights", "data", "mine", "nightly", "demo")
TRAIN = """
import os, torch
from probe import Probe
torch.manual_seed(1)
probe = Probe.from_env()
for step in range(2):
    probe.save({"rewards": torch.tensor(list(os.urandom(4)))})
    probe.step()
probe.close()
"""


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[Path, Path]:
    """Two dump folders that differ."""
    for name in "ab":
        (tmp_path / name).mkdir()
        writer = DumpWriter(tmp_path / name, name, keep_values=False)
        writer.add("rewards", 0, 0, 0, "", None, None, "float32", (1,), name * 32)
        writer.finish_step(0)
        writer.close(complete=True)
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A profile whose two runs never agree."""
    (tmp_path / "train.py").write_text(TRAIN, encoding="utf-8")
    profile = tmp_path / "mine.yaml"
    profile.write_text("trainer:\n  kind: command\n  command: [python, train.py]\n", encoding="utf-8")
    return profile


def test_the_locale_is_the_default_and_what_is_asked_for_counts_first(
    firstdiff: Callable[..., Any], dumps: tuple[Path, Path]
) -> None:
    chinese = firstdiff("compare", *dumps, "--json", FIRSTDIFF_LANG="", LC_ALL="zh_CN.UTF-8", PYTHONUTF8="1")
    assert chinese.last_line == "有差异（divergent）；第 0 步，无阶段，rewards（rewards）"
    assert "不涉及模型：为 responses 评分的 Host 侧代码" not in chinese.stdout
    lines = chinese.stderr.splitlines()
    assert lines and {line: words for line in lines if (words := english_in(line, NAMES))} == {}
    english = firstdiff("compare", *dumps, "--json", "--lang", "en", FIRSTDIFF_LANG="zh", LC_ALL="zh_CN.UTF-8")
    assert english.last_line == "divergent; step 0, no stage, rewards (rewards)"
    one, two = chinese.document, english.document
    one["cost"] = two["cost"] = None
    assert one == two


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (("--lang", "xx"), {}, ["--lang", "'xx'", "'en'", "'zh'"]),
        ((), {"FIRSTDIFF_LANG": "zh_CN"}, ["FIRSTDIFF_LANG: must be en or zh, not 'zh_CN'"]),
    ],
    ids=["option", "variable"],
)
def test_another_language_exits_64_with_one_sentence(
    firstdiff: Callable[..., Any],
    tmp_path: Path,
    arguments: tuple[str, ...],
    variables: dict[str, str],
    words: list[str],
) -> None:
    done = firstdiff("compare", tmp_path, tmp_path, *arguments, **variables)
    assert (done.status, done.stdout, len(done.stderr.strip().splitlines())) == (64, "", 1)
    assert all(word in done.stderr for word in words), done.stderr


def artifacts(api: str, **filters: Any) -> dict[str, Any]:
    """What the page shows, by key; of several with one key, as other tests on the same server leave, the newest."""
    found = httpx.post(f"{api}/artifacts/latest/filter", json={"limit": 200, **filters}, timeout=30).json()
    return {artifact["key"]: artifact for artifact in found if artifact["key"]}


def require_chinese(*texts: str) -> None:
    left = {text: words for text in texts if (words := english_in(text, NAMES))}
    assert left == {} and all(any("\u4e00" <= c <= "\u9fff" for c in text) for text in texts), left


@pytest.mark.slow
def test_a_whole_check_and_its_history(
    firstdiff: Callable[..., Any], prefect_api: str, mine: Path, tmp_path: Path
) -> None:
    out = tmp_path / "checks/one"
    done = firstdiff("check", mine, "--out", out, "--lang", "zh", "--json", PREFECT_API_URL=prefect_api)
    assert done.status == 1
    assert done.last_line == "有差异（divergent）；第 0 步，无阶段，rewards（rewards）；报告 checks/one/report.html"
    require_chinese(*done.stderr.splitlines())
    assert (out / "verdict.json").read_text(encoding="utf-8").isascii()
    page = visible((out / "report.html").read_text(encoding="utf-8"))
    assert page.language == "zh-CN"
    assert [text for text in page.texts if english_in(text, (*NAMES, "one"))] == []
    found = artifacts(prefect_api)
    require_chinese(found["mine"]["data"].replace(str(out), "").replace(os.uname().nodename, ""))
    require_chinese(
        found["mine-differences"]["description"], " ".join(json.loads(found["mine-differences"]["data"])[0])
    )
    runs = httpx.post(
        f"{prefect_api}/flow_runs/filter", json={"sort": "START_TIME_DESC", "limit": 1}, timeout=30
    ).json()
    assert runs[0]["state"]["name"] == "Divergent", "automations know it by this name"
    require_chinese(runs[0]["state"]["message"])
    with speaking("zh"):
        assert last_line(json.loads((out / "verdict.json").read_text()), None) == runs[0]["state"]["message"]
    told = firstdiff("history", "--lang", "zh", "--checks", tmp_path / "checks")
    assert told.status == 0 and told.last_line == "1 个历史：1 个有差异（divergent）"
    require_chinese(*(line.replace("mine", "") for line in told.stderr.splitlines()))


@pytest.mark.slow
def test_a_night_by_a_workers_variable(prefect_api: str, mine: Path, tmp_path: Path) -> None:
    code = f"from flows.nightly import nightly; nightly(profiles=[{str(mine)!r}], return_state=True)"
    env = {**os.environ, "PREFECT_API_URL": prefect_api, "FIRSTDIFF_LANG": "zh", "DO_NOT_TRACK": "1"}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True, capture_output=True)
    found = artifacts(prefect_api)
    require_chinese(found["nightly"]["data"].replace("mine", ""), found["nightly"]["description"])
    row = json.loads(found["nightly-checks"]["data"])[0]
    require_chinese(" ".join(row), row["结论"], row["结果"])
    assert found["nightly-checks"]["description"].endswith("的检查")


@pytest.mark.slow
def test_an_error_is_said_too_and_stays_english_for_programs(
    firstdiff: Callable[..., Any], prefect_api: str, mine: Path, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    out = tmp_path / "failed"
    done = firstdiff("check", mine, "--out", out, "--lang", "zh", "--json", PREFECT_API_URL=prefect_api)
    assert done.status == 2
    assert (
        done.last_line
        == "无法判定（inconclusive）；运行 a：训练程序以退出码 3 失败：没有任何输出；报告 failed/report.html"
    )
    assert done.document["error"] == "run a: the trainer failed with exit status 3: it printed nothing"
    with speaking("zh"):
        assert said(recall(done.document["error"])) in done.last_line


@pytest.fixture
def chinese(station: Any) -> Iterator[Any]:
    """A profile of the station's project that a form can name."""
    (station.project / "train-zh.py").write_text(TRAIN, encoding="utf-8")
    (station.project / "zh.yaml").write_text(
        "trainer:\n  kind: command\n  command: [python, train-zh.py]\n", encoding="utf-8"
    )
    yield station


@pytest.mark.slow
def test_a_form_asks_for_a_language(chinese: Any) -> None:
    run = chinese.begin(CHECK, profile=str(chinese.project / "zh.yaml"), lang="zh")
    assert chinese.ended(run)["state"]["message"].startswith("有差异（divergent）；第 0 步")
    assert chinese.artifacts(run)["zh"]["data"].startswith("# 有差异（divergent）：zh")
    schema = chinese.deployment(CHECK)["parameter_openapi_schema"]["properties"]["lang"]
    assert (schema["enum"], schema["default"]) == (["as on the worker", "en", "zh"], "as on the worker")
