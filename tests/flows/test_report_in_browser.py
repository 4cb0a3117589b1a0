"""The report as a person sees it: in a real browser, without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.store.digest import digest
from probe.store.writer import DumpWriter, Numbers

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
