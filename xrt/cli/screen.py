"""Output: results on standard output, progress and warnings on standard error; plain text if not a terminal."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import click
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from xrt.progress import claim_display, release_display

if TYPE_CHECKING:
    from rich.status import Status

MIN_WRAPPED_WIDTH = 24
"""Minimum characters of a column whose text may be wrapped: the usual names and single words fit on a line."""
COLUMN_GAP, EDGE_SPACES = 3, 2
"""Spaces between two columns, and spaces before the first column and after the last one together."""

_HEIGHT = 25 if os.environ.get("TERM", "").lower() in ("dumb", "unknown") else None
"""Height for terminals without cursor control: without one, rich would ignore COLUMNS there."""

# soft_wrap: rich would otherwise break long lines of a pipe at 80 columns.
out = Console(highlight=False, soft_wrap=True, height=_HEIGHT)
err = Console(stderr=True, highlight=False, soft_wrap=True, height=_HEIGHT)


def print_lines(*lines: str) -> None:
    for line in lines:
        out.print(line, markup=False)


def print_json(data: Any) -> None:
    out.print_json(json.dumps(data))


def print_facts(as_json: bool, data: Any, *lines: str) -> None:
    if as_json:
        print_json(data)
    else:
        print_lines(*lines)


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, numbers: Sequence[str] = (), whole: Sequence[str] = ()
) -> None:
    """Print a table on a terminal, and lines of tab-separated fields elsewhere.

    ``numbers`` and ``whole`` name columns whose cells are never wrapped; those of ``numbers`` are also aligned to the right. If a
    terminal is too narrow for that, each row becomes a block with a line per column.
    """
    if not out.is_terminal:
        # One line per row, for cut and awk: a line break or tab inside a cell becomes a space.
        for row in (columns, *rows):
            click.echo("\t".join(" ".join(str(cell).split()) for cell in row))
        return
    cells = [[cell if isinstance(cell, Text) else Text(str(cell)) for cell in row] for row in rows]
    unbroken = {*numbers, *whole}
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    min_widths = [w if name in unbroken else min(w, MIN_WRAPPED_WIDTH) for name, w in zip(columns, widths, strict=True)]
    if sum(min_widths) + COLUMN_GAP * (len(columns) - 1) + EDGE_SPACES > out.width:
        _show_blocks(columns, cells)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, width in zip(columns, min_widths, strict=True):
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in unbroken, min_width=width)
    for row in cells:
        table.add_row(*row)
    out.print(table, soft_wrap=False)


def _show_blocks(columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    for first_cell, *cells in rows:
        out.print(first_cell or Text(columns[0]), soft_wrap=False, overflow="fold")
        for column, cell in zip(columns[1:], cells, strict=True):
            if cell:
                line = Text.assemble(f"{column}: ", cell) if column else cell
                out.print(Padding(line, (0, 0, 0, 2), expand=False), soft_wrap=False, overflow="fold")


STYLES = {"fastest": "bold green", "chosen": "bold green", "too noisy": "yellow", "wrong": "bold red", "failed": "red"}


def format_ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{1e3 * seconds:.4g}"


def show_times(subject: str, details: Sequence[str], rows: Sequence[Sequence[str]], *, verbose: Sequence[str] = ()) -> None:
    """Print a table of candidates. A row has name, milliseconds per call, ratio to the fastest, verdict, and the ``details``.

    The milliseconds of a candidate that did not run are empty. A terminal gets a table without details, which fits 80 columns,
    and if ``verbose`` names details, a second table of the candidates that ran. Other outputs get one table with all columns.
    """
    columns = (subject, "ms", "ratio", "verdict", *details)
    if not out.is_terminal:
        show_table(columns, rows)
        return
    brief = [(name, ms, ratio, Text(verdict, style=STYLES.get(verdict, ""))) for name, ms, ratio, verdict, *_ in rows]
    show_table(columns[:4], brief, numbers=("ms", "ratio"), whole=("verdict",))
    if verbose:
        indices = [0, *map(columns.index, verbose)]
        measured = [[row[index] for index in indices] for row in rows if row[1]]
        show_table((subject, *verbose), measured, numbers=[name for name in verbose if name != "note"])


@contextmanager
def show_status(text: str) -> Iterator[Status]:
    """Show ``text`` on standard error while the block runs, in place of the library's own progress line."""
    has_display = claim_display()
    try:
        with err.status(text) as status:
            yield status
    finally:
        if has_display:
            release_display()


def complain(kind: str, message: str) -> None:
    # Text instead of markup: rich would read brackets in a message as styles.
    style = "bold red" if kind == "error" else "yellow"
    err.print(Text(f"{kind}: ", style=style) + Text(message))


@contextmanager
def warnings_as_lines() -> Iterator[None]:
    """Print each distinct warning of the enclosed block as one line."""
    # Python's filters compare the location too, and would repeat a message that several lines of code issue.
    seen: set[str] = set()

    def show(message: Warning | str, *rest: Any, **more: Any) -> None:
        if str(message) not in seen:
            seen.add(str(message))
            complain("warning", str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = show
        yield
