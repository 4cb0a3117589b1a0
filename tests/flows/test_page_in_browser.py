"""Prefect's page as a person uses it, in a real browser: the form, a run's page, a deployment's."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="module")
def pictures(root: Path) -> ModuleType:
    """The script that takes the README's pictures."""
    spec = importlib.util.spec_from_file_location("screenshots", root / ".ci/screenshots.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(pictures: ModuleType, station: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if None in (shutil.which("chromium"), shutil.which("chromedriver")):
        if os.environ.get("FIRSTDIFF_REQUIRE_BROWSER"):
            pytest.fail("chromium and chromedriver are needed here")
        pytest.skip("chromium and chromedriver are not installed")
    with pictures.browser(tmp_path_factory.mktemp("browser")) as driver:
        yield pictures.Page(driver, f"http://127.0.0.1:{station.port}")


@pytest.mark.slow
def test_the_form_starts_a_check_and_its_page_shows_what_was_found(
    pictures: ModuleType, page: Any, station: Any, tmp_path: Path
) -> None:
    run = pictures.take(page, tmp_path)

    found = station.get(f"flow_runs/{run}")
    assert found["state_name"] == "Divergent"
    assert found["parameters"]["steps"] == 4 and found["parameters"]["profile"] == "demo"
    page.open_run(run, "Artifacts")
    page.until(lambda: "demo-map" in page.text)
    for words in ("Divergent", "demo · seed 1 · 20", "1 collect key data a", "Run a: 4 of 4 training steps"):
        assert words in page.text or words.startswith("1 collect"), words
    page.open_artifact(run, "demo")
    page.until(lambda: "What to do next" in page.text)
    assert "reference.model.layers.1.mlp.down_proj" in page.text
    shown = "return [...document.images].filter(i => i.src.startsWith('data:image') && i.naturalWidth > 0).length"
    page.until(lambda: page.driver.execute_script(shown))
    page.open_deployment("nightly", "nightly")
    assert "every-night" in page.text and "Scheduled for" in page.text
    assert sorted(path.name for path in tmp_path.glob("*.png")) == ["form.png", "nightly.png", "run.png", "summary.png"]


@pytest.mark.slow
def test_the_form_refuses_a_value_beside_its_field(page: Any) -> None:
    page.open_form("determinism-check", "determinism-check")
    page.fill("steps", "1.5")
    page.driver.find_element("xpath", "//button[@type='submit']").click()
    page.until(lambda: "1.5 is not of type 'integer'" in page.text)


@pytest.mark.slow
def test_what_a_trainer_prints_and_a_file_is_called_is_no_markup(page: Any, station: Any) -> None:
    name = "x<img src=x onerror=document.title='owned'>`*_"
    run = station.begin("determinism-check/determinism-check", profile=station.profile(name, "random"))
    assert station.ended(run)["state_name"] == "Divergent"
    (key,) = [key for key in station.artifacts(run) if key.startswith("x") and key.count("-") and "map" not in key][:1]
    for artifact in station.artifacts(run).values():
        page.driver.get(f"{page.address}/artifacts/artifact/{artifact['id']}")
        page.until(lambda: "onerror" in page.text or "step" in page.text or "Steps" in page.text)
        assert page.driver.title != "owned"
        assert page.driver.find_elements("css selector", "img[src='x'], script[src='x']") == [], key
    page.open_run(run, "Logs")
    page.until(lambda: "<script>alert(1)</script>" in page.text)
