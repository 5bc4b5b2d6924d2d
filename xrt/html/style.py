"""The style sheets of views: on a page of its own, and in a notebook's cell, whose page has rules of its own."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources

from xrt.html.markup import Markup

__all__ = ["ROOT", "load_cell_style", "load_page_style"]

ROOT = "xrt-view"
"""The class of a view's root."""
SELECTOR = f":is(#{ROOT}, .{ROOT})"
"""Matches the class, and is as strong as an identifier: a rule of the surrounding page for tables or headings is weaker."""
PIXELS = 16
"""Of a ``rem`` in a cell: the surrounding page may have set another size for its root."""

_COMMENT = re.compile(r"/\*.*?\*/\s*", re.DOTALL)
_REM = re.compile(r"(\d*\.?\d+)rem\b")


@cache
def load_page_style() -> Markup:
    """Return the style sheet of a page."""
    return Markup(_read("view.css") + _read("page.css"))


@cache
def load_cell_style() -> Markup:
    """Return the style sheet of a view within another page: each rule is about the view alone."""
    text = _read("view.css") + _read("cell.css")
    return Markup(_REM.sub(lambda found: f"{float(found[1]) * PIXELS:g}px", text))


def _read(name: str) -> str:
    text = resources.files("xrt.html").joinpath(name).read_text(encoding="utf-8")
    return _COMMENT.sub("", text).replace("&", SELECTOR)
