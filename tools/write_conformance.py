"""Run every way of `conformance_record.WAYS`, and write ``docs/conformance.json``, ``docs/conformance.md`` and README's table.

Each way is an `xrt conformance` in a process of its own; its report stays in ``build/conform``. With ``--keep``, reports that are
there already are used again; with ``--only``, the named ways are run anew, and the record keeps what it says of the others.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # a script sees its own folder only

from tools.conformance_page import PAGE, page
from tools.conformance_record import RECORD, TOP, WAYS, Record, Way
from tools.known_failures import list_known_failures
from tools.write_tables import write_tables
from xrt.testing import ConformanceReport, settle

REPORTS = TOP / "build" / "conformance"


def main() -> int:
    """Return 1 where a case fails, a known failure fails no more, or a law is broken; the pages are written in any case."""
    asked = _arguments()
    if asked.from_record:
        return write(Record.read(), [])
    REPORTS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(run, [way for way in WAYS if _is_due(way, asked)]))
    ways = [way for way in WAYS if not asked.only or way.name in asked.only]
    reports = {way.name: read_report(way) for way in ways}
    print("\n".join(map(str, reports.values())))
    record = Record.read().renewed(reports) if asked.only else Record.of(reports)
    return write(record, [f"stale: {entry}" for report in reports.values() for entry in report.stale])


def write(record: Record, stale: list[str]) -> int:
    """Write record and pages, and tell what is wrong with them."""
    RECORD.write_text(str(record), encoding="utf-8")
    PAGE.write_text(page(record), encoding="utf-8")
    write_tables(record)
    faults = [*record.faults(), *stale]
    print("\n".join([f"wrote {RECORD.name} and {PAGE.name}; {len(faults)} faults", *faults]))
    return 1 if faults else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="how many ways run at once")
    parser.add_argument("--from-record", action="store_true", help="run nothing: write the pages from docs/conformance.json")
    parser.add_argument("--keep", action="store_true", help="use the reports that are there")
    parser.add_argument(
        "--only",
        action="append",
        choices=[way.name for way in WAYS],
        help="run this way anew, and keep what the record says of others",
    )
    return parser.parse_args()


def _is_due(way: Way, asked: argparse.Namespace) -> bool:
    if asked.only and way.name not in asked.only:
        return False
    return not asked.keep or not report_of(way).exists()


def report_of(way: Way) -> Path:
    """Return where the report of a way stays."""
    return REPORTS / f"{re.sub(r'[^a-z]+', '-', way.name)}.json"


def read_report(way: Way) -> ConformanceReport:
    """Return the kept report of a way, settled with what its engines are known to fail."""
    report = ConformanceReport.from_dict(json.loads(report_of(way).read_text(encoding="utf-8")))
    return settle(report, list_known_failures(way.engines), alone=len(way.engines) == 1)


def run(way: Way) -> None:
    """Run one way and keep its report; raises SystemExit where the process ends without one."""
    print(f"xrt conformance {' '.join(way.arguments)}", flush=True)
    command = [sys.executable, "-m", "xrt.cli", "conformance", *way.arguments, "--json"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    if not done.stdout.lstrip().startswith("{"):
        raise SystemExit(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    report_of(way).write_text(done.stdout, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
