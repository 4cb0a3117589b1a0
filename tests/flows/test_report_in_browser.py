"""The report as a person sees it: in a real browser, without a network."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.store.digest import digest
from probe.store.numeric import Numbers
from probe.store.writer import DumpWriter
from tests.probe.traces import Recorder, item, write_traces

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


HOSTILE = "actor.<script>document.title='lost'</script>.\u202egnp.<!--\x00&amp;"


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Any]:
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        if os.environ.get("FIRSTDIFF_REQUIRE_BROWSER"):
            pytest.fail("chromium and chromedriver are needed here")
        pytest.skip("chromium and chromedriver are not installed")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(programs[0])
    for flag in (*FLAGS, f"--user-data-dir={tmp_path / 'browser'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(programs[1])))
    try:
        yield driver
    finally:
        driver.quit()


def _dump(folder: Path, bump: float) -> Path:
    folder.mkdir()
    writer = DumpWriter(folder, folder.name, keep_values=True)
    for step in range(3):
        values = np.arange(6, dtype=np.float32)
        values[4] += bump * (step == 1)
        writer.add(
            "loss", step, 0, 0, "", None, Numbers(values), "float32", (6,), digest("float32", (6,), values.tobytes())
        )
        writer.finish_step(step)
    writer.close(complete=True)
    return folder


def test_a_person_sees_verdict_map_and_first_difference(
    browser: Any, firstdiff: Callable[..., Any], tmp_path: Path
) -> None:
    a, b = _dump(tmp_path / "a", 0.0), _dump(tmp_path / "b", 0.5)
    done = firstdiff("compare", a, b, "--out", "found")
    assert done.status == 1

    browser.get((tmp_path / "found/report.html").as_uri())

    assert browser.title.startswith("divergent")
    assert browser.find_element("css selector", ".badge").text == "divergent"
    cells = [cell.get_attribute("class") for cell in browser.find_elements("css selector", ".map .cell")]
    assert cells == ["cell same", "cell different", "cell same"]
    row = browser.find_element("css selector", "table.list tr.first").text
    assert "loss" in row and "[4]" in row and "4.0" in row and "4.5" in row and "1 of 6" in row
    requests = browser.execute_script("return performance.getEntriesByType('resource').length")
    assert requests == 0, "the report loads nothing"
    width = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
    assert width <= 0, "nothing sticks out sideways"


def _trace(folder: Path, layers: int, differs: bool) -> Path:
    """One stage with six events for each layer, hostile names, and in one run another output of a module."""
    run = Recorder()
    run.enter("actor_update")
    run.state("actor", 0)
    for name in (HOSTILE, "__proto__"):
        run.of_module("forward_input", name, 0)
        run.of_module("forward_output", name, 0)
    run.forward("actor", 0, layers=layers)
    changed = next(
        e for e in run.events if (e["kind"], e["name"]) == ("forward_output", f"actor.layers.{layers - 2}.up")
    )
    if differs:
        changed["items"] = [item("out", "another")]
    run.of_module("forward_output", HOSTILE, differs)
    run.leave()
    return write_traces(folder, {0: run.events})


def _scrolls_and_finds(browser: Any, report: Path, layers: int) -> None:
    browser.get(report.as_uri())
    assert browser.title.startswith("divergent"), "no name runs as a script"
    story = [line.text for line in browser.find_elements("css selector", "#story dd")]
    assert len(story) == 5 and f"actor.layers.{layers - 2}.up (forward_output)" in story[1]
    events = browser.find_element("css selector", "[data-grid=stage-events]")
    rows = events.find_elements("css selector", ".row")
    assert 10 < len(rows) < 80, "only what is seen is in the page"
    here = events.find_element("css selector", ".row.here")
    assert f"actor.layers.{layers - 2}.up" in here.text and "different" in here.text
    view = events.find_element("css selector", ".rows")
    browser.execute_script("arguments[0].scrollTop = arguments[0].scrollHeight", view)
    _until(lambda: "stage_end" in view.text)
    browser.execute_script("arguments[0].scrollTop = 0", view)
    _until(lambda: "stage_start" in view.text and "__proto__" in view.text)
    shown = [cell.get_attribute("textContent") for cell in view.find_elements("css selector", "span")]
    visible = HOSTILE.replace("\x00", "\N{REPLACEMENT CHARACTER}").replace("\u202e", "\N{REPLACEMENT CHARACTER}")
    assert visible in shown, "a hostile name is text"
    search = events.find_element("css selector", "input[type=search]")
    search.send_keys(f"LAYERS.{layers // 2}.down")
    count = events.find_element("css selector", ".count")
    _until(lambda: count.text.startswith("2 of "))
    assert f"actor.layers.{layers // 2}.down" in view.text
    events.find_element("css selector", "button").click()
    _until(lambda: "actor.layers" in view.text and len(view.find_elements("css selector", ".here")) == 1)
    events.find_element("css selector", "input[type=checkbox]").click()
    _until(lambda: count.text.startswith("2 of "))
    modules = browser.find_element("css selector", "[data-grid=modules-of-stage]")
    assert "up" in modules.find_element("css selector", ".row.here").text
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def _until(found: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_events_scroll_and_are_found_and_hostile_names_stay_text(
    browser: Any, firstdiff: Callable[..., Any], tmp_path: Path
) -> None:
    a, b = _trace(tmp_path / "a", 300, False), _trace(tmp_path / "b", 300, True)
    assert firstdiff("compare", a, b, "--out", "found").status == 1
    _scrolls_and_finds(browser, tmp_path / "found/report.html", 300)


@pytest.mark.slow
def test_a_hundred_thousand_events_open_scroll_and_are_found(
    browser: Any, firstdiff: Callable[..., Any], tmp_path: Path
) -> None:
    a, b = _trace(tmp_path / "a", 16_660, False), _trace(tmp_path / "b", 16_660, True)
    assert firstdiff("compare", a, b, "--out", "found").status == 1
    report = tmp_path / "found/report.html"
    assert report.stat().st_size < 20_000_000
    _scrolls_and_finds(browser, report, 16_660)


def test_without_javascript_the_story_and_the_events_around_are_there(
    browser: Any, firstdiff: Callable[..., Any], tmp_path: Path
) -> None:
    a, b = _trace(tmp_path / "a", 40, False), _trace(tmp_path / "b", 40, True)
    assert firstdiff("compare", a, b, "--out", "found").status == 1
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get((tmp_path / "found/report.html").as_uri())
    assert len(browser.find_elements("css selector", "#story dd")) == 5
    assert "actor.layers.38.up" in browser.find_element("css selector", "#around tr.here").text
    assert "up" in browser.find_element("css selector", "#modules tr.here").text
    assert not browser.find_element("css selector", "[data-grid=stage-events]").is_displayed()
