"""A real browser, and real reports to open in it.

Without Chromium, its driver or selenium these tests are skipped; with ELIGN_REQUIRE_BROWSER=1, as in continuous
integration, they fail instead: there a browser is promised.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from elign.lab.cli.main import main
from elign.lab.report.run_groups import find_runs, read_runs
from elign.lab.report.run_report import write_run_report

FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage")
LAPTOP = (1280, 800)


class Browser:
    """The few things that the tests do with a browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        """Open a page as on a laptop in the day; what the logs hold of pages before is dropped."""
        self.dark(False)
        self.size(LAPTOP)
        self.driver.get("about:blank")
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        self.driver.get(path.as_uri())

    def run(self, code: str, *arguments: Any) -> Any:
        """Run a script in the page."""
        return self.driver.execute_script(code, *arguments)

    def wait(self, code: str, *arguments: Any) -> None:
        """Until a script returns something true."""
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 20, poll_frequency=0.05).until(
            lambda driver: driver.execute_script(code, *arguments)
        )

    def frame(self) -> None:
        """Until the page was painted again."""
        self.driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def press(self, key: str, *, times: int = 1) -> None:
        """Press a key, named as in selenium, wherever the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self.driver).send_keys(getattr(Keys, key) * times).perform()

    def size(self, size: tuple[int, int], *, touch: bool = False) -> None:
        """The viewport; a window alone cannot be made as narrow as a phone."""
        numbers = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": touch}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", numbers)

    def dark(self, dark: bool) -> None:
        """What the system prefers."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def draw(self, plot: Any) -> None:
        """Scroll to a figure, which is then drawn."""
        self.run("arguments[0].scrollIntoView({block: 'center'})", plot)
        self.wait("return arguments[0].querySelector('svg.main-svg') !== null", plot)

    def draw_all(self) -> None:
        """Scroll past every figure, as a reader does, and back."""
        for plot in self.driver.find_elements("css selector", "[data-figure]"):
            self.draw(plot)
        self.run("scrollTo(0, 0)")

    def messages(self) -> list[str]:
        """What the page wrote to the console, errors of the browser about it included."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Addresses of everything that the page asked for."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        sockets = [event["params"]["url"] for event in events if event["method"] == "Network.webSocketCreated"]
        return [params["request"]["url"] for params in sent] + sockets


def _missing() -> str:
    """What there is none of, empty if all is there."""
    if importlib.util.find_spec("selenium") is None:
        return "selenium (pip install selenium)"
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} (Debian: apt-get install chromium chromium-driver)"
    return ""


@pytest.fixture(scope="session")
def browser(tmp_path_factory) -> Iterator[Browser]:
    missing = _missing()
    if missing and os.environ.get("ELIGN_REQUIRE_BROWSER") == "1":
        pytest.fail(f"a browser is required here, but there is no {missing}")
    if missing:
        pytest.skip(f"there is no {missing}")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # A given path keeps selenium from looking for a driver on the network.
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


QUICK = ("data=digits", "protocol.first=4", "protocol.increment=3", "data.limit=20", "train.first_epochs=2")
QUICK += ("train.epochs=2", "aligner.iterations=20", "aligner.steps=3", "aligner.step_size=0.5")


# Reports depend on the browser, so that none is made where nothing opens it.


@pytest.fixture(scope="session")
def toy_report(browser, tmp_path_factory, map_of_few) -> Path:
    """Of a two-task experiment."""
    folder = tmp_path_factory.mktemp("toy")
    with map_of_few():
        assert main(["toy", "--seeds", "2", "--iterations", "100", "--out", str(folder)]) == 0
    return folder / "report.html"


@pytest.fixture(scope="session")
def runs_report(browser, tmp_path_factory, map_of_few) -> Path:
    """Of two class-incremental experiments."""
    folder = tmp_path_factory.mktemp("runs")
    for learner in ("icarl", "lucir"):
        assert main(["run", *QUICK, f"learner={learner}", f"out={folder / learner}"]) == 0
    experiments, _ = read_runs(find_runs([folder]))
    with map_of_few():
        return write_run_report(experiments, folder / "report.html")


@pytest.fixture(scope="session")
def detection_report(browser, tmp_path_factory, quick_detection) -> Path:
    """Of a detector that learned two tasks."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("the extra detection is not installed")
    folder = tmp_path_factory.mktemp("detection")
    assert main(["detect", "run", *quick_detection, "learner=finetune", f"out={folder / 'run'}"]) == 0
    experiments, _ = read_runs(find_runs([folder]))
    return write_run_report(experiments, folder / "report.html")


@pytest.fixture(params=["toy", "runs", "detection"])
def page(request, browser) -> Browser:
    """A browser that has one of the reports open."""
    browser.open(request.getfixturevalue(f"{request.param}_report"))
    return browser


@pytest.fixture(params=["toy", "runs"])
def walk_page(request, browser) -> Browser:
    """The same for the reports of latents that walk, step by step."""
    browser.open(request.getfixturevalue(f"{request.param}_report"))
    return browser
