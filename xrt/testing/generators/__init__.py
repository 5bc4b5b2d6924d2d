"""Families of recipes: what a generated graph may be made of.

An engine's suite takes the first six, fuzzing takes all.
"""

from __future__ import annotations

from xrt.testing.generators import operators, structured
from xrt.testing.generators.draft import Recipe

__all__ = ["ALL_FAMILIES"]

ALL_FAMILIES: dict[str, tuple[Recipe, ...]] = {
    "elementwise": operators.ELEMENTWISE,
    "reduction": operators.REDUCTIONS,
    "product": operators.PRODUCTS,
    "window": operators.WINDOWS,
    "shape": structured.SHAPES,
    "stepping": operators.STEPPING,
    "numbers": operators.NUMBERS,
    "functions": operators.FUNCTIONS,
    "normalizations": operators.NORMALIZATIONS,
    "products": operators.OTHER_PRODUCTS,
    "windows": operators.OTHER_WINDOWS,
    "narrow": operators.NARROW,
    "moves": structured.MOVES,
    "lists": structured.LISTS,
    "scans": structured.SCANS,
}
"""Every family by its name; control flow, which a `Form` has by an option, is `structured.CONTROL`."""
