"""Markup that its content cannot break: everything that is not markup already is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from typing import TypeAlias
from unicodedata import category

__all__ = ["Child", "Markup", "join_markup", "tag"]

ALONE = frozenset(["meta", "link", "br", "rect", "line", "path", "polygon"])
"""Elements that hold nothing; those of SVG may close themselves."""


class Markup(str):
    """Text that is markup, and is not escaped again. Only `tag` and `joined` make it, and the page of its own style sheet."""

    __slots__ = ()


Child: TypeAlias = str | int | None
"""What may stand inside of an element: Markup as it is, other text escaped, None not at all."""


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """Return an element.

    An attribute is spelt with ``_`` for ``-``, and one behind it where the word is Python's; None and False leave it out.

    >>> tag("p", "1 < 2", tag("b", "&"), class_="a", aria_label='"', hidden=True, id=None)
    '<p class="a" aria-label="&quot;" hidden>1 &lt; 2<b>&amp;</b></p>'
    """
    written = " ".join([name, *_attributes(attributes)])
    return Markup(f"<{written}/>") if name in ALONE else Markup(f"<{written}>{join_markup(children)}</{name}>")


def join_markup(children: Iterable[Child]) -> Markup:
    """Return markup of the children, one after the other.

    >>> join_markup(["a<", Markup("<br/>"), None, 3])
    'a&lt;<br/>3'
    """
    return Markup("".join(_escaped(child) for child in children if child is not None))


def _escaped(child: str | int) -> str:
    return child if isinstance(child, Markup) else html.escape(_printable(str(child)))


def _attributes(given: dict[str, str | float | bool | None]) -> Iterator[str]:
    for name, value in given.items():
        spelt = name.rstrip("_").replace("_", "-")
        if value is True:
            yield spelt
        elif value is not None and value is not False:
            yield f'{spelt}="{html.escape(_printable(str(value)))}"'


def _printable(text: str) -> str:
    """Return the text with a mark for what no page may hold: control characters, halves of characters, reversals of writing."""
    return "".join(char if char.isprintable() or char in "\n\t" or category(char) == "Zs" else "�" for char in text)
