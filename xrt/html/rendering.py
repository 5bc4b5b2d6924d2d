"""Templates filled with facts: as a page of its own, or as what a notebook shows. Both are one text that needs nothing else."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from unicodedata import category

from xrt.html import formatting

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["ROOT", "SELECTOR", "load_cell_style", "load_page_style", "render_cell", "render_page"]

ROOT = "xrt-view"
"""The class of a view's root."""
SELECTOR = f":is(#{ROOT}, .{ROOT})"
"""Matches the class, and is as strong as an identifier: a rule of the surrounding page for tables or headings is weaker."""
PIXELS = 16
"""Of a ``rem`` in a cell: the surrounding page may have set another size for its root."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The page may load nothing and run nothing, whatever a model's name contains."""

_COMMENT = re.compile(r"/\*.*?\*/\s*", re.DOTALL)
_REM = re.compile(r"(\d*\.?\d+)rem\b")
_UNUSUAL = re.compile(r"[^\n\t -~]")


def render_page(template: str, title: str, **facts: Any) -> str:
    """Return the text of a page: valid without a network, without scripts, in light and dark, on paper."""
    return _render("page.html", body=template, style=load_page_style(), policy=POLICY, title=title, **facts)


def render_cell(template: str, **facts: Any) -> str:
    """Return what ``_repr_html_`` gives: the view with its own style, which changes nothing of the page around it."""
    return _render("cell.html", body=template, style=load_cell_style(), **facts)


def _render(template: str, **facts: Any) -> str:
    """Return a template filled with facts, every text in them escaped."""
    return _UNUSUAL.sub(_replace_unprintable, _environment().get_template(template).render(root=ROOT, **facts))


def _replace_unprintable(found: re.Match[str]) -> str:
    """Return a mark for what no page may hold: control characters, halves of characters, reversals of writing."""
    char = found[0]
    return char if char.isprintable() or category(char) == "Zs" else "�"


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader("xrt.html"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"zip": zip} | {name: getattr(formatting, name) for name in formatting.__all__}
    return made


@cache
def load_page_style() -> str:
    """Return the style sheet of a page."""
    return _read("view.css") + _read("page.css")


@cache
def load_cell_style() -> str:
    """Return the style sheet of a view within another page: each rule is about the view alone."""
    text = _read("view.css") + _read("cell.css")
    return _REM.sub(lambda found: f"{float(found[1]) * PIXELS:g}px", text)


def _read(name: str) -> str:
    text = resources.files("xrt.html").joinpath(name).read_text(encoding="utf-8")
    return _COMMENT.sub("", text).replace("&", SELECTOR)
