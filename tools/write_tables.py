"""Write the table of engines in docs/reference/engines.md from ``pyproject.toml`` and the record of `make conformance`."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script sees its own folder only

from tools.conformance_page import operators_passed, table
from tools.conformance_record import TOP, Record
from xrt.engines.contract.registry import find_declaration
from xrt.testing import ResultWord

PAGE = TOP / "docs" / "reference" / "engines.md"
BEGIN, END = "<!-- engines: written by tools/write_tables.py -->\n", "<!-- /engines -->\n"


ON_DEVICES = frozenset({"tensorrt"})
"""Engines that no run on the CPU can prove: `make cuda-check` has them."""


def engines() -> dict[str, str]:
    """Return the engines that XRT registers and that run on the CPU, each with its extra; empty where it needs none."""
    project = tomllib.loads((TOP / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines: Mapping[str, str] = project["entry-points"]["xrt.engines"]
    return {name: re.sub(r"^[^\[]*\[?|\]$", "", line) for name, line in lines.items() if name not in ON_DEVICES}


def engine_table(record: Record) -> str:
    """Return the table: what each engine is, how much of the operators and of the tests it has, and how to install it."""
    rows = [
        (f"`{name}`", find_declaration(name).description, *_share(record, name), _install(extra))
        for name, extra in engines().items()
    ]
    return table(("name", "what it is", "operators", "tests passed", "install"), rows)


def _share(record: Record, engine: str) -> tuple[str, str]:
    passed, count = operators_passed(record, engine)
    return f"{passed} of {count}", f"{record.count(engine, ResultWord.PASSED):,} of {len(record.entries):,}"


def _install(extra: str) -> str:
    return f"`pip install '.[{extra}]'`" if extra else "comes with `pip install .`"


def with_table(text: str, record: Record) -> str:
    """Return the page's text with the table replaced between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{engine_table(record)}\n{END}{after}"


def write_tables(record: Record) -> None:
    """Write the page."""
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), record), encoding="utf-8")


if __name__ == "__main__":
    write_tables(Record.read())
