"""A native crash in a suite's test names the test's case, and the Function that was compiled or run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from xrt.testing.suite import LONGEST, note_case

SUITE = """
import ctypes
from dataclasses import dataclass
from typing import ClassVar

from xrt.engines.toy import Toy
from xrt.testing.suite import EngineSuite


@dataclass(frozen=True)
class Crashing(Toy):
    name: ClassVar[str] = "crashing"

    def compile(self, function, context):
        if any(node.op == "OP" for node in function.nodes):
            ctypes.string_at(0)
        return super().compile(function, context)


class TestCrashing(EngineSuite):
    engine = Crashing()
"""


def stack_of(folder: Path, op: str, test: str) -> str:
    """Return what is left of a suite whose engine crashes as it compiles that operator, on one line."""
    (folder / "test_crashing.py").write_text(SUITE.replace("OP", op))
    command = [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "-q", "test_crashing.py", "-k", test]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode < 0, done.stdout
    return done.stderr


@pytest.mark.slow
def test_a_crash_in_a_case_of_the_corpus_names_it(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, "Relu", "test_corpus_alone")
    assert 'File "case test_crashing.py::TestCrashing::test_corpus_alone[' in stack
    assert "Relu(" in stack


@pytest.mark.slow
def test_a_crash_on_a_generated_function_shows_it(tmp_path: Path) -> None:
    stack = stack_of(tmp_path, "Add", "test_it_agrees_with_the_reference")
    assert 'File "case test_crashing.py::TestCrashing::test_it_agrees_with_the_reference"' in stack
    assert 'File "compile (' in stack and "Add(" in stack


@pytest.mark.parametrize(("note", "shown"), [("two\nlines", "two lines"), ("x" * 999, "x" * LONGEST + "...")])
def test_a_note_is_one_line_that_is_printed_whole(note: str, shown: str) -> None:
    noted = note_case(note, divmod)
    assert noted(7, 2) == (3, 1)
    assert noted.__code__.co_filename == shown
