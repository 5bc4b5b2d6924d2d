"""Run the examples in the documents, and compare their output with the output that the page shows.

A page is read from top to bottom:

- a block ``python`` is executed; all blocks of a page share one namespace and one working directory;
- a block ``console`` holds lines ``$ xrt ...``, each followed by its output; the commands are executed;
- a block ``text`` directly below a block ``python`` is what that block prints;
- a line ``...``, or ``...`` inside a line, stands for any text;
- a block ``sh`` is for the reader: its ``xrt`` lines are only parsed (tests/architecture/test_docs.py).

``python -m tools.documents docs/getting-started.md --write`` replaces the outputs that differ.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import os
import re
import shlex
import sys
import tempfile
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from xrt.cli import main as run_command, screen

WIDTH = 96
"""Columns of the terminal on which commands are shown."""
_FENCE = re.compile(r"^```(python|console|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_BETWEEN_CODE_AND_OUTPUT = re.compile(r"\s*")
_CHECKER = doctest.OutputChecker()


@dataclass(frozen=True)
class Example:
    """Code or one command of a page, with the output that the page shows."""

    kind: str
    """``python`` or ``console``."""
    source: str
    expected: str | None
    """None if the page shows no output; any output is then accepted."""
    span: tuple[int, int] | None
    """Position of the expected output in the page."""


class WrongOutput(AssertionError):
    """The output of an example differs from the output that its page shows."""


def list_examples(text: str) -> list[Example]:
    """List the examples of a page, in order."""
    examples: list[Example] = []
    end = -1
    for fence in _FENCE.finditer(text):
        kind, body = fence[1], fence[2]
        if kind == "python":
            examples.append(Example(kind, body, None, None))
        elif kind == "console":
            examples += _list_commands(body, fence.start(2))
        elif examples and examples[-1].kind == "python" and _BETWEEN_CODE_AND_OUTPUT.fullmatch(text, end, fence.start()):
            examples[-1] = replace(examples[-1], expected=body, span=fence.span(2))
        end = fence.end()
    return examples


def _list_commands(body: str, offset: int) -> Iterator[Example]:
    for command in re.finditer(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
        start, stop = command.span(2)
        yield Example("console", command[1], command[2], (offset + start, offset + stop))


def run_page(path: Path) -> list[tuple[Example, str]]:
    """Run the examples of a page in the current directory; return each example with its output."""
    module = types.ModuleType("document")
    sys.modules["document"] = module  # dataclasses look up the names in their annotations here
    try:
        examples = list_examples(path.read_text(encoding="utf-8"))
        return [(example, _run_example(example, module, path)) for example in examples]
    finally:
        del sys.modules["document"]


def check_page(path: Path) -> None:
    """Run a page; raise WrongOutput for the first example whose output differs from the output that the page shows."""
    for example, printed in run_page(path):
        if not is_expected(example, printed):
            raise WrongOutput(
                f"{path.name}: {example.source.splitlines()[-1]!r} printed\n{printed}where the page shows\n{example.expected}"
            )


def is_expected(example: Example, printed: str) -> bool:
    """Whether the output of an example is the output that its page shows."""
    if example.expected is None:
        return True
    expected = re.sub(r"^ *\.\.\.$", "...", example.expected, flags=re.MULTILINE)
    return _CHECKER.check_output(expected, _strip_lines(printed), doctest.ELLIPSIS)


def _strip_lines(text: str) -> str:
    """Remove spaces at the ends of lines, and empty lines at the beginning and end."""
    lines = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")
    return f"{lines}\n" if lines else ""


def _run_example(example: Example, module: types.ModuleType, path: Path) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if example.kind == "python":
            exec(compile(example.source, str(path), "exec"), module.__dict__)
        else:
            with _as_terminal(), contextlib.redirect_stderr(printed):
                _run_line(example.source)
    return printed.getvalue()


def _run_line(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    if program != "xrt":
        raise WrongOutput(f"a console block runs only the command xrt; got {line!r}")
    with contextlib.suppress(SystemExit):
        run_command(arguments)


@contextlib.contextmanager
def _as_terminal() -> Iterator[None]:
    """Make the command print tables as on a terminal, without colors."""
    console: Any = screen.out
    saved = console._force_terminal, console._color_system, console._width
    console._force_terminal, console._color_system, console._width = True, None, WIDTH
    try:
        yield
    finally:
        console._force_terminal, console._color_system, console._width = saved


def write_outputs(path: Path, results: list[tuple[Example, str]]) -> bool:
    """Replace the outputs of a page that differ; return whether the page has changed."""
    text = old_text = path.read_text(encoding="utf-8")
    for example, printed in reversed(results):
        if example.span is not None and not is_expected(example, printed):
            text = text[: example.span[0]] + _strip_lines(printed) + text[example.span[1] :]
    path.write_text(text, encoding="utf-8")
    return text != old_text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="replace the outputs that differ")
    options = parser.parse_args()
    warnings.simplefilter("error")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    for page in (path.resolve() for path in options.pages):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            os.environ["XRT_CACHE_DIR"] = f"{folder}/cache"
            results = run_page(page)
        wrong = [(example, printed) for example, printed in results if not is_expected(example, printed)]
        print(f"{page.name}: {len(results)} examples, {len(wrong)} outputs differ")
        for example, printed in wrong:
            print(f"--- {example.source.splitlines()[-1]}\n{printed}", end="")
        if options.write and write_outputs(page, results):
            print(f"{page.name}: written")


if __name__ == "__main__":
    main()
