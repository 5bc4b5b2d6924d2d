"""A colour for each engine, the same on the whole page, from a palette that colour-blind readers distinguish.

Okabe and Ito, "Color Universal Design" (2008). A colour is never the only information: its engine's name is next to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from xrt.html.markup import Markup, tag

__all__ = ["classes", "legend"]

KNOWN = {"ort": 1, "openvino": 2, "xla": 3, "tvm": 4, "iree": 5, "toy": 6}
"""The class ``e1``, ``e2``, ... of the shipped engines; `page.css` has a colour for each."""
MORE, LAST = 7, 8


def classes(engines: Iterable[str]) -> dict[str, str]:
    """Return each engine's class: the shipped ones have their own, others what is left, and share the last."""
    found: dict[str, str] = {}
    strange = 0
    for spec in dict.fromkeys(engines):
        number = KNOWN.get(_name(spec))
        if number is None:
            number, strange = min(MORE + strange, LAST), strange + 1
        found[spec] = f"e{number}"
    return found


def legend(by_engine: dict[str, str]) -> Markup:
    """Return the engines with their colours."""
    items = (tag("li", tag("span", class_=f"key {colour}", aria_hidden="true"), engine) for engine, colour in by_engine.items())
    return tag("ul", *items, class_="legend")


def _name(spec: str) -> str:
    return spec.partition("{")[0].strip()
