"""The README's pictures of Prefect's page: a check is started from the form, in headless Chromium, on a new server.

    python .ci/screenshots.py [FOLDER]      writes form.png, run.png, summary.png, nightly.png; FOLDER is docs
    python .ci/screenshots.py REPORT.html   writes docs/report.png, of the report of firstdiff check demo

Needs chromium and chromedriver. The server and its worker are those of make serve, in a folder that is removed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--window-size=1280,1800", "--hide-scrollbars"),
)
PATIENCE = 60.0
SIZE = (1280, 1800)


class Page:
    """Prefect's page in a browser, as somebody uses it.

    Args:
        driver: The browser.
        address: The server's.
    """

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        self.address = address

    def open_form(self, flow: str, deployment: str) -> None:
        """Opens the form of a deployment."""
        self._open(f"deployments/deployment/{self._id(flow, deployment)}/run", "Submit")

    def open_deployment(self, flow: str, deployment: str) -> None:
        """Opens a deployment's page."""
        self._open(f"deployments/deployment/{self._id(flow, deployment)}", "Schedules")

    def choose(self, field: str, value: str) -> None:
        """Chooses in a list."""
        from selenium.webdriver.support.select import Select

        Select(self._field(field, "select")).select_by_visible_text(value)

    def fill(self, field: str, value: str) -> None:
        """Writes into a field."""
        from selenium.webdriver.common.keys import Keys

        control = self._field(field, "*[self::input or self::textarea]")
        control.send_keys(Keys.CONTROL, "a")
        control.send_keys(value)
        self.until(lambda: control.get_attribute("value") == value)

    def submit(self) -> str:
        """Submits the form; returns the flow run's id."""
        self.driver.find_element("xpath", "//button[@type='submit']").click()
        link = self.until(lambda: self.driver.find_elements("xpath", "//a[contains(@href,'/runs/flow-run/')]"))[0]
        return str(link.get_attribute("href")).rstrip("/").rpartition("/")[2]

    def open_run(self, run: str, tab: str) -> None:
        """Opens a flow run's page, at one of its tabs."""
        self._open(f"runs/flow-run/{run}", "Artifacts")
        tabs = f"//*[not(*) and normalize-space(.)='{tab}']"
        self.until(lambda: self.driver.find_elements("xpath", tabs))[0].click()

    def open_artifact(self, run: str, key: str) -> None:
        """Opens an artifact of a flow run."""
        wanted = {"artifacts": {"flow_run_id": {"any_": [run]}, "key": {"any_": [key]}}}
        (found,) = ask(f"{self.address}/api/artifacts/filter", wanted)
        self._open(f"artifacts/artifact/{found['id']}", key)

    def picture(self, file: Path, height: int = 900) -> None:
        """Writes a picture of what is shown, from its top."""
        self.driver.set_window_size(1280, height)
        self.driver.execute_script("document.activeElement.blur()")
        self.driver.execute_script("document.querySelectorAll('*').forEach(element => element.scrollTop = 0)")
        time.sleep(1.5)
        self.driver.save_screenshot(str(file))
        self.driver.set_window_size(*SIZE)  # lists show only what fits

    @property
    def text(self) -> str:
        """What is shown, as text."""
        return str(self.driver.find_element("tag name", "body").text)

    def until(self, found: Callable[[], Any]) -> Any:
        """Waits for something that is neither false nor empty."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(_stale()):
                if value := found():
                    return value
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.driver.current_url} shows: {self.text[:500]}")
            time.sleep(0.3)

    def _open(self, path: str, word: str) -> None:
        self.driver.get(f"{self.address}/{path}")
        self.until(lambda: word in self.text)

    def _field(self, field: str, control: str) -> Any:
        label = f"//span[contains(@class, 'property__label') and starts-with(normalize-space(.), '{field} ')]"
        whole = "ancestor::div[contains(concat(' ', @class, ' '), ' schema-form-property ')][1]"
        path = f"{label}/{whole}//fieldset//{control}"
        return self.until(lambda: self.driver.find_elements("xpath", path))[0]

    def _id(self, flow: str, deployment: str) -> str:
        return str(ask(f"{self.address}/api/deployments/name/{flow}/{deployment}")["id"])


def _stale() -> type[Exception]:
    from selenium.common.exceptions import StaleElementReferenceException

    return StaleElementReferenceException


def ask(address: str, content: Any = None) -> Any:
    """What a server answers, as JSON, to a GET or, with content, to a POST."""
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[Any]:
    """Headless Chromium, with its files in a folder."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def take_report(report: Path, file: Path) -> None:
    """Takes the picture of a check's report, from its top."""
    with tempfile.TemporaryDirectory(prefix="firstdiff-") as scratch, browser(Path(scratch)) as driver:
        driver.get(report.resolve().as_uri())
        driver.set_window_size(1250, 1800)
        time.sleep(0.5)
        driver.save_screenshot(str(file))


def take(page: Page, folder: Path) -> str:
    """Starts the demo from the form and takes all pictures; returns the flow run's id."""
    page.open_form("determinism-check", "determinism-check")
    page.choose("profile", "demo")
    page.fill("steps", "4")
    page.fill("overrides", "trainer.config.megatron_training.global_batch_size=4\nrecord.key_data=full")
    page.picture(folder / "form.png", 1300)
    run = page.submit()
    final = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    deadline = time.monotonic() + 600
    while ask(f"{page.address}/api/flow_runs/{run}")["state_type"] not in final and time.monotonic() < deadline:
        time.sleep(1)
    page.open_run(run, "Artifacts")
    page.until(lambda: "demo-map" in page.text)
    page.picture(folder / "run.png", 1100)
    page.open_artifact(run, "demo")
    page.until(lambda: "What to do next" in page.text)
    page.picture(folder / "summary.png", 900)
    page.open_deployment("nightly", "nightly")
    page.picture(folder / "nightly.png", 750)
    return run


def main() -> int:
    """Writes the pictures."""
    sys.path.insert(0, str(PROJECT))
    if sys.argv[1:] and sys.argv[1].endswith(".html"):
        take_report(Path(sys.argv[1]), PROJECT / "docs/report.png")
        return 0
    from flows.station import Station

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECT / "docs"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="firstdiff-") as scratch:
        station = Station(Path(scratch, "state"), port)
        address = station.start([])
        try:
            with browser(Path(scratch, "browser")) as driver:
                take(Page(driver, address), folder)
        finally:
            station.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
