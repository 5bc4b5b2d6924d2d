"""A run held against the record of `make conformance`."""

from __future__ import annotations

import fnmatch
import functools

from tools.conformance_record import LETTERS, Record
from xrt.testing import ConformanceReport

MACHINE = {
    "test_str*norm*": "ONNX Runtime takes StringNormalizer where the locale en_US.UTF-8 is installed",
    "test_image_decoder*": "toy decodes images where pillow is installed",
}
"""Cases whose outcome depends on the machine, and on what."""


@functools.cache
def record() -> Record:
    return Record.read()


def differences(way: str, report: ConformanceReport) -> list[str]:
    """Return where a run came to another word than the record has; a gap that rounding decides may pass."""
    noted = {entry.case: entry for entry in record().entries}
    found = []
    for outcome in report.outcomes:
        word = noted[outcome.case].word(way) if outcome.case in noted else None
        depends = any(fnmatch.fnmatchcase(outcome.case, pattern) for pattern in MACHINE) or "G" in (
            LETTERS[outcome.word],
            word and LETTERS[word],
        )
        if outcome.word is not word and not depends:
            found.append(f"{outcome.case} {outcome.word} ({outcome.reason}); the record has {word}; say: make conformance")
    return found
