"""The page of a comparison in a real browser without a screen: Debian's Chromium, driven by Selenium.

Nothing lies beyond the edge of a telephone or of a desk's screen, nothing is requested, bars are as long as their figures say.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.common.exceptions import SessionNotCreatedException
from selenium.webdriver.chrome.service import Service

from tests.bench.test_page import group, report
from tests.html.views import VIEWS
from xrt.bench import BenchReport, page

pytestmark = pytest.mark.slow

MISSING = "is not installed, and these tests look at pages in a browser; on Debian: apt-get install chromium chromium-driver"
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--disable-extensions",
)
WIDTHS = (360, 1400)


def installed(*names: str) -> str:
    path = next(filter(None, map(shutil.which, names)), None)
    assert path, f"{names[0]} {MISSING}"
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = installed("chromium", "chromium-browser", "google-chrome")
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = started(options)
    yield driver
    driver.quit()


def started(options: webdriver.ChromeOptions, attempts: int = 5) -> webdriver.Chrome:
    """Return a browser; on a busy machine it may not be up within the time that its driver gives it."""
    for _ in range(attempts - 1):
        with suppress(SessionNotCreatedException):
            return webdriver.Chrome(options=options, service=Service(installed("chromedriver")))
    return webdriver.Chrome(options=options, service=Service(installed("chromedriver")))


REPORTS = {"plain": report(), "several": report(group("one"), group("other")), "hostile": VIEWS["report"]}


def write_page(folder: Path, value: BenchReport) -> Path:
    path = folder / "report.html"
    path.write_text(page(value), encoding="utf-8")
    return path


@pytest.fixture(params=REPORTS)
def shown(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_page(tmp_path, REPORTS[request.param])


def open_file(browser: webdriver.Chrome, path: Path, width: int = 1400, scheme: str = "light") -> None:
    """Open a page in a window of that width. The logs of the browser begin with it."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    sizes = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 700}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())


BEYOND = """
const found = [];
for (const one of document.querySelectorAll("body *")) {
  if (one.closest(".scroll > *") || one.parentElement.closest("svg")) continue;
  const box = one.getBoundingClientRect();
  if (box.width && (box.right > innerWidth + 0.5 || box.left < -0.5)) found.push(one.outerHTML.slice(0, 200));
}
return found
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_beyond_the_edge(shown: Path, browser: webdriver.Chrome, width: int) -> None:
    open_file(browser, shown, width)
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(BEYOND) == []


def test_nothing_is_requested_and_nothing_complained_of(shown: Path, browser: webdriver.Chrome) -> None:
    open_file(browser, shown)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [url for url in urls if not url.startswith("data:")] == [shown.as_uri()]
    assert browser.get_log("browser") == []
    assert browser.execute_script("return document.scripts.length + document.images.length") == 0


BARS = """
return [...document.querySelectorAll("ul.bars svg")].map(svg => {
  const box = one => one ? one.getBoundingClientRect() : null;
  const bar = svg.querySelector(".bar"), line = svg.querySelector(".interval");
  return {seconds: +bar.dataset.seconds, left: box(bar).left, width: box(bar).width, room: box(svg).width,
          low: line ? box(line).left : null, high: line ? box(line).right : null, cut: !!svg.querySelector(".gap")};
})
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_bars_and_intervals_are_as_long_as_the_figures_say(browser: webdriver.Chrome, tmp_path: Path, width: int) -> None:
    result = group()
    open_file(browser, write_page(tmp_path, report(result)), width)
    bars = browser.execute_script(BARS)
    rows = [item for item in result.rows if item.verdict in ("fastest", "tie", "slower")]
    assert [bar["seconds"] for bar in bars] == [item.median_seconds for item in rows]
    assert len({bar["left"] for bar in bars}) == 1
    whole = [(bar, item.interval) for bar, item in zip(bars, rows, strict=True) if not bar["cut"]]
    scale = whole[0][0]["width"] / whole[0][0]["seconds"]
    for bar, interval in whole:
        assert bar["width"] == pytest.approx(scale * bar["seconds"], abs=0.1)
        ends = (bar["low"] - bar["left"], bar["high"] - bar["left"])
        assert interval is not None
        assert ends == pytest.approx((scale * interval.low, scale * interval.high), abs=0.2)
        assert bar["width"] <= bar["room"]
    (cut,) = [bar for bar in bars if bar["cut"]]
    assert cut["width"] == pytest.approx(cut["room"]) and cut["width"] < scale * cut["seconds"]


CONTRAST = """
const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const parts = colour => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const ground = one => { for (; one; one = one.parentElement) { const c = parts(getComputedStyle(one).backgroundColor);
  if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
const found = [];
for (const one of document.querySelectorAll("body *")) {
  if (![...one.childNodes].some(n => n.nodeType == 3 && n.data.trim()) || one.closest("title")) continue;
  const style = getComputedStyle(one), fill = one.closest("svg") ? style.fill : style.color;
  const [a, b] = [light(parts(fill)), light(ground(one))].sort((x, y) => y - x);
  if ((a + 0.05) / (b + 0.05) < 4.5) found.push([one.outerHTML.slice(0, 120), fill, (a + 0.05) / (b + 0.05)]);
}
return found
"""
