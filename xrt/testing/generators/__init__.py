"""More families of recipes: every width of number, ranks up to six, attributes that are easily forgotten.

`xrt.testing.generators.operators` holds the families that every engine's suite starts with; fuzzing takes these too.
"""

from __future__ import annotations

from xrt.testing.generators.elementwise import CASTS, EXACT_NUMBERS, FLOATING, INTEGERS, PRODUCTS, REDUCTIONS, STEPPING, WINDOWS
from xrt.testing.generators.operators import FAMILIES, Recipe
from xrt.testing.generators.structured import LISTS, MOVES, SCANS, SPECIALS

__all__ = ["ALL_FAMILIES", "INTEGERS"]

ALL_FAMILIES: dict[str, tuple[Recipe, ...]] = FAMILIES | {
    "numbers": EXACT_NUMBERS,
    "functions": FLOATING,
    "reductions": REDUCTIONS,
    "products": PRODUCTS,
    "windows": WINDOWS,
    "moves": MOVES,
    "steps": STEPPING,
    "lists": LISTS,
    "scans": SCANS,
    "specials": SPECIALS,
    "casts": CASTS,
}
"""Every family by its name."""
