"""The regression corpus: small models that an engine computed wrongly, in XRT or its predecessor, or that are easy to get wrong.

Each entry is a Function with inputs and expected outputs, computed by hand or in plain NumPy. Every fixed defect adds an entry,
and every engine's suite runs all entries.
"""

from pathlib import Path

from xrt.testing.corpus import control, learned, numbers, shapes
from xrt.testing.corpus.entry import CorpusEntry, read_entries

__all__ = ["CORPUS", "FUZZ_ENTRIES", "CorpusEntry", "find_entry"]

FUZZ_ENTRIES = read_entries(Path(__file__).parent / "found")
"""Defects found by fuzzing, one file per entry; the expected outputs are those of the reference engine after the fix."""

CORPUS: tuple[CorpusEntry, ...] = (
    *shapes.STRUCTURE_ENTRIES,
    *control.ENTRIES,
    *shapes.ENTRIES,
    *numbers.ENTRIES,
    *numbers.FUNCTION_ENTRIES,
    *numbers.CAST_ENTRIES,
    *numbers.LIMIT_ENTRIES,
    *shapes.SAMPLING_ENTRIES,
    *learned.ENTRIES,
    *FUZZ_ENTRIES,
)


def find_entry(name: str) -> CorpusEntry:
    """Look up an entry by name; raises StopIteration if there is none."""
    return next(e for e in CORPUS if e.name == name)
