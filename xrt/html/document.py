"""A view as a page of its own or as what a notebook shows: in both, one text that needs nothing else."""

from __future__ import annotations

from xrt.html.markup import Child, join_markup, tag
from xrt.html.style import ROOT, load_cell_style, load_page_style

__all__ = ["make_cell", "make_page"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""The page may load nothing and run nothing, whatever a model's name contains."""


def make_page(title: str, *parts: Child) -> str:
    """Return the text of a page: valid without a network, without scripts, in light and dark, on paper."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", load_page_style()),
    )
    body = tag("body", tag("main", *parts), class_=ROOT)
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


def make_cell(*parts: Child) -> str:
    """Return what ``_repr_html_`` gives: the view with its own style, which changes nothing of the page around it."""
    return str(tag("div", tag("style", load_cell_style()), join_markup(parts), class_=ROOT))
