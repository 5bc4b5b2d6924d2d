"""A color for each engine, the same on the whole page, from a palette that color-blind readers distinguish.

Okabe and Ito, "Color Universal Design" (2008). A color is never the only information: its engine's name is next to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

__all__ = ["PALETTE", "assign_colors"]

PALETTE = ("vermilion", "yellow", "gray", "sky", "pink", "green", "orange", "blue")
"""The colors that engines may declare, each a class of `view.css`; one that declares none gets the first that is left."""


def assign_colors(engines: Iterable[str], declared: Callable[[str], str]) -> dict[str, str]:
    """Return the color of each engine, given by name or spec; ``declared`` gives the color that an engine of a name declares.

    Of two engines that declare one color, the first gets it. When all are taken, the others share the last.
    """
    specs = list(dict.fromkeys(engines))
    name_of = {spec: spec.partition("{")[0].strip() for spec in specs}
    colors: dict[str, str] = {}
    for name in name_of.values():
        if (color := declared(name)) in PALETTE and color not in colors.values():
            colors.setdefault(name, color)
    for name in name_of.values():
        if name not in colors:
            colors[name] = next((color for color in PALETTE if color not in colors.values()), PALETTE[-1])
    return {spec: colors[name] for spec, name in name_of.items()}
