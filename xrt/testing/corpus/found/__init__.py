"""What fuzzing found: one file per entry, made small, with what the reference says once it is right."""

from __future__ import annotations

from pathlib import Path

from xrt.testing.files import read_entries

__all__ = ["ENTRIES"]

ENTRIES = read_entries(Path(__file__).parent)
