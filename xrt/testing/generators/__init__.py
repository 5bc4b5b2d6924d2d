"""Families of recipes that generate graphs.

The default `Form`, which engine suites use, has the first six; fuzzing uses all.
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
"""All families by name. Control flow is separate (`structured.CONTROL`), since `Form.control` enables it."""
