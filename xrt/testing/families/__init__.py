"""More families of recipes: every width of number, ranks up to six, attributes that are easily forgotten.

`xrt.testing.recipes` holds the families that every engine's suite starts with; fuzzing takes these too.
"""

from __future__ import annotations

from xrt.testing.families.casts import CASTS
from xrt.testing.families.gathered import PRODUCTS, REDUCTIONS, WINDOWS
from xrt.testing.families.moved import MOVES
from xrt.testing.families.numbers import EXACT_NUMBERS, FLOATING, INTEGERS, STEPPING
from xrt.testing.families.structured import LISTS, SCANS, SPECIALS
from xrt.testing.recipes import FAMILIES, Recipe

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
