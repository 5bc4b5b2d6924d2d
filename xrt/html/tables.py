"""Tables, lists of facts and folded parts: the parts of a view other than drawings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xrt.html.markup import Child, Markup, tag

__all__ = ["fold", "make_facts", "make_scrolling", "make_table", "make_text"]

Column = str | tuple[str, str]
"""A head, or a head and the class of its cells, such as ``number``."""


def make_table(caption: str, columns: Sequence[Column], rows: Iterable[Sequence[Child]]) -> Markup:
    """Return a table whose first column names its rows; it scrolls on its own where it is too wide."""
    named = [(column, None) if isinstance(column, str) else column for column in columns]
    heads = [tag("th", head, scope="col", class_=kind) for head, kind in named]
    kinds = [kind for _, kind in named]
    body = [
        tag(
            "tr",
            tag("th", first, scope="row"),
            *(tag("td", cell, class_=kind) for cell, kind in zip(rest, kinds[1:], strict=True)),
        )
        for first, *rest in rows
    ]
    return make_scrolling(caption, tag("table", tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *body)))


def make_scrolling(label: str, content: Markup) -> Markup:
    """Return a part that scrolls within the page, is reachable by keyboard and has a name."""
    return tag("div", content, class_="scroll", role="region", tabindex=0, aria_label=label)


def make_facts(facts: Mapping[str, Child]) -> Markup:
    """Return names with their values; one whose value is None is left out."""
    lines = [part for name, value in facts.items() if value is not None for part in (tag("dt", name), tag("dd", value))]
    return tag("dl", *lines)


def make_text(lines: Iterable[str]) -> Markup | None:
    """Return lines as they are; None where there are none."""
    text = "\n".join(lines)
    return tag("pre", text) if text else None


def fold(summary: str, *content: Child) -> Markup:
    """Return a part that is folded until it is asked for."""
    return tag("details", tag("summary", summary), *content)
