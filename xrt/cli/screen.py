"""Output: results on standard output, progress and warnings on standard error; plain text if not a terminal."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Self

import click
from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.status import Status
from rich.table import Table
from rich.text import Text

from xrt.progress import claim_display, release_display

FOLDED = 24
"""Minimum width of a wrapped column: usual names and words of reasons fit."""
GAP = 3
"""Spaces between two columns."""
EDGES = 2
"""Spaces before the first column and after the last."""

_LINES = 25 if os.environ.get("TERM", "").lower() in ("dumb", "unknown") else None
"""Height for terminals without cursor control: without one, rich would ignore COLUMNS there."""

# soft_wrap: rich would otherwise break long lines of a pipe at 80 columns.
out = Console(highlight=False, soft_wrap=True, height=_LINES)
err = Console(stderr=True, highlight=False, soft_wrap=True, height=_LINES)


def print_lines(*lines: str) -> None:
    """Print lines as they are; a terminal wraps them."""
    for line in lines:
        out.print(line, markup=False)


def print_json(data: Any) -> None:
    """Print plain data as JSON."""
    out.print_json(json.dumps(data))


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, numbers: Sequence[str] = (), whole: Sequence[str] = ()
) -> None:
    """Print a table on a terminal, and lines of tab-separated fields elsewhere.

    Columns of ``numbers`` are aligned to the right; these and the ``whole`` ones are never wrapped. If a terminal is too narrow
    for that, each row becomes a block with a line per column.
    """
    if not out.is_terminal:
        # One line per row, for cut and awk: a line break or tab inside a cell becomes a space.
        for row in (columns, *rows):
            click.echo("\t".join(" ".join(str(cell).split()) for cell in row))
        return
    # Text may be wrapped down to FOLDED characters; a table that needs less would break words.
    unbroken = {*numbers, *whole}
    widths = [max(len(str(cell)) for cell in cells) for cells in zip(columns, *rows, strict=True)]
    least = [width if name in unbroken else min(width, FOLDED) for name, width in zip(columns, widths, strict=True)]
    if sum(least) + GAP * (len(columns) - 1) + EDGES > out.width:
        _show_blocks(columns, rows)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, width in zip(columns, least, strict=True):
        justify: Literal["left", "right"] = "right" if name in numbers else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name in unbroken, min_width=width)
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    out.print(table, soft_wrap=False)


def _show_blocks(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print each row as its first cell, followed by a line for each other cell that is not empty."""
    for row in rows:
        title, *cells = (cell if isinstance(cell, Text) else Text(str(cell)) for cell in row)
        out.print(title if title.plain else Text(columns[0]), soft_wrap=False, overflow="fold")
        for column, cell in zip(columns[1:], cells, strict=True):
            if cell.plain:
                line = Text.assemble(f"{column}: " * bool(column), cell)
                out.print(Padding(line, (0, 0, 0, 2), expand=False), soft_wrap=False, overflow="fold")


class TimedRow(NamedTuple):
    """A candidate in a table of times."""

    name: str
    seconds: float | None
    """Seconds per call; None if the candidate did not run."""
    ratio: str
    """Time relative to the fastest candidate, with an interval if known."""
    verdict: str
    details: Mapping[str, str]
    """Further cells by column."""


BLOCKS = " ▏▎▍▌▋▊▉█"
"""Eighths of a character."""
LONGEST_BAR = 4.0
"""Bars are cut at this multiple of the fastest time, so that the short ones stay comparable."""
STYLES = {"fastest": "bold green", "chosen": "bold green", "too noisy": "yellow", "wrong": "bold red", "failed": "red"}


def show_times(subject: str, rows: Sequence[TimedRow], columns: Sequence[str], *, verbose: Sequence[str] = ()) -> None:
    """Print a table of candidates with times, ratios and verdicts.

    On a terminal: bars in a table that fits 80 columns, then a second table with the ``verbose`` details. Elsewhere: one table
    with the details of all ``columns``. Both are keys of `TimedRow.details`.
    """
    cells = [(row.name, "" if row.seconds is None else f"{1e3 * row.seconds:.4g}", row.ratio, row.verdict) for row in rows]
    headings = (subject, "ms", "ratio", "verdict")
    if not out.is_terminal:
        details = [map(row.details.get, columns) for row in rows]
        show_table((*headings, *columns), [(*cell, *more) for cell, more in zip(cells, details, strict=True)])
        return
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    # The bar gets the space that is left beside the other four columns, with the names wrapped as far as they may be.
    room = min(24, out.width - min(widths[0], FOLDED) - sum(widths[1:]) - 4 * GAP - EDGES)
    seconds = [row.seconds for row in rows if row.seconds]
    longest = min(max(seconds, default=1.0), LONGEST_BAR * min(seconds, default=1.0))
    table_rows = []
    for row, (*cell, verdict) in zip(rows, cells, strict=True):
        bar = [_draw_bar(row.seconds, longest, room)] if room >= 4 else []
        table_rows.append((*cell, *bar, Text(verdict, style=STYLES.get(verdict, ""))))
    show_table((*headings[:3], *[""] * (room >= 4), "verdict"), table_rows, numbers=("ms", "ratio"), whole=("", "verdict"))
    if verbose:
        measured = [(row.name, *map(row.details.get, verbose)) for row in rows if row.seconds is not None]
        show_table((subject, *verbose), measured, numbers=[name for name in verbose if name != "note"])


def _draw_bar(seconds: float | None, longest: float, width: int) -> Text:
    if seconds is None:
        return Text("")
    is_cut = seconds > longest
    # Terminals with another encoding, as under LANG=C, cannot print block characters. The shortest bar remains visible.
    eighths = round(8 * width * min(seconds / longest, 1.0))
    can_draw = "utf" in (out.encoding or "").lower()
    bar = "█" * (eighths // 8) + BLOCKS[eighths % 8].strip() if can_draw else "#" * max(1, eighths // 8)
    return Text(f"{bar[: width - 1]}{'»' if can_draw else '>'}" if is_cut else bar or "▏", style="blue")


class WorkStatus(Status):
    """A line on standard error with the current work; it suppresses the library's progress line."""

    def __init__(self, text: str) -> None:
        super().__init__(text, console=err)
        self._has_display = False

    def show_count(self, text: str, done: int, total: int) -> None:
        """Show how much of the work is done."""
        self.update(f"{text}, {done:,} of {total:,}")

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        # `start` is called again after a pause: the display is claimed only once, and released by `stop`.
        self._has_display = self._has_display or claim_display()
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._has_display:
            self._has_display = False
            release_display()


def complain(kind: str, message: str) -> None:
    """Print a message on standard error."""
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
