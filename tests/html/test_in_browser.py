"""Cells in a real browser: readable in light and dark, and neither the page around them nor they change each other's looks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver

from tests.bench.test_page_in_browser import BEYOND, CONTRAST, open_file
from tests.html.views import VIEWS

pytestmark = [pytest.mark.slow, pytest.mark.sample(5)]

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


@pytest.mark.parametrize(("body", "scheme", "expected"), THEMES)
def test_a_cell_follows_the_notebook_and_else_the_system(
    browser: webdriver.Chrome, tmp_path: Path, body: str, scheme: str, expected: str
) -> None:
    open_cell(browser, tmp_path, VIEWS["plain explanation"]._repr_html_(), body=body, scheme=scheme)
    ground = browser.execute_script("return getComputedStyle(document.querySelector('.xrt-view')).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[expected]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", VIEWS)
def test_words_stand_out_and_lie_within_the_cell(browser: webdriver.Chrome, tmp_path: Path, kind: str, scheme: str) -> None:
    open_cell(browser, tmp_path, VIEWS[kind]._repr_html_(), scheme=scheme)
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    browser.execute_script("document.getElementById('theirs').remove()")
    assert browser.execute_script(CONTRAST) == []
    assert browser.execute_script(BEYOND) == []
    assert browser.execute_script("return document.querySelector('.output').scrollWidth") <= 800
