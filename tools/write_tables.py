"""Write the table of engines in docs/reference/engines.md from ``pyproject.toml`` and the record of `make conformance`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

from tools.conformance_page import count_operators, table
from tools.conformance_record import TOP, Record
from xrt.engines.contract.registry import find_declaration
from xrt.testing import ResultWord

PAGE = TOP / "docs" / "reference" / "engines.md"
BEGIN, END = "<!-- engines: written by tools/write_tables.py -->\n", "<!-- /engines -->\n"


DEVICE_ENGINES = frozenset({"tensorrt"})
"""Engines that do not run on the CPU, which only `make cuda-check` can test."""


def get_engines() -> dict[str, str]:
    """Map the engines that run on the CPU to the extra that installs the engine, or to an empty string if none is needed."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entry_points: Mapping[str, str] = project["entry-points"]["xrt.engines"]
    # The extra is in brackets at the end of an entry point.
    extras = {name: re.sub(r"^[^\[]*\[?|\]$", "", entry_point) for name, entry_point in entry_points.items()}
    return {name: extra for name, extra in extras.items() if name not in DEVICE_ENGINES}


def make_table(record: Record) -> str:
    """Make the table of engines: description, operators, tests passed, and the command to install the engine."""
    rows = [
        (f"`{name}`", find_declaration(name).description, *_format_shares(record, name), _format_install(extra))
        for name, extra in get_engines().items()
    ]
    return table(("name", "description", "operators", "tests passed", "install"), rows)


def _format_shares(record: Record, engine: str) -> tuple[str, str]:
    passed, count = count_operators(record, engine)
    return f"{passed} of {count}", f"{record.count(engine, ResultWord.PASSED):,} of {len(record.entries):,}"


def _format_install(extra: str) -> str:
    return f"`pip install '.[{extra}]'`" if extra else "comes with `pip install .`"


def update_page(text: str, record: Record) -> str:
    """Replace the table between the markers of the page."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{make_table(record)}\n{END}{after}"


def write_tables(record: Record) -> None:
    PAGE.write_text(update_page(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")


if __name__ == "__main__":
    write_tables(Record.read())
