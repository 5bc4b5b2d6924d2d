"""The corpus: small models that once went wrong, here or in the ancestor, or that have a form easily got wrong.

Each entry is a Function, inputs, and what must come out, worked out in plain NumPy. It grows with every defect, and every
engine's suite runs all of it.
"""

from pathlib import Path

from xrt.testing.corpus import control, learned, numbers, shapes
from xrt.testing.corpus.entry import CorpusEntry, read_entries

__all__ = ["CORPUS", "FOUND", "CorpusEntry", "find_entry"]

FOUND = read_entries(Path(__file__).parent / "found")
"""Defects that fuzzing found, one file per entry, with the results of a corrected reference."""

CORPUS: tuple[CorpusEntry, ...] = (
    *shapes.FORMS,
    *control.ENTRIES,
    *shapes.ENTRIES,
    *numbers.ENTRIES,
    *numbers.FUNCTIONS,
    *numbers.CASTS,
    *numbers.LIMITS,
    *shapes.SAMPLED,
    *learned.ENTRIES,
    *FOUND,
)


def find_entry(name: str) -> CorpusEntry:
    """Return the entry of that name."""
    return next(e for e in CORPUS if e.name == name)
