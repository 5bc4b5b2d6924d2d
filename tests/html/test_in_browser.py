"""Pages and cells in a real browser without a screen: Debian's Chromium, driven by Selenium.

Of a page nothing lies beyond the edge of a telephone or of a desk's screen, nothing is requested, and bars are as long as their
figures say. A cell is readable in light and dark, and neither the page around it nor the cell changes the looks of the other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

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


NOTEBOOK = """
html { font-size: 8px; }
body { font: italic 30px fantasy; color: #b00000; text-align: right; line-height: 3; letter-spacing: 3px; white-space: pre; }
.output table { border: 3px solid red; margin: 20px; table-layout: fixed; width: 900px; }
.output th, .output td { text-align: center; padding: 15px; background: yellow; color: red; font-size: 30px; }
.output tbody tr:nth-child(odd) { background: orange; }
.output h2, .output h3, .output p, .output ul, .output li, .output pre, .output dl, .output dt, .output dd, .output summary,
.output figure, .output figcaption, .output caption, .output span, .output details
{ color: red; background: yellow; font: 40px serif; margin: 30px; padding: 10px; border: 1px solid; text-transform: uppercase; }
.output :focus-visible { outline: 5px solid red; }
"""
"""A page with rules for all that a cell is made of."""

LOOKS = """
return [...document.querySelectorAll(arguments[0])].map(one => {
  const style = getComputedStyle(one), found = {tag: one.tagName};
  for (const name of style) found[name] = style[name];
  return found;
})
"""


def open_cell(browser: webdriver.Chrome, folder: Path, view: str, style: str = "", body: str = "", scheme: str = "light") -> None:
    path = folder / "notebook.html"
    around = "<table id='theirs'><tr><th>a</th><td><h2>b</h2><p>c</p><svg><rect width='5' height='5'/></svg></td></tr></table>"
    path.write_text(
        f"<!DOCTYPE html><html><head><meta charset='utf-8'><style>{style}</style></head><body {body}>"
        f"<div class='output' style='width: 800px'>{view}</div>{around}</body></html>",
        encoding="utf-8",
    )
    open_file(browser, path, 1000, scheme)


def looks(browser: webdriver.Chrome, selector: str) -> list[dict[str, Any]]:
    return browser.execute_script(LOOKS, selector)  # type: ignore[no-any-return]  # as the script gives it


@pytest.mark.sample(5)
@pytest.mark.parametrize("kind", VIEWS)
def test_the_page_around_changes_nothing_of_a_cell(browser: webdriver.Chrome, tmp_path: Path, kind: str) -> None:
    view = VIEWS[kind]._repr_html_()
    open_cell(browser, tmp_path, view)
    alone = looks(browser, ".xrt-view, .xrt-view *:not(style)")
    open_cell(browser, tmp_path, view, NOTEBOOK)
    among = looks(browser, ".xrt-view, .xrt-view *:not(style)")
    assert len(alone) == len(among) > 5
    changed = [(a["tag"], name, a[name], b[name]) for a, b in zip(alone, among, strict=True) for name in a if a[name] != b[name]]
    assert changed == []


def test_a_cell_changes_nothing_of_the_page_around(browser: webdriver.Chrome, tmp_path: Path) -> None:
    for style in ("", NOTEBOOK):
        open_cell(browser, tmp_path, "<div>nothing</div>", style)
        alone = looks(browser, "#theirs, #theirs *")
        open_cell(browser, tmp_path, VIEWS["report"]._repr_html_(), style)
        assert looks(browser, "#theirs, #theirs *") == alone != []


THEMES = [
    ("", "light", "light"),
    ("", "dark", "dark"),
    ("data-jp-theme-light='true'", "dark", "light"),
    ("data-jp-theme-light='false'", "light", "dark"),
    ("class='vscode-dark'", "light", "dark"),
    ("class='vscode-light'", "dark", "light"),
    ("data-theme='dark'", "light", "dark"),
]


@pytest.mark.sample(5)
@pytest.mark.parametrize(("body", "scheme", "expected"), THEMES)
def test_a_cell_follows_the_notebook_and_else_the_system(
    browser: webdriver.Chrome, tmp_path: Path, body: str, scheme: str, expected: str
) -> None:
    open_cell(browser, tmp_path, VIEWS["plain explanation"]._repr_html_(), body=body, scheme=scheme)
    ground = browser.execute_script("return getComputedStyle(document.querySelector('.xrt-view')).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[expected]


@pytest.mark.sample(5)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", VIEWS)
def test_words_stand_out_and_lie_within_the_cell(browser: webdriver.Chrome, tmp_path: Path, kind: str, scheme: str) -> None:
    open_cell(browser, tmp_path, VIEWS[kind]._repr_html_(), scheme=scheme)
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    browser.execute_script("document.getElementById('theirs').remove()")
    assert browser.execute_script(CONTRAST) == []
    assert browser.execute_script(BEYOND) == []
    assert browser.execute_script("return document.querySelector('.output').scrollWidth") <= 800
